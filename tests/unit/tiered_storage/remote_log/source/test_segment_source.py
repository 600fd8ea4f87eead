from __future__ import annotations

from pathlib import Path

import pytest

from support.remote_logs import ORDERS_0, location_of
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.remote_log.source.partition_log import (
    LocalSegment,
    PartitionLog,
    UnreadablePartition,
    epochs_within,
)

LINEAGE = (EpochEntry(0, 0), EpochEntry(3, 15), EpochEntry(4, 20))


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (0, 9, [(0, 0)]),
        (10, 14, [(0, 10)]),
        (10, 15, [(0, 10), (3, 15)]),
        (15, 19, [(3, 15)]),
        (16, 25, [(3, 16), (4, 20)]),
        (0, 30, [(0, 0), (3, 15), (4, 20)]),
        (21, 30, [(4, 21)]),
    ],
)
def test_the_lineage_of_a_range_begins_where_the_range_does(
    start: int, end: int, expected: list[tuple[int, int]]
) -> None:
    assert epochs_within(LINEAGE, start, end) == tuple(EpochEntry(*entry) for entry in expected)


def test_a_range_outside_the_lineage_has_no_epochs() -> None:
    assert epochs_within((), 0, 9) == ()
    assert epochs_within((EpochEntry(3, 15),), 0, 9) == ()
    assert epochs_within((EpochEntry(3, 15),), 10, 19) == (EpochEntry(3, 15),)


def test_the_last_of_several_leaders_at_an_offset_wrote_it() -> None:
    assert epochs_within((EpochEntry(0, 0), EpochEntry(1, 10), EpochEntry(2, 10)), 10, 19) == (EpochEntry(2, 10),)


def test_the_active_segment_is_not_closed() -> None:
    closed = LocalSegment(0, 9, 100, location_of(Path("0.log")))
    active = LocalSegment(10, None, 50, location_of(Path("10.log")))
    log = PartitionLog(ORDERS_0, "orders-0", (closed, active), 0, 12, LINEAGE)

    assert log.closed_segments == [closed]
    assert active.is_active
    assert log.epochs_of(10, 15) == (EpochEntry(0, 10), EpochEntry(3, 15))


def test_an_unreadable_partition_has_its_topic() -> None:
    assert UnreadablePartition("web-clicks-12", "broken").topic == "web-clicks"
    assert UnreadablePartition("web-clicks-12", "broken").number == 12
    assert UnreadablePartition("web-clicks", "broken").number is None
    assert UnreadablePartition("__consumer_offsets-3", "broken").is_internal
    assert not UnreadablePartition("orders-3", "broken").is_internal
