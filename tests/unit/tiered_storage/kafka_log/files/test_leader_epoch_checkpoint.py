from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiered_storage.errors import CorruptIndexError
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry, read_leader_epochs, write_leader_epochs


@given(epochs=st.sets(st.integers(0, 2**31 - 1)), data=st.data())
def test_epochs_survive_their_file(
    tmp_path_factory: pytest.TempPathFactory, epochs: set[int], data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("checkpoint") / "leader-epoch-checkpoint"
    offsets = data.draw(st.lists(st.integers(0, 2**63 - 1), min_size=len(epochs), max_size=len(epochs)))
    entries = tuple(EpochEntry(*entry) for entry in zip(sorted(epochs), sorted(offsets), strict=True))

    write_leader_epochs(path, entries)

    assert read_leader_epochs(path) == entries


def test_the_file_is_the_one_that_kafka_writes(tmp_path: Path) -> None:
    path = tmp_path / "leader-epoch-checkpoint"

    write_leader_epochs(path, [EpochEntry(0, 0), EpochEntry(3, 1500)])

    assert path.read_text() == "0\n2\n0 0\n3 1500\n"


@pytest.mark.parametrize("second", ["0 9", "1 4"])
def test_epochs_that_do_not_rise_are_refused(tmp_path: Path, second: str) -> None:
    path = tmp_path / "leader-epoch-checkpoint"
    path.write_text(f"0\n2\n0 5\n{second}\n")

    with pytest.raises(CorruptIndexError, match="cannot follow") as raised:
        read_leader_epochs(path)

    assert raised.value.position == 8
