"""Plans of local retention beside a running cluster, which shows no segments."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import pytest

from support.command_line import mentions
from tiered_storage.errors import ClusterRefusedError, LineageContradictedError, SourceClusterError
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.kafka_wire.metadata import TopicPartition
from tiered_storage.remote_log.model import (
    PartitionDeleteState,
    PartitionState,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    SegmentState,
    TopicIdPartition,
)
from tiered_storage.remote_log.retention.local.cluster_plan import (
    IgnoredReaders,
    RemoteSide,
    past_cluster_retention,
    plan_cluster_retention,
)
from tiered_storage.remote_log.retention.local.plan import LocalRetentionPlan
from tiered_storage.remote_log.source.cluster_trim import CommittedOffsets
from tiered_storage.remote_log.source.partition_log import PartitionLog, RollRules, UnsegmentedLog
from tiered_storage.settings.topics import TopicSettings

ORDERS_0 = TopicIdPartition("cluster", "A" * 22, 0, "orders")
LINEAGE = (EpochEntry(0, 0),)
NOW = 1_000_000
RULES = RollRules(1000, 100_000, 1 << 20, 4096, 1 << 20)
FOUR = [(0, 99), (100, 199), (200, 299), (300, 399)]
"""Segments of 1000 bytes; the largest timestamp of each is its last offset."""


def a_log(
    committed: Mapping[str, int] | None = None,
    *,
    start: int = 0,
    stable: int = 1000,
    lineage: tuple[EpochEntry, ...] = LINEAGE,
    unknown: Mapping[str, SourceClusterError] | None = None,
    elsewhere: Mapping[TopicPartition, Mapping[str, int]] | None = None,
) -> PartitionLog:
    groups = CommittedOffsets({TopicPartition("orders", 0): committed or {}, **(elsewhere or {})}, unknown or {})

    def known(ignored: Collection[str]) -> Mapping[str, int]:
        return groups.of(TopicPartition("orders", 0), ignored)

    unsegmented = UnsegmentedLog(RULES, lambda _: 0, lambda _: 0.0, lambda _: -1, known)
    return PartitionLog(ORDERS_0, "orders-0 of a test", (), start, stable, lineage, unsegmented=unsegmented)


def segment(start: int, end: int, epochs: tuple[EpochEntry, ...] | None = None) -> RemoteLogSegmentMetadata:
    return RemoteLogSegmentMetadata(
        RemoteLogSegmentId(ORDERS_0, f"{start:022}"),
        start,
        end,
        max_timestamp=end,
        event_timestamp=0,
        size=1000,
        leader_epochs=epochs or (EpochEntry(0, start),),
        state=SegmentState.COPY_SEGMENT_FINISHED,
    )


def remote(*ranges: tuple[int, int], state: PartitionState | None = None) -> RemoteSide:
    return RemoteSide(state or PartitionState(), [segment(*each) for each in ranges])


def planned(
    log: PartitionLog,
    known: RemoteSide | None = None,
    *,
    ms: int = 1,
    size: int = -1,
    ignored: IgnoredReaders | None = None,
    most: int | None = None,
) -> LocalRetentionPlan:
    topic = TopicSettings.model_validate({"local.retention.ms": ms, "local.retention.bytes": size})
    return plan_cluster_retention(log, known or remote(*FOUR), topic, NOW, ignored or IgnoredReaders(), most)


def offsets(plan: LocalRetentionPlan) -> list[tuple[int, int | None]]:
    return [(one.base_offset, one.end_offset) for one in plan.segments]


def test_a_trim_by_time_ends_with_a_remote_segment() -> None:
    assert offsets(planned(a_log(), ms=NOW - 200)) == FOUR[:2]
    assert planned(a_log(), ms=NOW - 200).new_local_start == 200
    assert planned(a_log(), ms=NOW).segments == ()
    assert planned(a_log(), ms=-1).segments == ()


@pytest.mark.parametrize(("limit", "expected"), [(4000, 0), (3001, 0), (3000, 1), (1000, 3), (0, 4), (-1, 0)])
def test_a_trim_by_size_leaves_the_limit(limit: int, expected: int) -> None:
    assert offsets(planned(a_log(), ms=-1, size=limit)) == FOUR[:expected]


def test_the_size_is_that_of_what_the_brokers_still_have() -> None:
    log = a_log(start=150)
    assert planned(log, ms=-1, size=2001).segments == ()
    [first] = planned(log, ms=-1, size=2000).segments
    assert (first.base_offset, first.end_offset, first.size) == (150, 199, 500)


def test_it_ends_where_records_are_not_stable() -> None:
    assert offsets(planned(a_log(stable=300))) == FOUR[:3]
    assert offsets(planned(a_log(stable=299))) == FOUR[:2]


def test_it_ends_at_a_gap_and_names_it_if_more_is_due() -> None:
    known = remote(FOUR[0], FOUR[1], FOUR[3])
    plan = planned(a_log(), known)
    assert offsets(plan) == FOUR[:2]
    assert mentions(plan.held_back, 200, 299)
    assert not plan.waits
    assert planned(a_log(), known, ms=NOW - 300).held_back is None


def test_records_below_the_global_log_start_stay() -> None:
    plan = planned(a_log(), remote(*FOUR[2:], state=PartitionState(log_start_offset=200)))
    assert plan.segments == ()
    assert mentions(plan.held_back, "global log start", 0, 199)
    assert offsets(planned(a_log(start=200), remote(*FOUR[2:]))) == FOUR[2:]


def test_every_group_holds_back_what_it_has_not_read() -> None:
    plan = planned(a_log({"late": 250, "later": 350, "done": 1000}))
    assert offsets(plan) == FOUR[:2]
    assert plan.waits
    assert mentions(plan.held_back, "late at offset 250", 200, 299)
    assert not mentions(plan.held_back, "later at offset")
    assert offsets(planned(a_log({"late": 200}))) == FOUR[:2]
    assert offsets(planned(a_log({"done": 400}))) == FOUR
    assert planned(a_log({"at-the-start": 0})).segments == ()


def test_without_groups_nothing_holds_it_back_and_the_plan_notes_it() -> None:
    [note] = planned(a_log()).notes
    assert mentions(note, "none has committed")
    assert planned(a_log({"done": 400})).notes == ()
    assert planned(a_log(), ms=NOW).notes == ()


def test_groups_and_topics_that_are_named_hold_nothing_back() -> None:
    log = a_log({"late": 150, "done": 400})
    plan = planned(log, ignored=IgnoredReaders(frozenset({"late"})))
    assert offsets(plan) == FOUR
    [note] = plan.notes
    assert mentions(note, "late", 150, 399)
    plan = planned(log, ignored=IgnoredReaders(topics=frozenset({"orders"})))
    assert offsets(plan) == FOUR
    assert mentions(plan.notes[0], "local.retention.topics.ignoring.groups")
    assert offsets(planned(log, ignored=IgnoredReaders(topics=frozenset({"other"})))) == FOUR[:1]


def test_a_group_of_which_nothing_is_known_holds_back_everything_unless_it_is_named() -> None:
    log = a_log({"done": 400}, unknown={"queue": ClusterRefusedError("it is a share group")})
    with pytest.raises(ClusterRefusedError, match=r"queue.*local\.retention\.ignored\.groups"):
        planned(log)
    assert offsets(planned(log, ignored=IgnoredReaders(frozenset({"queue"})))) == FOUR
    assert planned(log, ms=NOW).segments == ()


def test_a_group_that_has_committed_other_partitions_only_holds_back_everything_unless_it_is_named() -> None:
    others = {TopicPartition("orders", 1): {"lags": 70, "done": 400}, TopicPartition("other", 0): {"elsewhere": 5}}
    log = a_log({"done": 400}, start=100, elsewhere=others)
    plan = planned(log)
    assert plan.segments == ()
    assert plan.waits
    assert mentions(plan.held_back, "lags", "other partitions", 100, 199)
    assert not mentions(plan.held_back, "elsewhere")
    # Nobody has committed anything of this one.
    assert planned(a_log(elsewhere=others)).segments == ()
    named = planned(log, ignored=IgnoredReaders(frozenset({"lags"})))
    assert offsets(named) == FOUR[1:]
    [note] = named.notes
    assert mentions(note, "lags", "loses offsets 100 to 399")


def test_a_run_may_be_limited_to_the_oldest() -> None:
    plan = planned(a_log({"late": 250}), most=1)
    assert (offsets(plan), plan.new_local_start, plan.held_back) == (FOUR[:1], 100, None)


def test_only_what_is_on_the_lineage_counts() -> None:
    # Epoch 1 truncated the log at 150 and wrote its own: the remote segments of epoch 0 hold nothing from there on.
    forked = (EpochEntry(0, 0), EpochEntry(1, 150))
    plan = planned(a_log(lineage=forked))
    assert offsets(plan) == [(0, 99), (100, 149)]
    written = RemoteSide(
        PartitionState(lineage=LINEAGE),
        [*(segment(*each) for each in FOUR), segment(150, 420, (EpochEntry(1, 150),))],
    )
    assert offsets(planned(a_log(lineage=forked), written)) == [(0, 99), (100, 149), (150, 420)]
    later = PartitionState(lineage=(EpochEntry(0, 0), EpochEntry(2, 150)))
    with pytest.raises(LineageContradictedError, match=r"bootstrap\.servers") as refused:
        planned(a_log(), remote(*FOUR, state=later))
    assert "log.dirs" not in str(refused.value)


def test_a_topic_without_id_or_being_deleted_is_not_trimmed() -> None:
    derived = planned(replace(a_log(), topic_id_is_derived=True))
    assert derived.segments == ()
    assert mentions(derived.held_back, "no id")
    deleted = planned(a_log(), remote(*FOUR, state=PartitionState(delete_state=PartitionDeleteState.MARKED)))
    assert deleted.segments == ()
    assert deleted.held_back


def test_a_plan_is_carried_out_only_as_far_as_it_holds_later() -> None:
    plan = planned(a_log())
    assert plan.start_in(planned(a_log())) == 400
    assert plan.start_in(planned(a_log({"late": 250}))) == 200
    assert plan.start_in(planned(a_log(start=400))) == 0
    [first, *_] = plan.steps(1000)
    assert (offsets(first), first.new_local_start) == (FOUR[:1], 100)


def test_records_past_retention_are_shown_though_somebody_still_reads_them() -> None:
    topic = TopicSettings.model_validate({"local.retention.ms": 1})
    found = past_cluster_retention(a_log({"late": 0}), remote(*FOUR), topic, NOW)
    assert (found.segments, found.size) == (4, 4000)
