from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from support.clocks import FakeTime
from support.remote_logs import ORDERS_0, a_remote_log, begin, carry_out, partition_of
from tiered_storage.errors import MetadataUnavailableError, ReadTimedOutError
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.remote_log.coverage import Coverage
from tiered_storage.remote_log.model import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    SegmentState,
    TopicIdPartition,
)
from tiered_storage.remote_log.read.chunks.fetch_deadline import FetchDeadline, ReadTiming
from tiered_storage.remote_log.read.chunks.reader_pools import ReaderPool
from tiered_storage.remote_log.read.partition_snapshot import (
    MOST_SECONDS_FOR_WAITING,
    PartitionSnapshot,
    PartitionSnapshots,
    snapshot_partition,
)

P = [partition_of("orders", number) for number in range(4)]


def in_time(time: FakeTime, wait_ms: int = 10_000) -> FetchDeadline:
    return FetchDeadline.after(wait_ms, ReadTiming(time.now, time.sleep))


def a_view(partition: TopicIdPartition, segments: int = 0) -> PartitionSnapshot:
    """Return a snapshot with `segments` remote segments of ten offsets each."""
    epochs = (EpochEntry(0, 0),)
    found = [
        RemoteLogSegmentMetadata(
            RemoteLogSegmentId(partition, f"{number:022}"), 10 * number, 10 * number + 9, 1, 1, 1, epochs,
            SegmentState.COPY_SEGMENT_FINISHED,
        )
        for number in range(segments)
    ]  # fmt: skip
    return PartitionSnapshot(partition, None, Coverage.of(found, epochs), 0, epochs)


class Looks:
    """Builds snapshots of partitions, each within `cost` seconds, and records in `at` for which partitions."""

    def __init__(self, cost: float = 0, segments: int = 0) -> None:
        self.time = FakeTime()
        self.cost = cost
        self.segments = segments
        self.at: list[TopicIdPartition] = []
        self.before: Callable[[], object] = lambda: None

    def __call__(self, partition: TopicIdPartition) -> PartitionSnapshot:
        self.at.append(partition)
        self.before()
        self.time.seconds += self.cost
        return a_view(partition, self.segments)

    def snapshots(self, max_age_ms: int = 1000, most_segments: int = 1000) -> PartitionSnapshots:
        timing = ReadTiming(self.time.now, self.time.sleep)
        return PartitionSnapshots(self, ReaderPool("looks", 2), max_age_ms, timing, most_segments)


def test_a_view_is_looked_at_again_when_it_is_too_old() -> None:
    looks = Looks()
    snapshots = looks.snapshots()
    for passed, expected in ((0, 1), (1.0, 1), (0.1, 2), (0.5, 2)):
        looks.time.seconds += passed
        asyncio.run(snapshots.get(P[0], in_time(looks.time)))
        assert len(looks.at) == expected


def test_a_view_may_be_twenty_times_as_old_as_it_took_to_build() -> None:
    looks = Looks(cost=2)
    snapshots = looks.snapshots()
    asyncio.run(snapshots.get(P[0], in_time(looks.time)))
    looks.time.seconds += 39
    asyncio.run(snapshots.get(P[0], in_time(looks.time)))
    assert len(looks.at) == 1
    looks.time.seconds += 2
    asyncio.run(snapshots.get(P[0], in_time(looks.time)))
    assert len(looks.at) == 2


@pytest.mark.parametrize(("waited", "fresh_for"), [(0.3, 6.0), (60.0, MOST_SECONDS_FOR_WAITING)])
def test_a_view_that_waited_for_a_thread_is_used_for_longer(waited: float, fresh_for: float) -> None:
    looks, proceed = Looks(), threading.Event()
    timing = ReadTiming(looks.time.now, looks.time.sleep)
    snapshots = PartitionSnapshots(looks, ReaderPool("looks", 1), 1000, timing)
    looks.before = lambda: proceed.wait(10)

    async def ask() -> None:
        asking = [asyncio.create_task(snapshots.get(each, in_time(looks.time, 100_000))) for each in P[:2]]
        await asyncio.sleep(0)
        looks.time.seconds += waited
        proceed.set()
        await asyncio.gather(*asking)

    asyncio.run(ask())
    looks.time.seconds += fresh_for - 0.1
    assert snapshots.fresh(P[1]) is not None
    looks.time.seconds += 0.2
    assert snapshots.fresh(P[1]) is None


def test_concurrent_readers_share_a_snapshot_and_a_refresh_builds_a_new_one() -> None:
    looks, proceed = Looks(), threading.Event()
    looks.before = lambda: proceed.wait(10)
    snapshots = looks.snapshots()

    async def ask() -> None:
        asking = [asyncio.create_task(snapshots.get(P[0], in_time(looks.time))) for _ in range(3)]
        knowing = [asyncio.create_task(snapshots.refreshed(P[0], in_time(looks.time))) for _ in range(20)]
        await asyncio.sleep(0)
        proceed.set()
        await asyncio.gather(*asking, *knowing)

    asyncio.run(ask())
    # The second look may have ended before the last of them asked for it.
    assert 2 <= len(looks.at) < 10


def test_repeated_refreshes_leave_the_thread_idle_half_of_the_time_and_are_up_to_date() -> None:
    looks = Looks(cost=2)
    snapshots = looks.snapshots()
    begun = looks.time.seconds
    for asked in range(10):
        looks.segments = asked
        snapshot = asyncio.run(snapshots.refreshed(P[0], in_time(looks.time)))
        assert len(snapshot.coverage.ranges) == asked
    spent = looks.cost * len(looks.at)
    assert len(looks.at) == 10
    assert looks.time.seconds - begun >= 2 * (spent - looks.cost)


def test_all_who_must_know_while_a_look_is_under_way_share_the_next_one() -> None:
    looks, proceed = Looks(cost=2), threading.Event()
    looks.before = lambda: proceed.wait(10)
    snapshots = looks.snapshots()

    async def ask() -> None:
        earlier = asyncio.create_task(snapshots.get(P[0], in_time(looks.time)))
        await asyncio.sleep(0)
        looks.segments = 7
        knowing = [asyncio.create_task(snapshots.refreshed(P[0], in_time(looks.time, 60_000))) for _ in range(20)]
        await asyncio.sleep(0)
        proceed.set()
        await earlier
        assert {len(snapshot.coverage.ranges) for snapshot in await asyncio.gather(*knowing)} == {7}

    asyncio.run(ask())
    assert len(looks.at) == 2


def test_a_reader_without_time_for_the_next_look_gets_an_error_and_begins_none() -> None:
    looks = Looks(cost=2)
    snapshots = looks.snapshots()
    asyncio.run(snapshots.get(P[0], in_time(looks.time)))
    with pytest.raises(ReadTimedOutError, match=r"orders-0.*\b500 ms"):
        asyncio.run(snapshots.refreshed(P[0], in_time(looks.time, 500)))
    assert len(looks.at) == 1


def test_no_more_segments_are_kept_than_may_be_and_the_last_view_always_is() -> None:
    looks = Looks(segments=400)
    snapshots = looks.snapshots()
    for partition in P[:3]:
        asyncio.run(snapshots.get(partition, in_time(looks.time)))
    assert [snapshots.fresh(partition) is not None for partition in P] == [False, True, True, False]
    looks.segments = 5000
    asyncio.run(snapshots.get(P[3], in_time(looks.time)))
    assert [snapshots.fresh(partition) is not None for partition in P] == [False, False, False, True]


def test_a_failed_look_is_reported_and_not_kept() -> None:
    looks = Looks()
    snapshots = looks.snapshots()

    def fail() -> None:
        raise MetadataUnavailableError("locked")

    looks.before = fail
    for _ in range(2):
        with pytest.raises(MetadataUnavailableError):
            asyncio.run(snapshots.get(P[0], in_time(looks.time)))
    looks.before = lambda: None
    assert asyncio.run(snapshots.get(P[0], in_time(looks.time))).partition == P[0]
    assert len(looks.at) == 3


def test_an_offset_is_found_in_the_segment_that_has_it() -> None:
    snapshot = a_view(P[0], 50)
    for offset in range(500):
        found = snapshot.remote_range(offset)
        assert found is not None
        assert found.start_offset <= offset <= found.end_offset
    assert snapshot.remote_range(500) is None


def test_a_view_shows_what_a_copy_under_way_may_make_remote(tmp_path: Path) -> None:
    with a_remote_log(tmp_path, {("orders", 0): 3}).open() as remote_log:
        before = snapshot_partition(ORDERS_0, None, remote_log.context.segments)
        begun = begin(remote_log)
        during = snapshot_partition(ORDERS_0, None, remote_log.context.segments)
        remote_log.commit_copy(carry_out(remote_log, begun))
        after = snapshot_partition(ORDERS_0, None, remote_log.context.segments)

    end = after.remote_end
    assert end > 1
    assert [snapshot.may_become_remote(0, end) for snapshot in (before, during, after)] == [False, True, False]
    assert during.may_become_remote(end - 1, end + 5)
    assert not during.may_become_remote(end, end + 5)
