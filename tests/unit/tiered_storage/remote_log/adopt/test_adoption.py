"""Adopt what Kafka itself tiered: whole topics, with deletions, leader changes, aborts, crashes and failures."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from contract.sources import log_directory_under_test
from support.command_line import mentions, run_on
from support.native_tier import NativeTier, a_native_tier, finish_of, tier_closed, tiered
from support.remote_logs import (
    LOG_CONFIG,
    NOW,
    ORDERS_0,
    RemoteLogFiles,
    a_copied_remote_log,
    a_remote_log,
    assert_clean,
    carry_out,
    offsets_read,
    partition_of,
    ranges,
    records,
    segments_of,
    topic_id,
    unsynced,
)
from support.simulated_crashes import dies_at
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.kafka_log.files.offset_checkpoint import LOG_START_OFFSET_CHECKPOINT, write_offset_checkpoint
from tiered_storage.kafka_log.log.log_directory_writer import LogDirectoryWriter
from tiered_storage.remote_log.adopt import adoption as adoption_module
from tiered_storage.remote_log.adopt.adoption import Adoption
from tiered_storage.remote_log.coverage import finished
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.model import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
)
from tiered_storage.remote_log.read.blocking_reader import BlockingLogReader
from tiered_storage.remote_log.read.read_values import Isolation

FINISHED = "COPY_SEGMENT_FINISHED"
STEPS = 60
"""More writes to store and metadata than an adoption of three segments in three rounds does."""


@pytest.fixture
def tier(tmp_path: Path) -> NativeTier:
    found = a_native_tier(tmp_path / "kafka")
    found.files.properties["log.dirs"] = []
    shows_log_starts(found, 0)
    return found


def shows_log_starts(tier: NativeTier, *log_starts: int) -> None:
    """Let the broker's checkpoint name the log starts of orders-0, orders-1 and so on, as one that tiers does."""
    offsets = {("orders", number): offset for number, offset in enumerate(log_starts)}
    write_offset_checkpoint(tier.files.log_directory / LOG_START_OFFSET_CHECKPOINT, offsets)


@pytest.fixture
def ours(tmp_path: Path) -> RemoteLogFiles:
    return our_remote_log(tmp_path)


def our_remote_log(root: Path) -> RemoteLogFiles:
    (root / "ours").mkdir()
    return RemoteLogFiles(root / "ours", properties={"log.dirs": []})


@pytest.fixture(autouse=True)
def _without_syncs() -> Iterator[None]:
    with unsynced():
        yield


def tree_of(root: Path) -> dict[Path, tuple[int, bytes]]:
    return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in root.rglob("*") if path.is_file()}


def test_an_adopted_topic_has_the_same_offsets_and_bytes(tier: NativeTier, ours: RemoteLogFiles) -> None:
    before = tree_of(tier.files.root)

    planned = run_on(ours, "adopt", "orders", "--from", tier.files.config, "--dry-run", "--json")
    adopted = run_on(ours, "adopt", "orders", "--from", tier.files.config, "--json")
    again = run_on(ours, "adopt", "orders", "--from", tier.files.config, "--json")
    left = run_on(ours, "adopt", "orders", "--from", tier.files.config, "--dry-run", "--json")

    assert (planned.exit_code, adopted.exit_code, again.exit_code) == (0, 0, 0), adopted.err
    rows = [(row["partition"], row["start_offset"], row["end_offset"]) for row in adopted.rows]
    assert rows == [("orders-0", 0, 9), ("orders-0", 10, 19), ("orders-0", 20, 29)]
    assert [(row["partition"], row["start_offset"], row["end_offset"]) for row in planned.rows] == rows
    assert again.rows == left.rows == []
    assert [path.read_bytes() for path in ours.objects(".log")] == [
        tier.object_of(segment).read_bytes() for segment in tier.segments
    ]
    with ours.open() as remote_log:
        [partition] = remote_log.context.segments.list_partitions()
        assert partition == ORDERS_0
        assert not {each.segment_id.id for each in segments_of(remote_log)} & {
            each.segment_id.id for each in tier.segments
        }
        assert_clean(remote_log)
    assert run_on(ours, "audit", "--deep").exit_code == 0
    assert {path: seen for path, seen in tree_of(tier.files.root).items() if path in before} == before


def test_deleted_records_stay_deleted(tier: NativeTier, ours: RemoteLogFiles) -> None:
    shows_log_starts(tier, 12)

    adopted = run_on(ours, "adopt", "orders", "--from", tier.files.config, "--json")

    assert [row["start_offset"] for row in adopted.rows] == [10, 20]
    with ours.open() as remote_log:
        assert remote_log.context.segments.partition_state(ORDERS_0).log_start_offset == 12
        assert_clean(remote_log)


def test_a_segment_that_a_later_leader_truncated_ends_where_it_is_valid(tmp_path: Path, ours: RemoteLogFiles) -> None:
    """The leader of epoch 4 never had offsets 25 to 29 of the third segment, and wrote others."""
    (tmp_path / "kafka").mkdir()
    tier = tiered(a_remote_log(tmp_path / "kafka", topics={}), keeps_local=True)
    with LogDirectoryWriter.open(tier.files.log_directory, LOG_CONFIG, clock=lambda: NOW) as writer:
        log = writer.log("orders", 0)
        log.truncate_to(25)
        log.roll()
        for _ in range(3):
            end = log.log_end_offset
            log.append(records(end, end + 5), leader_epoch=4)
    tier_closed(tier)
    tier.files.properties["log.dirs"] = []

    adopted = run_on(ours, "adopt", "orders", "--from", tier.files.config, "--json")

    assert adopted.exit_code == 0, adopted.err
    with ours.open() as remote_log:
        segments = segments_of(remote_log)
        assert ranges(segments) == [(0, 9), (10, 19), (20, 24), (25, 34)]
        assert 2 * segments[2].size == segments[1].size
        assert_clean(remote_log)


@pytest.mark.parametrize("loses_index", [False, True])
def test_aborted_records_stay_aborted(tmp_path: Path, ours: RemoteLogFiles, loses_index: bool) -> None:
    """A transaction index that Kafka's tier has lost is built again from the batches."""
    (tmp_path / "kafka").mkdir()
    log_directory_under_test(tmp_path / "kafka")
    tier = tiered(RemoteLogFiles(tmp_path / "kafka"))
    tier.files.properties["log.dirs"] = []
    shows_log_starts(tier, 0)
    with tier.files.open() as native:
        expected = committed(native)
    assert len(expected) > 1
    if loses_index:
        for index in tier.remote.rglob("*.txnindex"):
            index.unlink()

    adopted = run_on(ours, "adopt", "orders", "--from", tier.files.config)

    assert adopted.exit_code == (1 if loses_index else 0), adopted.err
    with ours.open() as remote_log:
        assert committed(remote_log) == expected
        assert remote_log.checks.audit(deep=True).anomalies == ()


def committed(remote_log: RemoteLogManager) -> list[int]:
    """Return the offsets that a read_committed reader gets of orders-0."""
    with BlockingLogReader(remote_log.open_log_reader()) as reader:
        return [each.offset for each in reader.records(ORDERS_0, 0, isolation=Isolation.READ_COMMITTED)]


@pytest.mark.parametrize("step", range(0, STEPS, 6))
def test_a_killed_adoption_goes_on_where_it_ended(
    tier: NativeTier, ours: RemoteLogFiles, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """Rounds of one segment; what is finished is not copied again."""
    monkeypatch.setattr(adoption_module, "RUN_SEGMENTS", 1)
    monkeypatch.setattr(adoption_module, "RUNS_A_ROUND", 1)
    with ours.open():
        pass  # the metadata are there
    with dies_at(step, after_it=step % 12 == 0):
        adopt(tier, ours, "the first run")
    with ours.open() as remote_log:
        before = {each.segment_id: each for each in finished(segments_of(remote_log))}
        ours.clock.step(remote_log.context.settings.lease_duration_ms + 1)

    adopt(tier, ours, "the second run")

    with ours.open() as remote_log:
        after = {each.segment_id: each for each in finished(segments_of(remote_log))}
        assert ranges(after.values()) == [(0, 9), (10, 19), (20, 29)]
        assert before.items() <= after.items()
        with BlockingLogReader(remote_log.open_log_reader()) as reader:
            assert list(reader.records(ORDERS_0, 0)) == records(0, 30)


def test_the_tried_crashes_reach_to_the_end(
    tier: NativeTier, ours: RemoteLogFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adoption_module, "RUN_SEGMENTS", 1)
    monkeypatch.setattr(adoption_module, "RUNS_A_ROUND", 1)
    with ours.open():
        pass
    for step, finished_then in ((STEPS // 2, {1, 2}), (STEPS, {3})):
        with dies_at(step, after_it=True):
            adopt(tier, ours, f"run {step}")
        assert len(starts_of(ours, ORDERS_0)) in finished_then
        ours.clock.step(ours.settings().lease_duration_ms + 1)


def adopt(tier: NativeTier, ours: RemoteLogFiles, owner: str) -> None:
    """Carry an adoption out in this thread."""
    with opened(tier, ours) as adoption:
        remote_log = adoption.remote_log
        for number, part in enumerate(adoption.rounds(adoption.plan("orders"), ())):
            begun = remote_log.begin_copy(part, owner)
            report = remote_log.commit_copy(carry_out(remote_log, begun, f"runs/{owner.replace(' ', '-')}/{number}"))
            assert (report.failures, begun.left) == ((), ())


@contextmanager
def opened(tier: NativeTier, ours: RemoteLogFiles) -> Iterator[Adoption]:
    with (
        ours.open() as remote_log,
        tier.files.open() as native,
        Adoption.opened(remote_log.context, native.context) as adoption,
    ):
        yield adoption


def test_after_a_lost_object_nothing_more_of_its_partition_is_copied(
    tmp_path: Path, ours: RemoteLogFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adoption_module, "RUN_SEGMENTS", 1)
    tier = two_partitions(tmp_path)
    lost = tier.object_of(tier.segments[1])
    content = lost.read_bytes()
    lost.unlink()

    failed = run_on(ours, "adopt", "orders", "--from", tier.files.config, "--json")
    some = {partition: starts_of(ours, partition) for partition in (ORDERS_0, partition_of(number=1))}
    lost.write_bytes(content)
    adopted = run_on(ours, "adopt", "orders", "--from", tier.files.config)

    assert failed.exit_code == 1
    assert any(mentions(str(trouble), "orders-0", lost.name) for trouble in failed.document["troubles"])
    assert some == {ORDERS_0: [0], partition_of(number=1): [0, 10, 20]}
    assert adopted.exit_code == 0, adopted.err
    with ours.open() as remote_log:
        assert_clean(remote_log)


def two_partitions(root: Path) -> NativeTier:
    (root / "kafka").mkdir()
    tier = tiered(a_remote_log(root / "kafka", {("orders", 0): 3, ("orders", 1): 3}, topics={}))
    tier.files.properties["log.dirs"] = []
    shows_log_starts(tier, 0, 0)
    return tier


def test_a_partition_whose_log_start_is_unknown_waits_and_the_others_do_not(
    tmp_path: Path, ours: RemoteLogFiles
) -> None:
    """Its records below 12 were deleted: without the log start, readers would get them again."""
    tier = two_partitions(tmp_path)
    write_offset_checkpoint(tier.files.log_directory / LOG_START_OFFSET_CHECKPOINT, {("orders", 1): 0})

    planned = run_on(ours, "adopt", "orders", "--from", tier.files.config, "--dry-run", "--json")
    deferred = run_on(ours, "adopt", "orders", "--from", tier.files.config, "--json")
    some = {partition: starts_of(ours, partition) for partition in (ORDERS_0, partition_of(number=1))}
    shows_log_starts(tier, 12, 0)
    adopted = run_on(ours, "adopt", "orders", "--from", tier.files.config)

    assert (planned.exit_code, deferred.exit_code) == (1, 1)
    assert mentions(deferred.err, "orders-0", "log start")
    assert some == {ORDERS_0: [], partition_of(number=1): [0, 10, 20]}
    assert adopted.exit_code == 0, adopted.err
    with ours.open() as remote_log:
        assert remote_log.context.segments.partition_state(ORDERS_0).log_start_offset == 12


def test_a_log_start_that_becomes_unknown_before_the_commit_is_asked_for_again(
    tier: NativeTier, ours: RemoteLogFiles
) -> None:
    checkpoint = tier.files.log_directory / LOG_START_OFFSET_CHECKPOINT
    shows_log_starts(tier, 12)
    with opened(tier, ours) as adoption:
        remote_log = adoption.remote_log
        [part] = adoption.rounds(adoption.plan("orders"), ())
        begun = remote_log.begin_copy(part, "first")
        results = carry_out(remote_log, begun, "runs/first/0")
        checkpoint.unlink()
        refused = remote_log.commit_copy(results)
        assert refused.committed == ()
        assert refused.failures
        assert remote_log.context.segments.partition_state(ORDERS_0).log_start_offset is None

    shows_log_starts(tier, 12)
    ours.clock.step(ours.settings().lease_duration_ms + 1)
    adopt(tier, ours, "second")

    with ours.open() as remote_log:
        assert remote_log.context.segments.partition_state(ORDERS_0).log_start_offset == 12
        assert ranges(finished(segments_of(remote_log))) == [(10, 19), (20, 29)]


def test_records_that_kafka_deleted_since_they_were_adopted_are_named(tier: NativeTier, ours: RemoteLogFiles) -> None:
    first = run_on(ours, "adopt", "orders", "--from", tier.files.config)
    shows_log_starts(tier, 12)

    again = run_on(ours, "adopt", "orders", "--from", tier.files.config)

    assert (first.exit_code, again.exit_code) == (0, 0)
    assert "delete-records" not in first.err
    assert mentions(" ".join(again.err.split()), "orders-0", 0, 11, "delete-records orders 0 --before 12")


def test_a_lost_object_that_the_plan_reads_refuses_its_partition_only(tmp_path: Path, ours: RemoteLogFiles) -> None:
    """A later leader truncated a segment of orders-0: the plan reads it to find where it is valid until."""
    tier = two_partitions(tmp_path)
    with LogDirectoryWriter.open(tier.files.log_directory, LOG_CONFIG, clock=lambda: NOW) as writer:
        log = writer.log("orders", 0)
        log.truncate_to(30)
    [last] = [each for each in tier.segments if (each.topic_id_partition, each.start_offset) == (ORDERS_0, 20)]
    tier.add(
        *truncating(last),
    )
    tier.object_of(last).unlink()

    adopted = run_on(ours, "adopt", "orders", "--from", tier.files.config, "--json")

    assert adopted.exit_code == 1
    assert mentions(adopted.err, "orders-0")
    assert starts_of(ours, partition_of(number=1)) == [0, 10, 20]


def truncating(last: RemoteLogSegmentMetadata) -> tuple[RemoteLogSegmentMetadata, RemoteLogSegmentMetadataUpdate]:
    """Return the metadata of a segment that a later leader wrote over the end of `last`."""
    later = replace(
        last,
        segment_id=RemoteLogSegmentId(last.topic_id_partition, topic_id("a later leader's")),
        start_offset=25,
        end_offset=34,
        leader_epochs=(EpochEntry(last.leader_epochs[-1].epoch + 4, 25),),
    )
    return later, finish_of(later)


def starts_of(files: RemoteLogFiles, partition: object) -> list[int]:
    """Return where the finished segments of a partition begin."""
    with files.open() as remote_log:
        return [
            each.start_offset
            for known in remote_log.context.segments.list_partitions()
            if known == partition
            for each in finished(segments_of(remote_log, known))
        ]


def test_a_topic_with_segments_of_another_origin_is_refused(tmp_path: Path) -> None:
    """Our own copy of the same topic has more than Kafka's tier."""
    tier = a_native_tier(tmp_path / "kafka")
    tier.files.properties["log.dirs"] = []
    shows_log_starts(tier, 0)
    (tmp_path / "ours").mkdir()
    ours = a_copied_remote_log(tmp_path / "ours", {("orders", 0): 4})

    refused = run_on(ours, "adopt", "orders", "--from", tier.files.config, "--json")

    assert refused.exit_code == 1
    assert refused.rows == []
    assert mentions(refused.err, "orders-0", 30, 39)
    assert starts_of(ours, ORDERS_0) == [0, 10, 20, 30]


def test_what_is_not_tiered_is_then_copied_from_the_local_log(tier: NativeTier, ours: RemoteLogFiles) -> None:
    """Once Kafka's own tiering is off, the topic's log begins with the local one."""
    assert run_on(ours, "adopt", "orders", "--from", tier.files.config).exit_code == 0
    tier.files.append(3)
    shows_log_starts(tier, 30)
    ours.properties |= {"log.dirs": [str(tier.files.log_directory)], "log.end.is.stable": True}

    enabled, copied = run_on(ours, "topics", "enable", "orders"), run_on(ours, "copy", "--json")

    assert (enabled.exit_code, copied.exit_code) == (0, 0), enabled.err + copied.err
    assert [row["start_offset"] for row in copied.rows] == [30]
    with ours.open() as remote_log:
        assert ranges(segments_of(remote_log)) == [(0, 9), (10, 19), (20, 29), (30, 39)]
        assert offsets_read(remote_log, 0) == list(range(50))
        assert remote_log.checks.audit(deep=True).anomalies == ()


@pytest.mark.parametrize(
    ("asked", "why"), [(("payments",), "payments"), (("orders", "--partitions", "7"), "orders")], ids=str
)
def test_what_the_cluster_has_not_tiered_is_an_error(
    tier: NativeTier, ours: RemoteLogFiles, asked: tuple[str, ...], why: str
) -> None:
    ended = run_on(ours, "adopt", *asked, "--from", tier.files.config)

    assert ended.exit_code == 1
    assert mentions(ended.err, why, "tiered-storage segments")


def test_only_a_cluster_that_tiers_by_itself_is_adopted_and_only_into_our_own(
    tier: NativeTier, ours: RemoteLogFiles
) -> None:
    with ours.open():
        pass
    from_ours = run_on(ours, "adopt", "orders", "--from", ours.config)
    into_kafkas = run_on(tier.files, "adopt", "orders", "--from", tier.files.config)

    assert (from_ours.exit_code, into_kafkas.exit_code) == (1, 1)
    assert mentions(from_ours.err, "--from", "native-clusters.md")
    assert mentions(" ".join(into_kafkas.err.split()), "Kafka itself tiers this cluster")


def test_a_cluster_id_that_differs_is_refused(tier: NativeTier, ours: RemoteLogFiles) -> None:
    ours.properties["cluster.id"] = topic_id("another cluster")

    ended = run_on(ours, "adopt", "orders", "--from", tier.files.config)

    assert ended.exit_code == 1
    assert mentions(ended.err, "cluster.id", topic_id("another cluster"))
