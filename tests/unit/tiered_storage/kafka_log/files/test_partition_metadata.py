from __future__ import annotations

from pathlib import Path

import pytest

from tiered_storage.errors import ConfigurationError, CorruptIndexError
from tiered_storage.kafka_log.files.partition_metadata import read_topic_id, write_topic_id

TOPIC_ID = "cxfmXdFdRF2-6WITmvYjdA"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "partition.metadata"


def test_the_file_is_the_one_that_kafka_writes(path: Path) -> None:
    write_topic_id(path, TOPIC_ID)

    assert path.read_bytes() == b"version: 0\ntopic_id: cxfmXdFdRF2-6WITmvYjdA"
    assert read_topic_id(path) == TOPIC_ID


def test_a_line_end_at_the_end_does_no_harm(path: Path) -> None:
    path.write_text(f"version: 0\ntopic_id: {TOPIC_ID}\n")

    assert read_topic_id(path) == TOPIC_ID


@pytest.mark.parametrize(
    ("content", "position", "reason"),
    [
        (b"", 0, "not the two lines"),
        (b"version: 0\n", 0, "not the two lines"),
        (b"version: 1\ntopic_id: cxfmXdFdRF2-6WITmvYjdA\n", 0, "version 1 is unknown"),
        (b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA\n", 21, "reserves"),
        (b"version: 0\ntopic_id: \xff\n", 21, "not a UUID"),
        (b"x" * 5000, 4096, "continues past"),
    ],
)
def test_a_broken_file_is_refused_with_the_place(path: Path, content: bytes, position: int, reason: str) -> None:
    path.write_bytes(content)

    with pytest.raises(CorruptIndexError, match=reason) as raised:
        read_topic_id(path)

    assert (raised.value.path, raised.value.position) == (str(path), position)


def test_no_file_is_written_for_an_invalid_topic_id(path: Path) -> None:
    with pytest.raises(ConfigurationError):
        write_topic_id(path, "orders")

    assert not path.exists()
