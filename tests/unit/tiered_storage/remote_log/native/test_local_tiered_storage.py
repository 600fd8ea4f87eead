"""Read what Kafka's LocalTieredStorage wrote: the command line and the reader over a tier without a broker."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from contract.sources import log_directory_under_test
from support.command_line import mentions, run_on
from support.native_tier import NativeTier, a_native_tier, finish_of, tiered
from support.remote_logs import ENABLED, NOW, ORDERS_0, RemoteLogFiles, record, records, topic_id
from tiered_storage.errors import ConfigurationError, OffsetOutOfRangeError
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.kafka_log.files.offset_checkpoint import LOG_START_OFFSET_CHECKPOINT, write_offset_checkpoint
from tiered_storage.remote_log.coverage import Coverage
from tiered_storage.remote_log.metadata.remote_log_metadata_manager import Topic
from tiered_storage.remote_log.model import Lease, RemoteLogSegmentId, RemoteLogSegmentMetadataUpdate, SegmentState
from tiered_storage.remote_log.native.metadata_topic import TOPIC
from tiered_storage.remote_log.read.blocking_reader import BlockingLogReader
from tiered_storage.remote_log.read.read_values import Isolation, OffsetSpec
from tiered_storage.remote_log.restore.request import RestoreRequest


@pytest.fixture
def tier(tmp_path: Path) -> NativeTier:
    return a_native_tier(tmp_path)


def test_segments_are_listed(tier: NativeTier) -> None:
    listed = run_on(tier.files, "segments", "--json")

    assert listed.exit_code == 0, listed.err
    assert [(row["start_offset"], row["end_offset"], row["state"]) for row in listed.rows] == [
        (0, 9, "COPY_SEGMENT_FINISHED"),
        (10, 19, "COPY_SEGMENT_FINISHED"),
        (20, 29, "COPY_SEGMENT_FINISHED"),
    ]


def test_the_remote_tier_is_read_without_a_local_log(tier: NativeTier) -> None:
    tier.files.properties["log.dirs"] = []
    found = run_on(tier.files, "read", "orders", "0", "--max-records", "100", "--json")

    assert found.exit_code == 0, found.err
    read = [json.loads(line) for line in found.out.splitlines()]
    assert [(each["offset"], base64.b64decode(each["value"])) for each in read] == [
        (each.offset, each.value) for each in records(0, 30)
    ]


def test_both_tiers_are_read_with_the_log_directory(tier: NativeTier) -> None:
    with tier.files.open() as remote_log, BlockingLogReader(remote_log.open_log_reader()) as reader:
        for start in (0, 7, 10, 29, 30, 34):
            assert list(reader.records(ORDERS_0, start)) == records(start, 35)


@pytest.mark.parametrize("log_dirs", [[], None])
def test_deleted_records_do_not_come_back_from_a_log_directory(tier: NativeTier, log_dirs: list[str] | None) -> None:
    """Its checkpoint has the log start over both tiers, within the first remote segment here."""
    write_offset_checkpoint(tier.files.log_directory / LOG_START_OFFSET_CHECKPOINT, {("orders", 0): 5})
    if log_dirs is not None:
        tier.files.properties["log.dirs"] = log_dirs

    with tier.files.open() as remote_log, BlockingLogReader(remote_log.open_log_reader()) as reader:
        earliest = reader.offsets(ORDERS_0, OffsetSpec.EARLIEST)
        with pytest.raises(OffsetOutOfRangeError):
            list(reader.records(ORDERS_0, 4))
        plan = remote_log.restores.plan(RestoreRequest("orders"))

    assert earliest is not None
    assert (earliest.offset, [each.log_start_offset for each in plan.partitions]) == (5, [5])


@pytest.mark.parametrize(
    ("lost", "why"),
    [(LOG_START_OFFSET_CHECKPOINT, "no checkpoint names it"), ("orders-0", "its log is not there")],
)
def test_an_unknown_log_start_is_reported(tier: NativeTier, lost: str, why: str) -> None:
    tier.files.properties["log.dirs"] = []
    known = run_on(tier.files, "offsets", "orders", 0)
    path = tier.files.log_directory / lost
    shutil.rmtree(path) if path.is_dir() else path.unlink()

    looked = run_on(tier.files, "offsets", "orders", 0)
    audited = run_on(tier.files, "audit", "--json")

    assert "log start" not in known.err
    assert mentions(looked.err, "log start", "orders-0", why)
    assert any(mentions(notice, "log start", why) for notice in audited.document["notices"])


def test_a_log_of_an_older_leader_hides_no_segment_of_a_later_one(tier: NativeTier) -> None:
    """The directory's log has leader epoch 0 only, and knows nothing above offset 34."""
    later = replace(
        tier.segments[2],
        segment_id=RemoteLogSegmentId(ORDERS_0, topic_id("a segment of a later leader")),
        start_offset=35,
        end_offset=44,
        leader_epochs=(EpochEntry(0, 35), EpochEntry(6, 40)),
    )
    tier.add(later, finish_of(later))

    with tier.files.open() as remote_log:
        segments = remote_log.context.segments
        lineage = segments.partition_state(ORDERS_0).lineage
        coverage = Coverage.of(list(segments.list_remote_log_segments(ORDERS_0)), lineage)
        notices = remote_log.context.notices

    assert [(each.start_offset, each.end_offset) for each in coverage.ranges][-2:] == [(20, 29), (35, 44)]
    assert any(mentions(notice, "orders-0", "outdated") for notice in notices)


def test_a_recreated_topic_is_found_by_its_name(tier: NativeTier) -> None:
    """Kafka deletes a topic's segments one by one, and records nothing else of its deletion."""
    earlier = replace(ORDERS_0, topic_id=topic_id("the first topic orders"))
    number_1 = replace(ORDERS_0, partition=1)
    for number, partition in enumerate((earlier, number_1)):
        segment_id = RemoteLogSegmentId(partition, topic_id(f"deleted {number}"))
        deleted = replace(tier.segments[0], segment_id=segment_id)
        states = (SegmentState.DELETE_SEGMENT_STARTED, SegmentState.DELETE_SEGMENT_FINISHED)
        tier.add(deleted, *(RemoteLogSegmentMetadataUpdate(segment_id, state, NOW) for state in states))
    tier.files.properties["log.dirs"] = []

    read = run_on(tier.files, "read", "orders", 0, "--json")
    restored = run_on(tier.files, "restore", "orders", "--dry-run")

    assert (read.exit_code, restored.exit_code) == (0, 0), read.err + restored.err
    with tier.files.open() as remote_log:
        assert remote_log.context.segments.list_partitions() == [ORDERS_0, number_1]


@pytest.mark.parametrize(("to_offset", "expected"), [(15, [0, 10]), (25, [0, 10, 20])])
def test_a_restore_to_a_time_takes_what_clocks_put_into_later_segments(
    tier: NativeTier, to_offset: int, expected: list[int]
) -> None:
    """One record of the first segment is later than all others, as with a producer whose clock is ahead."""
    first = replace(tier.segments[0], max_timestamp=NOW + 1_000_000)
    shutil.rmtree(tier.files.log_directory / f"{TOPIC}-0")
    tier.add(*(each for segment in (first, *tier.segments[1:]) for each in (segment, finish_of(segment))))

    with tier.files.open() as remote_log:
        plan = remote_log.restores.plan(RestoreRequest("orders", to_timestamp=record(to_offset).timestamp))

    assert [each.start_offset for each in plan.segments()] == expected


def test_a_deep_audit_finds_a_lost_transaction_index(tmp_path: Path) -> None:
    """Every second transaction is aborted: some within a segment, others over the borders of two."""
    log_directory_under_test(tmp_path)
    tier = tiered(RemoteLogFiles(tmp_path))
    indexes = sorted(tier.remote.rglob("*.txnindex"))
    assert len(indexes) > 1
    sound = run_on(tier.files, "audit", "--deep", "--json")
    for index in indexes:
        index.unlink()

    quick, deep = run_on(tier.files, "audit"), run_on(tier.files, "audit", "--deep", "--json")

    assert (sound.exit_code, sound.rows) == (0, []), sound.err
    assert quick.exit_code == 0
    assert deep.exit_code == 1
    assert {(row["kind"], row["what"].rpartition(":")[2]) for row in deep.rows} == {
        ("missing object", index.stem[21:]) for index in indexes
    }


@pytest.mark.parametrize("isolation", list(Isolation))
def test_offsets_are_found_by_name_and_time(tier: NativeTier, isolation: Isolation) -> None:
    with tier.files.open() as remote_log, BlockingLogReader(remote_log.open_log_reader()) as reader:
        named = {spec: reader.offsets(ORDERS_0, spec, isolation) for spec in OffsetSpec}
        by_time = [reader.offsets(ORDERS_0, record(offset).timestamp - 1, isolation) for offset in range(35)]

    assert {spec.name: found and found.offset for spec, found in named.items()} == {
        "EARLIEST": 0,
        "EARLIEST_LOCAL": 30,
        "LATEST": 35,
        "LATEST_TIERED": 29,
        "MAX_TIMESTAMP": 34,
        "EARLIEST_PENDING_UPLOAD": 30,
    }
    assert [found and (found.offset, found.timestamp) for found in by_time] == [
        (offset, NOW + 1000 * offset) for offset in range(35)
    ]


@pytest.mark.parametrize(
    "command",
    [
        ("topics", "enable", "orders"),
        ("delete-topic", "orders"),
        ("delete-records", "orders", 0, "--before", 10),
        ("stop-deletions", "--reason", "a test"),
        ("repair",),
        ("expire",),
        ("metadata", "backup", "/nowhere/else"),
    ],
)
def test_commands_that_write_are_refused(tier: NativeTier, command: tuple[object, ...]) -> None:
    tier.files.properties |= {"log.dirs": [], "topics": {"orders": {**ENABLED, "retention.ms": 1}}}
    before = tree_of(tier)

    ended = run_on(tier.files, *command)

    assert ended.exit_code == 1, ended.out + ended.err
    assert mentions(" ".join((ended.out + ended.err).split()), "Kafka itself tiers this cluster")
    assert tree_of(tier) == before


@pytest.mark.parametrize("command", [("segments",), ("read", "orders", 0), ("audit", "--deep"), ("plan",), ("copy",)])
def test_commands_that_look_write_nothing_there(tier: NativeTier, command: tuple[object, ...]) -> None:
    tier.files.properties["log.dirs"] = []
    before = tree_of(tier)

    run_on(tier.files, *command)

    assert tree_of(tier) == before


def test_changes_are_refused_with_the_reason(tier: NativeTier) -> None:
    with tier.files.open() as remote_log:
        context = remote_log.context
        lease = Lease(ORDERS_0, "a test", 1, NOW)
        topic = Topic(ORDERS_0.cluster_id, ORDERS_0.topic_id, "orders")
        refused: list[Callable[[], object]] = [
            lambda: context.leases.acquire(ORDERS_0, "a test", 1000),
            lambda: context.topics.put(topic),
            lambda: context.safety.stop("a reason", "a test"),
            lambda: context.segments.add_remote_log_segments([(tier.segments[0], lease)]),
            lambda: context.segments.advance_log_start_offset(ORDERS_0, 10, lease),
            lambda: context.storage.delete_log_segment_data(tier.segments[0]),
            partial(context.store.identity.bind_store, "another"),
        ]
        for change in refused:
            with pytest.raises(ConfigurationError, match="Kafka itself tiers this cluster"):
                change()


def tree_of(tier: NativeTier) -> dict[Path, tuple[int, bytes]]:
    """Return every file of the remote tier and of the log directory, with the time of its last change."""
    found = [path for root in (tier.remote, tier.files.log_directory) for path in root.rglob("*")]
    return {path: (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"") for path in found}
