from __future__ import annotations

from pathlib import Path

import pytest

from tiered_storage.errors import CorruptIndexError
from tiered_storage.kafka_log.files import checkpoint_file
from tiered_storage.kafka_log.files.checkpoint_file import read_checkpoint, write_checkpoint


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "checkpoint"


def test_entries_are_read_as_they_were_written(path: Path) -> None:
    write_checkpoint(path, ["0 0", "3 1500"])

    assert path.read_bytes() == b"0\n2\n0 0\n3 1500\n"
    entries = read_checkpoint(path, fields=2)
    assert [entry.fields for entry in entries] == [("0", "0"), ("3", "1500")]
    assert [entry.position for entry in entries] == [4, 8]


def test_the_empty_file_of_a_broker_that_never_wrote_it_has_no_entries(path: Path) -> None:
    path.touch()

    assert read_checkpoint(path, fields=2) == []


@pytest.mark.parametrize("content", [b"0\r\n1\r\n7\t 8\r\n", b"0\n1\n7 8", b"0\n1\n  7  8 \n"])
def test_white_space_and_line_ends_are_as_free_as_in_java(path: Path, content: bytes) -> None:
    path.write_bytes(content)

    assert [entry.fields for entry in read_checkpoint(path, fields=2)] == [("7", "8")]


@pytest.mark.parametrize(
    ("content", "position", "reason"),
    [
        (b"1\n0\n", 0, "version 1 is unknown"),
        (b"x\n0\n", 0, "this is not a number"),
        (b"0\n", 0, "number of its entries"),
        (b"0\n2\n0 0\n", 2, "2 entries are announced, 1 follow"),
        (b"0\n1\n0 0\n1 5\n", 2, "1 entries are announced, 2 follow"),
        (b"0\n-1\n", 2, "this is not a number"),
        (b"0\n2\n0 0\n1 5 9\n", 8, "an entry has 3 fields, not 2"),
        (b"0\n1\n\n", 4, "an entry has 0 fields, not 2"),
        ("0\n1\n0 ٣\n".encode(), 4, "not ASCII text"),
    ],
)
def test_a_broken_file_is_refused_with_the_place(path: Path, content: bytes, position: int, reason: str) -> None:
    path.write_bytes(content)

    with pytest.raises(CorruptIndexError, match=reason) as raised:
        read_checkpoint(path, fields=2)

    assert (raised.value.path, raised.value.position) == (str(path), position)


@pytest.mark.parametrize("text", ["2147483648", "-1", "1.0", "", "9" * 30, "1_0"])
def test_numbers_out_of_range_are_refused(path: Path, text: str) -> None:
    entry = checkpoint_file.CheckpointEntry(path, 4, (text,))

    with pytest.raises(CorruptIndexError, match=r"\b0 to 2147483647\b"):
        entry.integer(0, bits=32)


def test_a_number_may_be_as_large_as_its_width(path: Path) -> None:
    entry = checkpoint_file.CheckpointEntry(path, 4, ("9223372036854775807", "2147483647"))

    assert entry.integer(0, bits=64) == (1 << 63) - 1
    assert entry.integer(1, bits=32) == (1 << 31) - 1


def test_a_file_of_more_lines_than_any_broker_writes_is_refused(path: Path) -> None:
    path.write_bytes(b"\n" * (2 * checkpoint_file.MAX_ENTRIES + 1))

    with pytest.raises(CorruptIndexError, match="more lines"):
        read_checkpoint(path, fields=2)
