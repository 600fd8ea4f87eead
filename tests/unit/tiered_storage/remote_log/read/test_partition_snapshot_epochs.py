"""Reads that name leader epochs (KIP-320) are refused where a broker would refuse them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.remote_logs import ORDERS_0, a_copied_remote_log, held_by, records
from tiered_storage.errors import (
    DivergingEpochError,
    FencedLeaderEpochError,
    LeaderEpochError,
    OffsetOutOfRangeError,
    UnknownLeaderEpochError,
)
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.remote_log.coverage import Coverage
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.read.blocking_reader import BlockingLogReader
from tiered_storage.remote_log.read.partition_snapshot import PartitionSnapshot
from tiered_storage.remote_log.read.read_values import FetchEpochs

LINEAGE = (EpochEntry(1, 5), EpochEntry(2, 10), EpochEntry(5, 20))
END = 30


@pytest.fixture
def remote_log(tmp_path: Path) -> Iterator[RemoteLogManager]:
    """Offsets 0 to 29 of orders-0, all remote and none local."""
    files = a_copied_remote_log(tmp_path)
    files.properties["log.dirs"] = []
    with files.open() as remote_log:
        yield remote_log


@pytest.mark.parametrize(
    ("current", "last", "offset", "error"),
    [
        (5, None, 0, None),
        (4, None, 0, FencedLeaderEpochError),
        (0, None, 0, FencedLeaderEpochError),
        (6, None, 0, UnknownLeaderEpochError),
        (None, 6, 0, UnknownLeaderEpochError),
        (6, 0, 30, UnknownLeaderEpochError),
        (4, 4, 25, FencedLeaderEpochError),
        (5, 5, END, None),
        (None, 5, 20, None),
        (None, 2, 20, None),
        (None, 2, 10, None),
        (None, 2, 21, (2, 20)),
        (5, 3, 20, (2, 20)),
        (5, 4, 12, (2, 20)),
        (None, 1, 10, None),
        (None, 1, 11, (1, 10)),
        (None, 0, 5, None),
        (None, 0, 6, (0, 5)),
    ],
)
def test_a_snapshot_refuses_the_epochs_that_a_broker_refuses(
    current: int | None, last: int | None, offset: int, error: type[LeaderEpochError] | tuple[int, int] | None
) -> None:
    snapshot = PartitionSnapshot(ORDERS_0, None, Coverage(()), END, LINEAGE, is_log_start_known=True)
    epochs = FetchEpochs(current, last)
    if error is None:
        snapshot.check_epochs(offset, epochs)
        return
    expected = DivergingEpochError if isinstance(error, tuple) else error
    with pytest.raises(expected) as raised:
        snapshot.check_epochs(offset, epochs)
    assert raised.value.known == 5
    assert str(raised.value).startswith("orders-0: ")
    if isinstance(raised.value, DivergingEpochError):
        assert (raised.value.epoch, raised.value.end_offset) == error


def test_every_epoch_is_unknown_in_a_log_without_epochs() -> None:
    with pytest.raises(UnknownLeaderEpochError):
        PartitionSnapshot(ORDERS_0, None, Coverage(()), END, ()).check_epochs(0, FetchEpochs(last_fetched=0))


def test_a_read_begins_only_with_epochs_of_its_log(remote_log: RemoteLogManager) -> None:
    with BlockingLogReader(remote_log.open_log_reader()) as reader:
        for read in (reader.batches, reader.records, reader.tables):
            with pytest.raises(UnknownLeaderEpochError):
                next(read(ORDERS_0, 10, epochs=FetchEpochs(1)))
            with pytest.raises(OffsetOutOfRangeError):
                next(read(ORDERS_0, 31, epochs=FetchEpochs(0, 0)))
        assert list(reader.records(ORDERS_0, 10, epochs=FetchEpochs(0, 0))) == records(10, 30)


def test_a_leader_that_came_since_the_last_look_is_known(remote_log: RemoteLogManager) -> None:
    with BlockingLogReader(remote_log.open_log_reader()) as reader:
        assert reader.snapshot(ORDERS_0).leader_epoch == 0
        lineage = (EpochEntry(0, 0), EpochEntry(3, 30))
        remote_log.context.segments.put_lineage(ORDERS_0, lineage, held_by(remote_log, "test"))
        assert list(reader.records(ORDERS_0, 25, epochs=FetchEpochs(3, 0))) == records(25, 30)
        with pytest.raises(FencedLeaderEpochError, match=r"epoch 0 .*\b3 "):
            next(reader.records(ORDERS_0, 25, epochs=FetchEpochs(0, 0)))
