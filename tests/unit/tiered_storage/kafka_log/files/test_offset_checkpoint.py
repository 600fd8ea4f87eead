from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiered_storage.errors import CorruptIndexError
from tiered_storage.kafka_log.files.offset_checkpoint import read_offset_checkpoint, write_offset_checkpoint

topics = st.from_regex(r"[a-zA-Z0-9._-]{1,249}", fullmatch=True)


@given(st.dictionaries(st.tuples(topics, st.integers(0, 2**31 - 1)), st.integers(0, 2**63 - 1)))
def test_offsets_survive_their_file(
    tmp_path_factory: pytest.TempPathFactory, offsets: dict[tuple[str, int], int]
) -> None:
    path = tmp_path_factory.mktemp("checkpoint") / "replication-offset-checkpoint"

    write_offset_checkpoint(path, offsets)

    assert read_offset_checkpoint(path) == offsets


def test_a_partition_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "replication-offset-checkpoint"
    path.write_text("0\n2\norders 0 17\norders 0 18\n")

    with pytest.raises(CorruptIndexError, match="orders-0") as raised:
        read_offset_checkpoint(path)

    assert raised.value.position == 16


def test_a_second_read_sees_a_changed_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "replication-offset-checkpoint"
    for offset in (1, 2, 1):
        path.write_text(f"0\n1\norders 0 {offset}\n")
        assert read_offset_checkpoint(path) == {("orders", 0): offset}
    path.write_text("0\n1\norders 0 x\n")
    for _ in range(2):
        with pytest.raises(CorruptIndexError):
            read_offset_checkpoint(path)
