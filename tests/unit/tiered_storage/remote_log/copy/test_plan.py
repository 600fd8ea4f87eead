from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.command_line import mentions, run_on
from support.metadata_stores import a_segment, a_step
from support.remote_logs import (
    BATCH_BYTES,
    NOW,
    ORDERS_0,
    SEGMENT_BYTES,
    a_copied_remote_log,
    a_remote_log,
    batches_in,
    copy,
    flip_bit,
    held_by,
    local_log,
    location_of,
    partition_of,
    ranges,
    record,
    rewrite_segment,
    segments_of,
    topic_id,
)
from tiered_storage.errors import (
    ConfigurationError,
    CorruptRecordError,
    LogDirectoryLockedError,
    TieredStorageError,
    UnsupportedMagicError,
)
from tiered_storage.kafka_log.files.directory_lock import DirectoryLock
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry, write_leader_epochs
from tiered_storage.kafka_log.files.offset_checkpoint import (
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    write_offset_checkpoint,
)
from tiered_storage.kafka_log.files.partition_metadata import PARTITION_METADATA, write_topic_id
from tiered_storage.kafka_log.records.record_batch import encode_batch
from tiered_storage.kafka_wire.topic_configs import TopicConfigs
from tiered_storage.remote_log.copy.tasks import CopyPlan, PlannedSegment
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.metadata.remote_log_metadata_manager import Topic
from tiered_storage.remote_log.model import Finding, SegmentState, TopicIdPartition, TransientFinding
from tiered_storage.remote_log.selection import Selection
from tiered_storage.remote_log.source.log_directory_source import CLEANER_CHECKPOINT
from tiered_storage.remote_log.source.partition_log import PartitionLog, RollRules, UnsegmentedLog
from unit.tiered_storage.drawn_records import a_message_of_magic_1

FINISHED = SegmentState.COPY_SEGMENT_FINISHED
ENABLED = {"remote.storage.enable": True}


TOO_LONG = "t" * 233
"""With its id one byte more than a file system takes."""


def due(plan: CopyPlan) -> list[tuple[str, int, int]]:
    return [(str(one.topic_id_partition), one.base_offset, one.end_offset) for one in plan.segments]


def finish(
    remote_log: RemoteLogManager,
    start: int,
    end: int,
    *,
    state: SegmentState = FINISHED,
    epochs: tuple[tuple[int, int], ...] | None = None,
    of: TopicIdPartition = ORDERS_0,
) -> None:
    """Let the metadata know a remote segment, without its objects."""
    lease = held_by(remote_log, "test", of)
    segment = a_segment(lease, start, end, epochs=epochs)
    remote_log.context.segments.add_remote_log_segment_metadata(segment, lease)
    for step in SegmentState:
        if SegmentState.COPY_SEGMENT_STARTED < step <= state:
            remote_log.context.segments.update_remote_log_segment_metadata(a_step(segment, step), lease)
    remote_log.context.leases.release(lease)


def test_closed_segments_are_due_earliest_first_and_the_active_one_is_not(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)

    with files.open() as remote_log:
        plan = remote_log.plan_copy()

    assert plan.segments == tuple(
        PlannedSegment(
            ORDERS_0,
            location_of(files.partition_directory() / f"{base:020}.log"),
            base,
            base + 9,
            SEGMENT_BYTES,
            (EpochEntry(0, 0),),
        )
        for base in (0, 10, 20)
    )
    assert plan.size == 3 * SEGMENT_BYTES
    assert plan.partitions == [ORDERS_0]
    assert plan.refused == plan.unreadable == plan.notices == ()


def test_planning_changes_nothing(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)

    with files.open() as remote_log:
        assert remote_log.plan_copy() == remote_log.plan_copy()
        assert remote_log.context.segments.list_partitions() == []

    assert not files.store.exists()


@pytest.mark.parametrize(
    ("high_watermark", "bases"), [(0, []), (9, []), (10, [0]), (19, [0]), (20, [0, 10]), (35, [0, 10, 20])]
)
def test_a_segment_is_due_once_all_of_it_is_below_the_high_watermark(
    tmp_path: Path, high_watermark: int, bases: list[int]
) -> None:
    files = a_remote_log(tmp_path)
    write_offset_checkpoint(files.log_directory / HIGH_WATERMARK_CHECKPOINT, {("orders", 0): high_watermark})

    with files.open() as remote_log:
        assert [one.base_offset for one in remote_log.plan_copy().segments] == bases


def test_an_open_transaction_holds_back_the_segment_it_began_in(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)
    segment = files.local_segments()[1].log_path
    first, _ = batches_in(segment)
    opened = encode_batch(
        [record(offset) for offset in range(15, 20)],
        producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True,
    )  # fmt: skip
    rewrite_segment(segment, [first, opened])
    for snapshot in files.partition_directory().glob("*.snapshot"):
        snapshot.unlink()

    with files.open() as remote_log:
        assert due(remote_log.plan_copy()) == [("orders-0", 0, 9)]


def test_remote_segments_are_not_due_again(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)

    with files.open() as remote_log:
        assert remote_log.plan_copy().segments == ()


@pytest.mark.parametrize("state", [state for state in SegmentState if state is not FINISHED])
def test_a_segment_in_any_other_state_covers_nothing(tmp_path: Path, state: SegmentState) -> None:
    files = a_remote_log(tmp_path, {("orders", 0): 1})

    with files.open() as remote_log:
        finish(remote_log, 0, 9, state=SegmentState.COPY_SEGMENT_STARTED if state == 0 else state)
        assert due(remote_log.plan_copy()) == [("orders-0", 0, 9)]


def test_copies_of_another_leader_do_not_count(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)
    write_leader_epochs(files.partition_directory() / "leader-epoch-checkpoint", [EpochEntry(0, 0), EpochEntry(2, 15)])

    with files.open() as remote_log:
        finish(remote_log, 0, 9)
        finish(remote_log, 10, 19, epochs=((0, 10), (1, 12)))
        finish(remote_log, 20, 29, epochs=((2, 20),))
        plan = remote_log.plan_copy()

    assert due(plan) == [("orders-0", 10, 19)]
    assert plan.segments[0].lineage == (EpochEntry(0, 0), EpochEntry(2, 15))


def test_the_lineage_of_a_segment_reaches_up_to_its_end(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)
    write_leader_epochs(files.partition_directory() / "leader-epoch-checkpoint", [EpochEntry(0, 0), EpochEntry(2, 15)])

    with files.open() as remote_log:
        lineages = [one.lineage for one in remote_log.plan_copy().segments]

    assert lineages == [
        (EpochEntry(0, 0),),
        (EpochEntry(0, 0), EpochEntry(2, 15)),
        (EpochEntry(0, 0), EpochEntry(2, 15)),
    ]


def test_segments_with_other_boundaries_cover_what_they_hold_together(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)

    with files.open() as remote_log:
        finish(remote_log, 0, 14)
        finish(remote_log, 15, 22)
        assert due(remote_log.plan_copy()) == [("orders-0", 20, 29)]


def test_nothing_below_the_global_log_start_is_due(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)

    with files.open() as remote_log:
        lease = held_by(remote_log, "test")
        remote_log.context.segments.advance_log_start_offset(ORDERS_0, 10, lease)
        assert due(remote_log.plan_copy()) == [("orders-0", 10, 19), ("orders-0", 20, 29)]
        remote_log.context.segments.advance_log_start_offset(ORDERS_0, 15, lease)
        assert due(remote_log.plan_copy()) == [("orders-0", 10, 19), ("orders-0", 20, 29)]

        finish(remote_log, 15, 19)
        assert due(remote_log.plan_copy()) == [("orders-0", 20, 29)]


def test_segments_below_the_brokers_log_start_are_not_due_though_their_files_exist(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)
    write_offset_checkpoint(files.log_directory / LOG_START_OFFSET_CHECKPOINT, {("orders", 0): 15})

    with files.open() as remote_log:
        assert due(remote_log.plan_copy()) == [("orders-0", 10, 19), ("orders-0", 20, 29)]


def test_offsets_that_went_locally_before_they_were_copied_are_reported(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)
    with files.open() as remote_log:
        finish(remote_log, 0, 9)
        write_offset_checkpoint(files.log_directory / LOG_START_OFFSET_CHECKPOINT, {("orders", 0): 20})
        plan = remote_log.plan_copy()

    assert due(plan) == [("orders-0", 20, 29)]
    [notice] = plan.notices
    assert notice.partition == "orders-0"
    assert mentions(notice.message, "offsets 10 to 19", "never copied")


def test_topics_that_are_not_enabled_or_paused_or_not_asked_for_stay_out(tmp_path: Path) -> None:
    partitions = {("clicks", 0): 1, ("orders", 0): 1, ("paused", 0): 1, ("views", 0): 1}
    topics = {
        "clicks": {},
        "orders": ENABLED,
        "paused": {**ENABLED, "remote.log.copy.disable": True},
        "views": ENABLED,
    }
    files = a_remote_log(tmp_path, partitions, topics=topics)

    with files.open() as remote_log:
        assert due(remote_log.plan_copy()) == [("orders-0", 0, 9), ("views-0", 0, 9)]
        assert due(remote_log.plan_copy(Selection("v.*"))) == [("views-0", 0, 9)]
        assert due(remote_log.plan_copy(Selection("order"))) == []


def test_internal_topics_stay_out_though_somebody_enabled_them(tmp_path: Path) -> None:
    partitions = {("__consumer_offsets", 0): 1, ("__transaction_state", 0): 1}
    files = a_remote_log(tmp_path, partitions, topics={"__consumer_offsets": ENABLED, "__transaction_state": ENABLED})
    flip_bit(files.local_segments("__transaction_state")[-1].log_path, BATCH_BYTES - 1)

    with files.open() as remote_log:
        plan = remote_log.plan_copy()

    assert plan.segments == ()
    assert plan.refused == plan.unreadable == ()


def test_a_compacted_topic_is_refused_by_name_and_once(tmp_path: Path) -> None:
    partitions = {("clicks", 0): 1, ("clicks", 1): 1, ("orders", 0): 1, ("views", 0): 1, ("views", 1): 1}
    topics = {"clicks": {**ENABLED, "cleanup.policy": "compact"}, "orders": ENABLED, "views": ENABLED}
    files = a_remote_log(tmp_path, partitions, topics=topics)
    write_offset_checkpoint(files.log_directory / CLEANER_CHECKPOINT, {("views", 1): 3})

    with files.open() as remote_log:
        plan = remote_log.plan_copy()

    assert due(plan) == [("orders-0", 0, 9)]
    assert [finding.partition for finding in plan.refused] == ["clicks", "views"]
    assert "topic clicks has cleanup.policy=compact" in plan.refused[0].message
    assert "brokers compact views-0" in plan.refused[1].message


def test_an_unreadable_partition_stops_no_other_and_is_reported_with_the_reason(tmp_path: Path) -> None:
    partitions = {("clicks", 0): 1, ("orders", 0): 1, ("orders", 1): 1, ("views", 0): 1}
    files = a_remote_log(tmp_path, partitions, topics={"orders": ENABLED, "clicks": ENABLED})
    for topic, number in [("clicks", 0), ("orders", 1), ("views", 0)]:
        (files.partition_directory(topic, number) / "leader-epoch-checkpoint").write_text("1\n0\n")

    with files.open() as remote_log:
        plan = remote_log.plan_copy()
        orders = remote_log.plan_copy(Selection("orders"))

    assert due(plan) == [("orders-0", 0, 9)]
    assert [finding.partition for finding in plan.unreadable] == ["clicks-0", "orders-1"]
    assert "leader-epoch-checkpoint" in plan.unreadable[0].message
    assert [finding.partition for finding in plan.notices] == ["views-0"], "nobody asked to copy it"
    assert [finding.partition for finding in orders.unreadable] == ["orders-1"]


def test_settings_that_contradict_each_other_concern_only_their_topic(tmp_path: Path) -> None:
    partitions = {("clicks", 0): 1, ("orders", 0): 1}
    files = a_remote_log(tmp_path, partitions)

    with files.open() as remote_log:
        clicks = partition_of("clicks")
        remote_log.context.topics.put(
            Topic(
                clicks.cluster_id,
                clicks.topic_id,
                "clicks",
                remote_storage_enable=True,
                properties={"retention.ms": "5", "local.retention.ms": "6"},
            )
        )
        plan = remote_log.plan_copy()

    assert due(plan) == [("orders-0", 0, 9)]
    [finding] = plan.unreadable
    assert finding.partition == "clicks-0"
    assert "local.retention.ms is 6" in finding.message


def test_without_a_high_watermark_checkpoint_a_person_has_to_vouch_for_the_end(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path, {("orders", 0): 1})
    (files.log_directory / HIGH_WATERMARK_CHECKPOINT).unlink()

    with files.open() as remote_log:
        plan = remote_log.plan_copy()
    assert plan.segments == ()
    assert "log.end.is.stable" in plan.unreadable[0].message

    files.properties["log.end.is.stable"] = True
    with files.open() as remote_log:
        plan = remote_log.plan_copy()
    assert due(plan) == [("orders-0", 0, 9)]
    assert plan.unreadable == ()
    assert "replication-offset-checkpoint is missing" in plan.notices[0].message


def test_switched_off_as_a_whole_nothing_is_due_and_that_is_said(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path, remote_log_storage_system_enable=False)

    with files.open() as remote_log:
        plan = remote_log.plan_copy()
        assert copy(remote_log).committed == ()

    assert plan.segments == ()
    assert "remote.log.storage.system.enable is false" in plan.notices[0].message


def test_a_directory_in_use_is_not_planned(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)

    with (
        files.open() as remote_log,
        DirectoryLock.acquire(files.log_directory),
        pytest.raises(LogDirectoryLockedError),
    ):
        remote_log.plan_copy()


def test_a_selection_that_is_no_regular_expression_is_refused(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)

    with files.open() as remote_log, pytest.raises(ConfigurationError, match=r"'orders\('"):
        remote_log.plan_copy(Selection("orders("))


@pytest.mark.parametrize(
    ("window_end", "bases"),
    [
        (NOW + 9_999, []),
        (NOW + 10_000, [0]),
        (NOW + 29_999, [0, 10]),
        (NOW + 30_000, [0, 10, 20]),
        (NOW + 10**9, [0, 10, 20]),
    ],
)
def test_a_backfill_takes_segments_whose_successor_began_by_the_windows_end(
    tmp_path: Path, window_end: int, bases: list[int]
) -> None:
    files = a_remote_log(tmp_path)

    with files.open() as remote_log:
        assert [one.base_offset for one in remote_log.plan_copy(window_end=window_end).segments] == bases


@pytest.mark.parametrize(
    ("timestamp", "bases"),
    [(NOW + 10**9, [0]), (-1, [0]), (NOW - 10**9, [0, 10, 20])],
    ids=["far too late", "none", "too early"],
)
def test_a_bad_timestamp_can_only_hold_a_backfill_back(tmp_path: Path, timestamp: int, bases: list[int]) -> None:
    files = a_remote_log(tmp_path)
    segment = files.local_segments()[2].log_path
    _, second = batches_in(segment)
    rewrite_segment(
        segment, [encode_batch([replace(record(offset), timestamp=timestamp) for offset in range(20, 25)]), second]
    )

    with files.open() as remote_log:
        assert [one.base_offset for one in remote_log.plan_copy(window_end=NOW + 60_000).segments] == bases
        assert len(remote_log.plan_copy().segments) == 3


def test_a_backfill_does_not_skip_what_an_earlier_one_left(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)

    with files.open() as remote_log:
        finish(remote_log, 10, 19)
        assert due(remote_log.plan_copy(window_end=NOW + 60_000)) == [("orders-0", 0, 9), ("orders-0", 20, 29)]


def test_a_limit_takes_the_earliest_of_every_partition_in_turns(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path, {("orders", 0): 3, ("orders", 1): 1, ("orders", 2): 2})

    with files.open() as remote_log:
        plan = remote_log.plan_copy(max_segments=4)
        everything = remote_log.plan_copy(max_segments=6)

    assert due(plan) == [("orders-0", 0, 9), ("orders-0", 10, 19), ("orders-1", 0, 9), ("orders-2", 0, 9)]
    assert "2 more segments are due" in plan.notices[0].message
    assert len(everything.segments) == 6
    assert everything.notices == ()


def test_the_settings_limit_a_run_that_sets_no_limit_of_its_own(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path, copy_max_segments_per_run=2)

    with files.open() as remote_log:
        assert [one.base_offset for one in remote_log.plan_copy().segments] == [0, 10]
        assert len(remote_log.plan_copy(max_segments=3).segments) == 3


def test_a_topic_whose_name_the_store_can_never_hold_is_refused_and_the_others_continue(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path, {(TOO_LONG, 0): 1, (TOO_LONG, 1): 1, (TOO_LONG[1:], 0): 1, ("orders", 0): 1})
    with files.open() as remote_log:
        plan = remote_log.plan_copy()
        assert due(plan) == [("orders-0", 0, 9), (f"{TOO_LONG[1:]}-0", 0, 9)]
        [refused] = plan.refused
        assert refused.partition == TOO_LONG
        assert "a name of 256 bytes" in refused.message
        assert "S3" in refused.message
        assert copy(remote_log).is_whole


def test_a_cluster_id_that_makes_no_name_is_refused(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)
    (files.log_directory / "meta.properties").write_text("version=1\ncluster.id=a/b\nnode.id=1\n")
    with files.open() as remote_log:
        plan = remote_log.plan_copy()
        assert plan.is_empty
        [refused] = plan.refused
        assert "cluster id 'a/b'" in refused.message


def test_a_finding_names_its_partition_once() -> None:
    said = [
        str(finding)
        for finding in (
            Finding("orders-0", "it is locked"),
            TransientFinding("orders-0", "orders-0: it is locked"),
            Finding("", "it is locked"),
        )
    ]
    assert said == ["orders-0: it is locked", "orders-0: it is locked", "it is locked"]


# --------------------------------------------------------------------------------------------------- older formats


def test_segments_of_an_older_record_format_are_named_and_what_follows_them_waits(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path, {("orders", 0): 4, ("orders", 1): 1})
    for segment in files.local_segments()[:2]:
        message = a_message_of_magic_1(segment.base_offset)
        segment.log_path.write_bytes(message)

    for command in ("plan", "copy"):
        ended = run_on(files, command)

        said = " ".join((ended.out + ended.err).split())
        assert ended.exit_code == 1
        assert mentions(said, "offsets 0 to 19", "2 closed segments", "v0 or v1")
        assert "2 closed segments after" in said
        assert "kafka-delete-records those before 20" in said
    with files.open() as remote_log:
        plan = remote_log.plan_copy()
        assert plan.segments == ()
        assert [finding.partition for finding in plan.unreadable] == ["orders-0"]
        assert ranges(segments_of(remote_log, partition_of("orders", 1))) == [(0, 9)]

    # The broker deletes them on request.
    write_offset_checkpoint(files.log_directory / LOG_START_OFFSET_CHECKPOINT, {("orders", 0): 20})
    with files.open() as remote_log:
        assert copy(remote_log).is_whole
        assert ranges(segments_of(remote_log)) == [(20, 29), (30, 39)]


def test_a_segment_of_an_older_format_after_others_is_named_by_the_plan(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path, {("orders", 0): 4})
    older = files.local_segments()[1]
    older.log_path.write_bytes(a_message_of_magic_1(older.base_offset))

    for command in ("plan", "copy"):
        ended = run_on(files, command)

        said = " ".join((ended.out + ended.err).split())
        assert ended.exit_code == 1
        assert mentions(said, "offsets 10 to 19", "1 closed segments", "v0 or v1")
        assert "2 closed segments after" in said
    with files.open() as remote_log:
        assert ranges(segments_of(remote_log)) == [(0, 9)]


def test_a_closed_log_that_may_not_be_read_is_named_by_the_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = a_remote_log(tmp_path, {("orders", 0): 4})
    shut, really_open = files.local_segments()[1].log_path, os.open

    def opened(path: Any, *args: Any, **named: Any) -> Any:
        if str(path) == str(shut):
            raise PermissionError(13, "Permission denied", str(path))
        return really_open(path, *args, **named)

    monkeypatch.setattr(os, "open", opened)
    for command in ("plan", "copy"):
        ended = run_on(files, command)

        said = " ".join((ended.out + ended.err).split())
        assert ended.exit_code == 1
        assert mentions(said, shut, "[Errno 13]", "2 closed segments after")
    with files.open() as remote_log:
        assert ranges(segments_of(remote_log)) == [(0, 9)]


# ------------------------------------------------------------------------------------------------- lost topic ids


def test_a_topic_that_is_remote_is_not_copied_again_without_its_id(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    path = files.partition_directory() / PARTITION_METADATA
    kept, stored = path.read_bytes(), files.objects()
    path.unlink()

    for command in ("plan", "copy"):
        ended = run_on(files, command)

        said = " ".join((ended.out + ended.err).split())
        assert ended.exit_code == 1
        assert mentions(said, f"{path} is missing", topic_id("orders"), "derived id")
        assert f"'topic_id: {topic_id('orders')}'" in said
    assert files.objects() == stored

    path.write_bytes(kept)
    assert run_on(files, "copy").exit_code == 0


def test_another_topic_of_the_name_is_copied_under_an_id_of_its_own(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    write_topic_id(files.partition_directory() / PARTITION_METADATA, topic_id("created again"))

    assert run_on(files, "copy").exit_code == 0
    assert len(files.objects(".log")) == 6


def test_a_topic_that_never_had_an_id_is_copied_on(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)
    (files.partition_directory() / PARTITION_METADATA).unlink()
    assert run_on(files, "copy").exit_code == 0

    files.append(2)
    assert run_on(files, "copy").exit_code == 0
    assert len(files.objects(".log")) == 4


DAY = 86_400_000
LAST_OF_SECOND = NOW + 19_000
"""The largest timestamp of the second of the three closed segments, whose offsets are 10 to 19."""


@pytest.mark.parametrize(
    ("lag", "now", "bases"),
    [
        ({"remote.copy.lag.ms": DAY}, LAST_OF_SECOND + DAY, [0, 10]),
        ({"remote.copy.lag.ms": DAY}, LAST_OF_SECOND + DAY - 1, [0]),
        ({"remote.copy.lag.ms": DAY, "remote.copy.lag.bytes": 2 * SEGMENT_BYTES}, NOW, [0]),
        ({"remote.copy.lag.ms": DAY, "remote.copy.lag.bytes": 0}, NOW, [0, 10, 20]),
        ({"remote.copy.lag.bytes": 2 * SEGMENT_BYTES}, NOW, [0, 10, 20]),
        ({"remote.copy.lag.ms": -1, "local.retention.ms": DAY}, LAST_OF_SECOND + DAY, [0, 10]),
        ({"remote.copy.lag.ms": -1, "local.retention.ms": -1, "retention.ms": -1}, NOW + 1000 * DAY, []),
    ],
)
def test_a_closed_segment_waits_until_one_of_the_lags_of_its_topic_is_reached(
    tmp_path: Path, lag: dict[str, int], now: int, bases: list[int]
) -> None:
    files = a_remote_log(tmp_path, topics={"orders": {**ENABLED, **lag}})
    files.clock.now = now

    with files.open() as remote_log:
        plan = remote_log.plan_copy()

    assert [segment.base_offset for segment in plan.segments] == bases
    assert [str(3 - len(bases)) in notice.message for notice in plan.notices] == [True] * (len(bases) < 3)


def test_a_lag_for_all_topics_holds_where_a_topic_sets_none(tmp_path: Path) -> None:
    topics = {"orders": ENABLED, "clicks": {**ENABLED, "remote.copy.lag.ms": 0}}
    files = a_remote_log(tmp_path, {("orders", 0): 1, ("clicks", 0): 1}, topics=topics, log_remote_copy_lag_ms=7 * DAY)
    files.clock.now = NOW

    with files.open() as remote_log:
        assert due(remote_log.plan_copy()) == [("clicks-0", 0, 9)]


def test_a_lag_in_bytes_for_all_topics_holds_where_a_topic_sets_none(tmp_path: Path) -> None:
    topics = {"orders": ENABLED, "clicks": {**ENABLED, "remote.copy.lag.bytes": 0}}
    lags = {"log_remote_copy_lag_ms": 7 * DAY, "log_remote_copy_lag_bytes": 2 * SEGMENT_BYTES}
    files = a_remote_log(tmp_path, {("orders", 0): 3, ("clicks", 0): 2}, topics=topics, **lags)
    files.clock.now = NOW

    with files.open() as remote_log:
        assert due(remote_log.plan_copy()) == [("clicks-0", 0, 9), ("clicks-0", 10, 19), ("orders-0", 0, 9)]


@pytest.mark.parametrize("configs", [None, TopicConfigs.of({"retention.bytes": "1000"})])
@pytest.mark.parametrize(
    "error",
    [
        UnsupportedMagicError("old-0", 0, "record format v1"),
        CorruptRecordError("old-0", 0, "no batch"),
        ConfigurationError("old-0: nobody thought of this"),
    ],
)
def test_a_sample_that_cannot_be_read_stops_no_other_partition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: TieredStorageError, configs: TopicConfigs | None
) -> None:
    old, rules = partition_of("old"), RollRules(1000, 100_000, 1 << 20, 4096, 1 << 20)

    def sample(_: int) -> float:
        raise error

    def without_segments(log: PartitionLog) -> PartitionLog:
        unsegmented = UnsegmentedLog(rules, lambda _: 0, sample, lambda _: -1, lambda _: {})
        return replace(log, segments=(), unsegmented=unsegmented, configs=configs)

    with a_remote_log(tmp_path, {("old", 0): 4, ("orders", 0): 4}).open() as remote_log:
        logs = [log for log in remote_log.context.source.partitions() if isinstance(log, PartitionLog)]
        shown = [without_segments(log) if log.topic_id_partition == old else log for log in logs]
        monkeypatch.setattr(type(remote_log.context.source), "partitions", lambda _: iter(shown))
        plan = remote_log.plan_copy()

    assert plan.partitions == [ORDERS_0]
    assert plan.unreadable == (Finding(str(old), str(error)),)


def test_a_write_rate_that_cannot_be_read_is_named_and_the_partition_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = RollRules(SEGMENT_BYTES, 100_000, 1 << 20, 4096, 1 << 20)
    error = UnsupportedMagicError("orders-0", 0, "record format v1")
    samples = iter([float(SEGMENT_BYTES) / 10])

    def sample(_: int) -> float:
        for density in samples:
            return density
        raise error

    with a_remote_log(tmp_path).open() as remote_log:
        [log] = [log for log in remote_log.context.source.partitions() if isinstance(log, PartitionLog)]
        unsegmented = UnsegmentedLog(rules, lambda _: 0, sample, lambda _: -1, lambda _: {})
        shown = replace(log, segments=(), unsegmented=unsegmented, configs=TopicConfigs.of({"retention.bytes": "1000"}))
        monkeypatch.setattr(type(remote_log.context.source), "partitions", lambda _: iter([shown]))
        plan = remote_log.plan_copy()

    assert len(plan.segments) == 3
    assert plan.unreadable == (Finding(str(ORDERS_0), str(error)),)


@pytest.mark.parametrize("of_the_topic", [False, True], ids=["for all topics", "for the topic"])
def test_a_gap_is_an_error_until_somebody_decides_and_copied_over_an_alarm_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of_the_topic: bool
) -> None:
    rules = RollRules(SEGMENT_BYTES, 1 << 50, 1 << 20, 4096, 1 << 20)
    unsegmented = UnsegmentedLog(rules, lambda _: 0, lambda _: SEGMENT_BYTES / 10, lambda _: -1, lambda _: {})
    files = a_remote_log(tmp_path)

    def plan_from(log_start: int, *, copied: int | None = None) -> CopyPlan:
        with files.open() as remote_log:
            if copied is not None:
                finish(remote_log, copied, copied + 9)
            log = replace(local_log(remote_log), segments=(), log_start_offset=log_start, unsegmented=unsegmented)
            with monkeypatch.context() as patched:
                patched.setattr(type(remote_log.context.source), "partitions", lambda _: iter([log]))
                return remote_log.plan_copy()

    undecided = plan_from(20, copied=0)
    if of_the_topic:
        files.properties["topics"] = {"orders": {**ENABLED, "copy.over.gaps": True}}
    else:
        files.properties["copy.over.gaps"] = True
    empty = plan_from(35)
    gapped = plan_from(20)
    later = plan_from(20, copied=20)

    lost = "offsets 10 to 19"
    [refused] = undecided.unreadable
    assert mentions(refused.message, lost, "copy.over.gaps=true")
    assert (undecided.segments, undecided.alarms) == ((), ())
    assert set(due(gapped)) == {("orders-0", 20, 34)}
    [alarm] = gapped.alarms
    assert alarm in gapped.troubles
    assert mentions(alarm.message, lost, "lost", "offset 20", "(copy.over.gaps)")
    assert (gapped.unreadable, gapped.notices) == ((), ())
    assert gapped.without([Finding("orders-0", "forked")]).alarms == ()
    # Where nothing is due yet, a person reads of it, and the run that copies on raises the alarm.
    [notice] = empty.notices
    assert mentions(notice.message, "offsets 10 to 34", "they are lost")
    assert (empty.segments, empty.troubles) == ((), ())
    assert (later.troubles, later.notices) == ((), ())


def test_a_run_that_copies_nothing_of_a_partition_raises_no_alarm_of_its_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = RollRules(SEGMENT_BYTES, 1 << 50, 1 << 20, 4096, 1 << 20)
    unsegmented = UnsegmentedLog(rules, lambda _: 0, lambda _: SEGMENT_BYTES / 10, lambda _: -1, lambda _: {})
    files, second = (
        a_remote_log(tmp_path, {("orders", 0): 3, ("orders", 1): 3}, copy_over_gaps=True),
        partition_of("orders", 1),
    )

    with files.open() as remote_log:
        finish(remote_log, 0, 9, of=second)
        logs = [
            replace(local_log(remote_log, partition), segments=(), log_start_offset=log_start, unsegmented=unsegmented)
            for partition, log_start in ((ORDERS_0, 0), (second, 20))
        ]
        monkeypatch.setattr(type(remote_log.context.source), "partitions", lambda _: iter(logs))
        one, two = (remote_log.plan_copy(max_segments=most) for most in (1, 2))

    assert (due(one), one.alarms) == ([("orders-0", 0, 34)], ())
    assert [alarm.partition for alarm in two.alarms] == ["orders-1"]
