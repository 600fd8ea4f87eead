"""What a plan takes of a log whose segments only its brokers see."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from tiered_storage.errors import SourceClusterError
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.remote_log.copy.roll_plan import Gap, PlannedRolls, RollTimes, find_gap, plan_rolls
from tiered_storage.remote_log.coverage import Coverage
from tiered_storage.remote_log.model import (
    PartitionState,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    SegmentState,
    TopicIdPartition,
)
from tiered_storage.remote_log.source.partition_log import PartitionLog, RollRules, UnsegmentedLog
from tiered_storage.settings.topics import TopicSettings

ORDERS_0 = TopicIdPartition("cluster", "A" * 22, 0, "orders")
LINEAGE = (EpochEntry(0, 0),)
NOW = 1_000_000
RULES = RollRules(
    segment_bytes=1000, segment_ms=100_000, segment_index_bytes=1 << 20, index_interval_bytes=4096, fetch_bytes=1 << 20
)
NO_LAG = TopicSettings.model_validate({"remote.copy.lag.ms": 0, "remote.copy.lag.bytes": 0})


@dataclass
class FakeLog:
    """Offset n has the timestamp 1000 * n, and takes `density` bytes. Without a size, 101 offsets are a segment."""

    end: int
    start: int = 0
    density: float = 10.0

    def at(self, timestamp: int) -> int:
        return max(self.start, min(self.end, -(-timestamp // 1000)))

    @property
    def unsegmented(self) -> UnsegmentedLog:
        return UnsegmentedLog(RULES, self.at, lambda _: self.density, lambda offset: 1000 * offset, lambda _: {})

    @property
    def log(self) -> PartitionLog:
        return PartitionLog(
            ORDERS_0, "orders-0 of a test", (), self.start, self.end, LINEAGE, unsegmented=self.unsegmented
        )


def remote(*ranges: tuple[int, int], size: int = 1000) -> Coverage:
    segments = [
        RemoteLogSegmentMetadata(
            RemoteLogSegmentId(ORDERS_0, f"{start:022}"),
            start,
            end,
            max_timestamp=0,
            event_timestamp=0,
            size=size,
            leader_epochs=(EpochEntry(0, start),),
            state=SegmentState.COPY_SEGMENT_FINISHED,
        )
        for start, end in ranges
    ]
    return Coverage.of(segments, LINEAGE)


def planned(
    fake: FakeLog,
    coverage: Coverage | None = None,
    *,
    state: PartitionState | None = None,
    topic: TopicSettings = NO_LAG,
    now: int = NOW,
    window_end: int | None = None,
    limit: int | None = None,
) -> PlannedRolls | None:
    known = state or PartitionState()
    times = RollTimes(now, window_end)
    return plan_rolls(fake.log, fake.unsegmented, coverage or remote(), known, topic, times, limit)


def test_a_first_copy_begins_where_the_brokers_log_does() -> None:
    assert planned(FakeLog(end=350, start=20), now=0) == PlannedRolls(20, 349, (1000, 1000, 1000))


def test_a_copy_continues_where_the_remote_log_ends_at_its_density() -> None:
    # 100 offsets took 500 bytes: 5 each, whatever a sample says.
    assert planned(FakeLog(end=500), remote((0, 99), size=500), now=0) == PlannedRolls(100, 499, (1000, 1000))


def test_records_that_became_larger_do_not_wait_for_their_age() -> None:
    fake = FakeLog(end=300, density=50.0)
    # By the last remote segment, one byte an offset, these 200 offsets would be far from a segment for days.
    assert planned(fake, remote((0, 99), size=100), now=0) == PlannedRolls(100, 299, (1000,) * 10)


def test_one_large_record_makes_no_segment() -> None:
    fake = FakeLog(end=300)
    unsegmented = replace(fake.unsegmented, bytes_an_offset=lambda offset: 900.0 if offset == 299 else 1.0)
    assert (
        plan_rolls(fake.log, unsegmented, remote((0, 99), size=100), PartitionState(), NO_LAG, RollTimes(0), None)
        is None
    )


def test_a_burst_between_the_samples_shows_in_the_size_on_disk() -> None:
    fake = FakeLog(end=300, density=1.0)
    known, one_a_record = PartitionState(), remote((0, 99), size=100)

    def planned(size: int) -> PlannedRolls | None:
        unsegmented = replace(fake.unsegmented, size_on_disk=size)
        return plan_rolls(fake.log, unsegmented, one_a_record, known, NO_LAG, RollTimes(0), None)

    # 100 bytes are remote, and a broker may have a segment of 1000 bytes that begins before the log start.
    assert planned(100 + 1000 + 999) is None
    assert planned(100 + 1000 + 3500) == PlannedRolls(100, 299, (1000,) * 3)


def test_no_sample_is_taken_of_a_log_that_has_too_few_bytes_for_a_segment() -> None:
    fake = FakeLog(end=300, density=50.0)
    unsegmented = replace(fake.unsegmented, size_on_disk=100 + 999)
    assert (
        plan_rolls(fake.log, unsegmented, remote((0, 99), size=100), PartitionState(), NO_LAG, RollTimes(0), None)
        is None
    )


def test_bytes_above_the_last_stable_offset_are_not_planned() -> None:
    fake = FakeLog(end=300, density=1.0)
    unsegmented = replace(fake.unsegmented, size_on_disk=50_000)
    unstable = replace(fake.log, high_watermark=400)
    assert (
        plan_rolls(unstable, unsegmented, remote((0, 99), size=100), PartitionState(), NO_LAG, RollTimes(0), None)
        is None
    )


def test_without_a_moment_nothing_waits_and_no_tail_is_rolled() -> None:
    fake, never = (
        FakeLog(end=350),
        TopicSettings.model_validate({"remote.copy.lag.ms": -1, "remote.copy.lag.bytes": -1}),
    )
    timeless = RollTimes(None)
    found = plan_rolls(fake.log, fake.unsegmented, remote(), PartitionState(), never, timeless, None)
    assert found == PlannedRolls(0, 349, (1000,) * 3)
    tail = remote((0, 299), size=3000)
    assert plan_rolls(fake.log, fake.unsegmented, tail, PartitionState(), NO_LAG, timeless, None) is None


def test_less_than_a_segment_waits_until_its_first_record_is_old() -> None:
    young = FakeLog(end=1000, start=950)
    assert planned(young, now=950_000 + RULES.segment_ms - 1) is None
    assert planned(young, now=950_000 + RULES.segment_ms) == PlannedRolls(950, 999, (500,))


def test_less_than_a_segment_does_not_wait_until_the_brokers_delete_it() -> None:
    short = replace(RULES, retention_ms=RULES.segment_ms // 2)
    fake = FakeLog(end=1000, start=950)
    unsegmented = replace(fake.unsegmented, rules=short)
    for age, expected in ((24_999, None), (25_000, PlannedRolls(950, 999, (500,)))):
        found = plan_rolls(fake.log, unsegmented, remote(), PartitionState(), NO_LAG, RollTimes(950_000 + age), None)
        assert found == expected
    assert replace(RULES, retention_ms=-1).tail_ms == RULES.segment_ms


def test_every_segment_that_rolled_by_time_is_due() -> None:
    fake = FakeLog(end=350, density=1.0)
    # Offset 303 begins the last one: its broker has not closed it, and it is young until its first record is not.
    assert planned(fake, now=303_000 + RULES.segment_ms - 1) == PlannedRolls(0, 349, (101,) * 3)
    assert planned(fake, now=303_000 + RULES.segment_ms) == PlannedRolls(0, 349, (101, 101, 101, 47))
    assert planned(fake, now=NOW, limit=2) == PlannedRolls(0, 349, (101,) * 2)


def test_segments_roll_by_size_and_by_time() -> None:
    # 80 offsets are a segment by size; the rest of a segment's time is in the next one.
    fake = FakeLog(end=350, density=12.5)
    assert planned(fake) == PlannedRolls(0, 349, (1000, 1000, 1000, 1000, 375))


def test_rolls_by_time_are_estimated_after_some() -> None:
    found = planned(FakeLog(end=101 * 250, density=1.0), now=101 * 250_000 + RULES.segment_ms)
    assert found is not None
    assert found.sizes == (101,) * 250


@pytest.mark.parametrize(("bad", "expected"), [(101, (101,)), (303, (101,) * 3)])
def test_what_cannot_be_looked_up_holds_back_nothing_before_it(bad: int, expected: tuple[int, ...]) -> None:
    fake = FakeLog(end=350, density=1.0)

    def timestamp_at(offset: int) -> int:
        if offset >= bad:
            raise SourceClusterError("a bad sector")
        return 1000 * offset

    unsegmented = replace(fake.unsegmented, timestamp_at=timestamp_at)
    found = plan_rolls(fake.log, unsegmented, remote(), PartitionState(), NO_LAG, RollTimes(NOW), None)
    assert found == PlannedRolls(0, 349, expected)
    with pytest.raises(SourceClusterError, match="a bad sector"):
        plan_rolls(
            replace(fake.log, log_start_offset=bad),
            unsegmented,
            remote(),
            PartitionState(),
            NO_LAG,
            RollTimes(NOW),
            None,
        )


def test_a_later_timestamp_before_the_copy_holds_no_old_segment_back() -> None:
    fake = FakeLog(end=350, density=1.0)

    def at(timestamp: int) -> int:
        # Offset 50 claims to be from the last offset's time.
        return min(fake.at(timestamp), 50) if timestamp < 349_000 else fake.at(timestamp)

    unsegmented = replace(fake.unsegmented, offset_at=at)
    found = plan_rolls(fake.log, unsegmented, remote((0, 99), size=100), PartitionState(), NO_LAG, RollTimes(NOW), None)
    assert found == PlannedRolls(100, 349, (1,))


def test_nothing_is_due_of_a_log_that_is_all_remote_or_empty() -> None:
    assert planned(FakeLog(end=100), remote((0, 99))) is None
    assert planned(FakeLog(end=0)) is None


def test_a_run_rolls_no_more_segments_than_it_may() -> None:
    assert planned(FakeLog(end=1000), limit=3) == PlannedRolls(0, 999, (1000,) * 3)


def test_a_backfill_takes_what_was_written_up_to_its_windows_end() -> None:
    assert planned(FakeLog(end=1000), window_end=299_999) == PlannedRolls(0, 299, (1000,) * 3)
    assert planned(FakeLog(end=1000), window_end=-1) is None


@pytest.mark.parametrize(
    ("lags", "end"),
    [
        ({"remote.copy.lag.ms": 200_000, "remote.copy.lag.bytes": -1}, 800),
        ({"remote.copy.lag.ms": -1, "remote.copy.lag.bytes": 4000}, 599),
        ({"remote.copy.lag.ms": 200_000, "remote.copy.lag.bytes": 4000}, 800),
    ],
)
def test_records_wait_for_one_of_the_topics_lags(lags: dict[str, int], end: int) -> None:
    topic = TopicSettings.model_validate(lags)
    found = planned(FakeLog(end=1000), topic=topic)
    assert found is not None
    assert found.end_offset == end


def test_a_topic_whose_lags_are_never_reached_is_not_copied() -> None:
    never = TopicSettings.model_validate({"remote.copy.lag.ms": -1, "remote.copy.lag.bytes": -1})
    assert planned(FakeLog(end=1000), topic=never) is None


def test_offsets_that_the_brokers_deleted_before_their_copy_are_a_gap() -> None:
    fake, state = FakeLog(end=1000, start=150), PartitionState()
    assert find_gap(fake.log, remote((0, 99)), state) == Gap(100, 149)
    assert planned(fake, remote((0, 99))) == PlannedRolls(150, 999, (1000,) * 8)


def test_offsets_below_the_global_log_start_are_no_gap() -> None:
    assert find_gap(FakeLog(end=1000, start=150).log, remote(), PartitionState()) is None
    moved = PartitionState(log_start_offset=200)
    assert find_gap(FakeLog(end=1000, start=150).log, remote((0, 99)), moved) is None
    assert planned(FakeLog(end=1000, start=150), remote((0, 99)), state=moved) == PlannedRolls(200, 999, (1000,) * 8)


def test_an_expired_remote_log_continues_at_the_global_log_start() -> None:
    state = PartitionState(log_start_offset=100)
    assert find_gap(FakeLog(end=1000, start=150).log, remote(), state) == Gap(100, 149)
    assert find_gap(FakeLog(end=1000, start=50).log, remote(), replace(state)) is None


def test_closed_segments_of_the_leader_are_due_as_they_are() -> None:
    fake, asked = FakeLog(end=500), list[tuple[int, int]]()

    def sizes(start: int, end: int) -> list[int]:
        asked.append((start, end))
        return [400, 500, 600]

    unsegmented = replace(fake.unsegmented, closed_sizes=sizes)
    for limit, expected in ((None, (400, 500, 600)), (2, (400, 500))):
        found = plan_rolls(fake.log, unsegmented, remote((0, 99)), PartitionState(), NO_LAG, RollTimes(0), limit)
        assert found == PlannedRolls(100, 499, expected)
    assert asked == [(100, 499)] * 2


def test_without_a_closed_segment_of_the_leader_only_an_old_tail_is_due() -> None:
    # However large it is: the broker has not closed it.
    fake = FakeLog(end=1000, start=500)
    unsegmented = replace(fake.unsegmented, closed_sizes=lambda *_: [])
    for age, expected in ((RULES.segment_ms - 1, None), (RULES.segment_ms, PlannedRolls(500, 999, (5000,)))):
        times = RollTimes(500_000 + age)
        assert plan_rolls(fake.log, unsegmented, remote(), PartitionState(), NO_LAG, times, None) == expected
