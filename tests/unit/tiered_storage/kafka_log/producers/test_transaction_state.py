from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiered_storage.errors import CorruptIndexError, CorruptRecordError
from tiered_storage.kafka_log.files.log_segment import LogSegment, producer_snapshot_path
from tiered_storage.kafka_log.producers.producer_snapshot import ProducerSnapshotEntry, write_producer_snapshot
from tiered_storage.kafka_log.producers.transaction_state import read_last_stable_offset
from tiered_storage.kafka_log.records.record import Record
from tiered_storage.kafka_log.records.record_batch import encode_batch

ABORT, COMMIT = 0, 1


def data(offset: int, producer: int = -1, *, records: int = 1, transactional: bool = True) -> bytes:
    """Return a batch of `records` records; without a producer it is an ordinary one."""
    return encode_batch(
        [Record(offset + i, 1_700_000_000_000, b"key", b"value") for i in range(records)],
        producer_id=producer,
        producer_epoch=0 if producer >= 0 else -1,
        base_sequence=0 if producer >= 0 else -1,
        is_transactional=transactional and producer >= 0,
    )


def marker(offset: int, producer: int, kind: int = COMMIT, *, key: bytes | None = None) -> bytes:
    record = Record(offset, 1_700_000_000_000, key or struct.pack(">hh", 0, kind), struct.pack(">hi", 0, 7))
    return encode_batch([record], producer_id=producer, producer_epoch=0, is_transactional=True, is_control=True)


def write(directory: Path, base_offset: int, batches: Iterable[bytes]) -> Path:
    path = LogSegment(base_offset, directory).log_path
    path.write_bytes(b"".join(batches))
    return path


def write_snapshot(directory: Path, offset: int, open_since: dict[int, int]) -> Path:
    path = producer_snapshot_path(directory, offset)
    write_producer_snapshot(
        path,
        [ProducerSnapshotEntry(producer, 0, 0, offset - 1, 0, 0, 0, first) for producer, first in open_since.items()],
    )
    return path


def test_a_log_without_transactions_is_stable_up_to_the_high_watermark(tmp_path: Path) -> None:
    write(tmp_path, 0, [data(0, records=10), data(10, producer=5, records=10, transactional=False)])

    assert read_last_stable_offset(tmp_path, 20) == 20
    assert read_last_stable_offset(tmp_path, 13) == 13
    assert read_last_stable_offset(tmp_path, 0) == 0


def test_an_id_below_0_opens_no_transaction(tmp_path: Path) -> None:
    nobodys = encode_batch([Record(0, 1, None, b"x")], producer_id=-2, producer_epoch=0, is_transactional=True)
    write(tmp_path, 0, [nobodys, data(1)])

    assert read_last_stable_offset(tmp_path, 2) == 2


def test_an_open_transaction_holds_the_last_stable_offset_at_its_first_batch(tmp_path: Path) -> None:
    write(tmp_path, 0, [data(0, records=5), data(5, producer=1), data(6), data(7, producer=1)])

    assert read_last_stable_offset(tmp_path, 8) == 5


def test_a_transaction_that_began_below_the_logs_start_holds_back_all_from_there(tmp_path: Path) -> None:
    write(tmp_path, 0, [data(0, records=5, producer=1), data(5)])

    assert read_last_stable_offset(tmp_path, 6, log_start_offset=4) == 4


@pytest.mark.parametrize("kind", [ABORT, COMMIT])
def test_a_marker_of_either_kind_ends_its_producers_transaction_only(tmp_path: Path, kind: int) -> None:
    write(tmp_path, 0, [data(0, producer=1), data(1, producer=2), marker(2, producer=1, kind=kind), data(3)])

    assert read_last_stable_offset(tmp_path, 4) == 1


def test_a_control_record_of_another_kind_ends_nothing(tmp_path: Path) -> None:
    write(tmp_path, 0, [data(0, producer=1), marker(1, producer=1, kind=2)])

    assert read_last_stable_offset(tmp_path, 2) == 0


def test_a_marker_at_the_high_watermark_does_not_count_yet(tmp_path: Path) -> None:
    write(tmp_path, 0, [data(0), data(1, producer=1), marker(2, producer=1)])

    assert read_last_stable_offset(tmp_path, 2) == 1
    assert read_last_stable_offset(tmp_path, 3) == 3


def test_a_transaction_that_begins_at_the_high_watermark_does_not_matter(tmp_path: Path) -> None:
    write(tmp_path, 0, [data(0), data(1, producer=1)])

    assert read_last_stable_offset(tmp_path, 1) == 1


def test_a_producers_next_transaction_counts_from_its_own_beginning(tmp_path: Path) -> None:
    write(tmp_path, 0, [data(0, producer=1), marker(1, producer=1), data(2), data(3, producer=1)])

    assert read_last_stable_offset(tmp_path, 4) == 3


def test_without_snapshots_all_segments_are_read(tmp_path: Path) -> None:
    write(tmp_path, 0, [data(0, producer=1), data(1, producer=2)])
    write(tmp_path, 2, [marker(2, producer=1), data(3)])
    write(tmp_path, 4, [data(4)])

    assert read_last_stable_offset(tmp_path, 5) == 1


def test_no_segment_before_a_snapshot_is_read(tmp_path: Path) -> None:
    write(tmp_path, 0, [b"no batch at all"])
    write(tmp_path, 100, [data(100, producer=3), marker(101, producer=2)])
    write_snapshot(tmp_path, 100, {1: -1, 2: 30, 3: 40})

    assert read_last_stable_offset(tmp_path, 102) == 40


def test_a_snapshot_above_the_high_watermark_knows_too_much_and_is_not_used(tmp_path: Path) -> None:
    write(tmp_path, 0, [data(0), data(1, producer=1)])
    write(tmp_path, 2, [marker(2, producer=1), data(3)])
    write(tmp_path, 4, [b"not to be read"])
    write_snapshot(tmp_path, 2, {1: 1})
    write_snapshot(tmp_path, 4, {1: -1})

    assert read_last_stable_offset(tmp_path, 2) == 1
    assert read_last_stable_offset(tmp_path, 3) == 3
    assert read_last_stable_offset(tmp_path, 4) == 4


def test_the_stable_offset_ignores_a_torn_batch_after_the_high_watermark(tmp_path: Path) -> None:
    write(tmp_path, 0, [data(0), data(1)[:-1]])

    assert read_last_stable_offset(tmp_path, 1) == 1


def test_a_broken_snapshot_is_named(tmp_path: Path) -> None:
    write(tmp_path, 0, [data(0)])
    path = producer_snapshot_path(tmp_path, 0)
    path.write_bytes(b"\x00\x01")

    with pytest.raises(CorruptIndexError) as raised:
        read_last_stable_offset(tmp_path, 1)

    assert raised.value.path == str(path)


def test_a_marker_that_cannot_be_read_is_named_with_its_place(tmp_path: Path) -> None:
    first = data(0, producer=1)
    path = write(tmp_path, 0, [first, marker(1, producer=1, key=b"\x00")])

    with pytest.raises(CorruptRecordError, match="control record") as raised:
        read_last_stable_offset(tmp_path, 2)

    assert (raised.value.path, raised.value.position) == (str(path), len(first))


steps = st.tuples(st.sampled_from(["data", "plain", "commit", "abort"]), st.integers(0, 2))


@given(st.lists(steps, max_size=25), st.data())
def test_the_last_stable_offset_is_right_after_random_transactions(
    tmp_path_factory: pytest.TempPathFactory, course: list[tuple[str, int]], draw: st.DataObject
) -> None:
    directory = tmp_path_factory.mktemp("orders-0")
    rolls = draw.draw(st.sets(st.integers(1, max(1, len(course) - 1))))
    high_watermark = draw.draw(st.integers(0, len(course)))
    open_since: dict[int, int] = {}
    stable = high_watermark
    segments: dict[int, list[bytes]] = {0: []}
    for offset, (kind, producer) in enumerate(course):
        if offset == high_watermark:
            stable = min([high_watermark, *open_since.values()])
        if offset in rolls:
            segments[offset] = []
            if draw.draw(st.booleans()):
                write_snapshot(directory, offset, open_since)
        if kind == "data":
            open_since.setdefault(producer, offset)
            batch = data(offset, producer)
        elif kind == "plain":
            batch = data(offset)
        else:
            open_since.pop(producer, None)
            batch = marker(offset, producer, COMMIT if kind == "commit" else ABORT)
        segments[max(segments)].append(batch)
    if high_watermark == len(course):
        stable = min([high_watermark, *open_since.values()])
    for base_offset, batches in segments.items():
        write(directory, base_offset, batches)

    assert read_last_stable_offset(directory, high_watermark) == stable
