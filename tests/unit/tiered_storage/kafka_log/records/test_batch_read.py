from __future__ import annotations

from pathlib import Path

import pytest

from tiered_storage.errors import CorruptRecordError
from tiered_storage.kafka_log.records.batch_read import BatchRange, batch_position, read_batch_range, read_batches
from tiered_storage.kafka_log.records.record import Record
from tiered_storage.kafka_log.records.record_batch import encode_batch

BATCHES = [encode_batch([Record(10 * i + j, 0, None, b"x" * 50) for j in range(10)]) for i in range(4)]
SIZE = len(BATCHES[0])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(b"".join(BATCHES))
    return path


@pytest.mark.parametrize(
    ("position", "offset", "max_bytes", "batches"),
    [
        (0, 0, 0, [0]),
        (0, 15, 1, [1]),
        (0, 15, 2 * SIZE - 1, [1]),
        (0, 15, 2 * SIZE, [1, 2]),
        (0, 15, 2 * SIZE + 60, [1, 2]),
        (0, 15, 2 * SIZE + 61, [1, 2]),
        (2 * SIZE, 29, 10 * SIZE, [2, 3]),
        (0, 39, 10 * SIZE, [3]),
        (0, 40, 10 * SIZE, []),
    ],
)
def test_whole_batches_are_read_from_the_one_with_the_offset(
    path: Path, position: int, offset: int, max_bytes: int, batches: list[int]
) -> None:
    assert read_batches(path, position, offset, max_bytes) == b"".join(BATCHES[i] for i in batches)


def test_a_batch_that_the_file_cuts_is_refused_where_it_is_asked_for(path: Path) -> None:
    path.write_bytes(b"".join(BATCHES)[:-1])

    assert read_batches(path, 0, 20, 10 * SIZE) == BATCHES[2]
    with pytest.raises(CorruptRecordError, match="truncated") as raised:
        read_batches(path, 0, 30, 10)
    assert (raised.value.path, raised.value.position) == (str(path), 3 * SIZE)


def test_a_position_where_no_batch_begins_is_refused(path: Path) -> None:
    with pytest.raises(CorruptRecordError) as raised:
        read_batches(path, 7, 0, 10)

    assert raised.value.position == 7


@pytest.mark.parametrize(("end", "batches"), [(40, [1, 2, 3]), (39, [1, 2]), (30, [1, 2]), (29, [1]), (19, None)])
def test_batches_beyond_the_end_position_are_left_out(path: Path, end: int, batches: list[int] | None) -> None:
    found = read_batch_range(path, 0, 15, 10 * SIZE, end)

    if batches is None:
        assert found is None
    else:
        assert found == BatchRange(b"".join(BATCHES[i] for i in batches), 10 * batches[-1] + 10)


@pytest.mark.parametrize(("offset", "expected"), [(0, 0), (9, 0), (10, SIZE), (39, 3 * SIZE), (40, None)])
def test_the_position_of_the_batch_with_an_offset_is_found(path: Path, offset: int, expected: int | None) -> None:
    assert batch_position(path, 0, offset) == expected
