"""What an earlier version left is opened, read and completed by this one."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from golden.earlier_versions import FOLDER, RUN, YESTERDAY, copy_generation, generation, messages, open_at
from support.clocks import ManualClock
from support.remote_logs import (
    assert_clean,
    held_by,
    offsets_read,
    partition_of,
    ranges,
    segments_of,
    states_of,
    topic_id,
)
from tiered_storage.errors import DeletionRefusedError, LeaseHeldError, OutdatedMetadataError, UntrustedMessageError
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.remote_log.context import store_options
from tiered_storage.remote_log.copy.job import CopyJob, CopyJobDescription
from tiered_storage.remote_log.copy.tasks import CommitReport, CopyOutcome, CopyPlan
from tiered_storage.remote_log.coverage import finished
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.metadata.sql.database.schema import SCHEMA_VERSION, VERSION_TABLE
from tiered_storage.remote_log.model import PartitionState, RemoteLogSegmentMetadata, SegmentState, TopicIdPartition
from tiered_storage.remote_log.rebuild.metadata_rebuild import rebuild_metadata
from tiered_storage.remote_log.retention.expiry import ExpiryPlan
from tiered_storage.remote_log.selection import EVERYTHING
from tiered_storage.remote_log.storage.documents.partition_manifest import PartitionManifest
from tiered_storage.remote_log.storage.segment_objects import ObjectRemoteStorageManager
from tiered_storage.settings.settings import load_settings

ORDERS_0, ORDERS_1 = (partition_of("orders", number) for number in range(2))
PAYMENTS_0 = partition_of("payments")
REFUNDS_0 = partition_of("refunds")
GENERATIONS = {1: "0001", 2: "0002", 3: "0002"}
"""Each with the schema of its metadata."""

WITH_DOCUMENTS = 3
"""The first generation whose store records partitions and decisions itself."""

LATER = YESTERDAY + 1_000
AFTER_THE_GRACE = LATER + 3_600_000
NOTHING = CommitReport((), (), (), (), retriable=True)


@pytest.fixture(params=GENERATIONS)
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return copy_generation(request.param, tmp_path / "site")


def database_of(root: Path) -> Path:
    return root / "state" / "remote_log_metadata.db"


def kept_copy(root: Path) -> Path:
    return database_of(root).with_name(f"{database_of(root).name}.before-{SCHEMA_VERSION}")


def schema_of(root: Path) -> str:
    return schema_in(database_of(root))


def schema_in(path: Path) -> str:
    with closing(sqlite3.connect(f"file:{path}?immutable=1", uri=True)) as connection:
        [[version]] = connection.execute(f"SELECT version_num FROM {VERSION_TABLE}").fetchall()  # noqa: S608
        return str(version)


@pytest.mark.parametrize(("number", "schema"), GENERATIONS.items())
def test_each_golden_state_is_of_its_schema(number: int, schema: str) -> None:
    assert schema_of(generation(number)) == schema


@pytest.mark.parametrize(("number", "schema"), GENERATIONS.items())
def test_the_golden_state_is_migrated_and_kept_as_it_was(number: int, schema: str, tmp_path: Path) -> None:
    root = copy_generation(number, tmp_path / "site")
    with open_at(root):
        pass
    assert schema_of(root) == SCHEMA_VERSION
    assert kept_copy(root).exists() == (schema != SCHEMA_VERSION)
    assert schema == SCHEMA_VERSION or schema_in(kept_copy(root)) == schema
    with open_at(root):
        pass


@pytest.mark.parametrize("number", [number for number, schema in GENERATIONS.items() if schema != SCHEMA_VERSION])
def test_the_copy_from_before_the_migration_is_a_way_back(number: int, tmp_path: Path) -> None:
    root = copy_generation(number, tmp_path / "site")
    with open_at(root) as remote_log:
        migrated = segments_of(remote_log, PAYMENTS_0)
    for left in root.glob("state/remote_log_metadata.db*"):
        if left != kept_copy(root):
            left.unlink()
    kept_copy(root).rename(database_of(root))
    with open_at(root) as remote_log:
        assert segments_of(remote_log, PAYMENTS_0) == migrated


def let_documents_be_written(remote_log: RemoteLogManager) -> None:
    """Let a repair write what stores of then did not keep, a document of each partition; or find that all is there."""
    report = remote_log.checks.audit()
    if REFUNDS_0 in remote_log.context.segments.list_partitions():
        assert report.anomalies == ()
        return
    assert {anomaly.is_of_a_document for anomaly in report.anomalies} == {True}
    repaired = remote_log.repairs.carry_out(remote_log.repairs.plan(report, EVERYTHING), "today", lambda _: NOTHING)
    assert (set(repaired.documents), repaired.failures) == ({ORDERS_0, PAYMENTS_0}, ())


def let_deletions_proceed(remote_log: RemoteLogManager) -> None:
    """Lift the stop that somebody left in force."""
    if remote_log.context.safety.stopped() is not None:
        remote_log.context.safety.lift("today")


def marked(remote_log: RemoteLogManager, partition: TopicIdPartition) -> list[RemoteLogSegmentMetadata]:
    segments = segments_of(remote_log, partition)
    return [segment for segment in segments if segment.state is SegmentState.DELETE_SEGMENT_STARTED]


def test_every_segment_is_what_it_was(root: Path) -> None:
    with open_at(root) as remote_log:
        assert states_of(remote_log, ORDERS_0) == [
            (0, "DELETE_SEGMENT_STARTED"),
            (10, "COPY_SEGMENT_FINISHED"),
            (20, "COPY_SEGMENT_FINISHED"),
        ]
        assert states_of(remote_log, ORDERS_1) == [(start, "COPY_SEGMENT_STARTED") for start in (0, 10, 20)]
        assert ranges(segments_of(remote_log, PAYMENTS_0)) == [(10, 19), (20, 29)]
        assert [remote_log.context.segments.log_start_offset(each) for each in (ORDERS_0, ORDERS_1, PAYMENTS_0)] == [
            10,
            None,
            10,
        ]
        first = segments_of(remote_log, PAYMENTS_0)[0]
        assert (first.size, first.max_timestamp - YESTERDAY, first.leader_epochs) == (
            920,
            -9_981_000,
            (EpochEntry(0, 10),),
        )
        found = remote_log.context.segments.remote_log_segment_metadata(PAYMENTS_0, 15, leader_epoch=0)
        assert found == first


def test_decisions_keep_their_meaning(root: Path) -> None:
    with open_at(root) as remote_log:
        decided = {topic.name: topic for topic in remote_log.context.topics.list()}
        assert set(decided) == {"orders", "returns"}
        assert decided["orders"].topic_id == topic_id("orders")
        assert decided["orders"].properties == {"retention.ms": "9985000"}
        for given, allowed in (
            (decided["orders"], True),
            (decided["returns"], False),
            (remote_log.context.settings.topics["payments"], True),
            (remote_log.context.settings.topics["orders"], False),
        ):
            assert (given.local_deletion_allowed, given.remote_deletion_allowed) == (allowed, allowed)


@pytest.mark.parametrize("number", [number for number in GENERATIONS if number < WITH_DOCUMENTS])
def test_opening_metadata_of_an_earlier_version_invents_no_partition_state(number: int, tmp_path: Path) -> None:
    root = copy_generation(number, tmp_path / "site")
    with open_at(root) as remote_log:
        assert remote_log.context.segments.partition_states() == {
            ORDERS_0: PartitionState(10, (), None),
            ORDERS_1: PartitionState(None, (), None),
            PAYMENTS_0: PartitionState(10, (), None),
        }
        assert remote_log.context.safety.stopped() is None
        assert list(remote_log.context.safety.failures()) == []
        deleted = json.loads((root / "state" / "work" / RUN / "expiry.jsonl").read_text("utf-8").splitlines()[0])
        [gone] = [segment["segment_id"]["id"] for segment in deleted["segments"]]
        assert remote_log.context.segments.known_segment_ids(PAYMENTS_0, [gone, "nobody's"]) == {gone}


def test_a_run_that_began_before_messages_were_signed_has_to_be_started_again(root: Path) -> None:
    with open_at(root, LATER) as remote_log:
        for path, kind in (("plan", CopyPlan), ("expiry", ExpiryPlan), ("1/commit-00002", CopyOutcome)):
            with pytest.raises(UntrustedMessageError, match=rf"{RUN}/{path}\.jsonl"):
                remote_log.context.work.read(f"{RUN}/{path}.jsonl", kind)
        with pytest.raises(UntrustedMessageError, match=r"1/job\.json"):
            CopyJob.read(remote_log.context.work, FOLDER)
    with open_at(root, YESTERDAY + 600_001) as remote_log:
        # Its copies were never committed, so the next run takes them up.
        due = {segment.topic_id_partition for segment in remote_log.plan_copy().segments}
        assert due == {ORDERS_1}


def test_the_copy_that_was_under_way_is_committed_and_read(root: Path) -> None:
    with open_at(root, LATER) as remote_log:
        [description] = messages(remote_log, f"{FOLDER}/job.json", CopyJobDescription)
        results = messages(remote_log, f"{FOLDER}/result-00000.jsonl", CopyOutcome)
        outcomes = Counter(outcome.task.metadata.topic_id_partition for outcome in results)
        assert (description.groups, {outcomes[each] for each in (ORDERS_0, ORDERS_1, PAYMENTS_0)}) == (1, {3})
        report = remote_log.commit_copy(messages(remote_log, f"{FOLDER}/commit-00002.jsonl", CopyOutcome))
        assert report.is_whole
        assert ranges(report.committed) == [(0, 9), (10, 19), (20, 29)]
        assert offsets_read(remote_log, 0, ORDERS_1) == list(range(35))
        assert offsets_read(remote_log, 10, ORDERS_0) == list(range(10, 35))
        assert offsets_read(remote_log, 10, PAYMENTS_0) == list(range(10, 35))
        let_documents_be_written(remote_log)
        assert_clean(remote_log)


def test_plans_that_were_written_down_are_carried_out(root: Path) -> None:
    with open_at(root, LATER) as remote_log:
        [plan] = messages(remote_log, f"{RUN}/plan.jsonl", CopyPlan)
        assert {*plan.partitions} - {REFUNDS_0} == {ORDERS_0, ORDERS_1, PAYMENTS_0}
        assert len(plan.segments) == 3 * len(plan.partitions)
        # The same owner tries again: what was begun and never committed is copied again.
        begun = remote_log.begin_copy(plan, "yesterday")
        assert {task.metadata.topic_id_partition for task in begun.tasks} == {ORDERS_1}
        expiry = messages(remote_log, f"{RUN}/expiry.jsonl", ExpiryPlan)
        starts = {each.topic_id_partition: each.new_log_start for each in expiry}
        assert starts == {PAYMENTS_0: 10, ORDERS_0: 10}
        let_deletions_proceed(remote_log)
        done, left = remote_log.deletions.mark_expired(expiry, "today")
        assert ({*done}, left) == ({PAYMENTS_0, ORDERS_0}, ())
        assert_clean(remote_log)


def test_the_deletion_that_was_under_way_is_done_and_the_audit_is_clean(root: Path) -> None:
    with open_at(root, LATER) as remote_log:
        # Only from here on it is known that the clock runs.
        remote_log.deletions.clocks.note()
    with open_at(root, AFTER_THE_GRACE) as remote_log:
        let_deletions_proceed(remote_log)
        remote_log.commit_copy(messages(remote_log, f"{FOLDER}/commit-00002.jsonl", CopyOutcome))
        going = [*marked(remote_log, ORDERS_0), *marked(remote_log, REFUNDS_0)]
        assert [segment.start_offset for segment in going] in ([0], [0, 10])
        assert set(remote_log.deletions.delete_marked("today").deleted) == {
            replace(segment, state=SegmentState.DELETE_SEGMENT_FINISHED, event_timestamp=AFTER_THE_GRACE)
            for segment in going
        }
        refunds = len(finished(segments_of(remote_log, REFUNDS_0)))
        assert remote_log.checks.audit(deep=True).segments == 7 + refunds
        let_documents_be_written(remote_log)
        assert_clean(remote_log)


def test_the_store_has_the_same_segments_as_the_metadata(root: Path) -> None:
    with open_at(root) as remote_log:
        storage = remote_log.context.storage
        assert isinstance(storage, ObjectRemoteStorageManager)
        listed = {found.segment.segment_id: found.segment for found in storage.list_objects() if found.segment}
        for known in segments_of(remote_log, PAYMENTS_0):
            # The lease that it was copied under is known to the metadata alone.
            assert storage.read_metadata(listed[known.segment_id]) == replace(known, fencing_number=0)


def test_a_lease_that_was_held_keeps_others_out_and_its_number_continues(root: Path) -> None:
    with open_at(root, LATER) as remote_log, pytest.raises(LeaseHeldError, match="yesterday"):
        held_by(remote_log, "today", ORDERS_1)
    with open_at(root, YESTERDAY + 600_001) as remote_log:
        assert held_by(remote_log, "today", ORDERS_1).fencing_number == 2


@pytest.fixture
def with_documents(tmp_path: Path) -> Path:
    return copy_generation(WITH_DOCUMENTS, tmp_path / "site")


def documents_in(remote_log: RemoteLogManager) -> dict[TopicIdPartition, PartitionManifest | None]:
    assert isinstance(remote_log.context.storage, ObjectRemoteStorageManager)
    documents = remote_log.context.storage.partition_manifests
    return {partition: documents.read(partition) for partition in remote_log.context.segments.list_partitions()}


def test_the_stores_documents_say_what_the_metadata_say(with_documents: Path) -> None:
    with open_at(with_documents) as remote_log:
        [damaged] = marked(remote_log, REFUNDS_0)
        states = remote_log.context.segments.partition_states()
        assert states[REFUNDS_0] == PartitionState(0, (EpochEntry(0, 0),), None)
        assert states[PAYMENTS_0] == PartitionState(10, (EpochEntry(0, 0),), None)
        found = documents_in(remote_log)
        # The first commit writes one, and that of orders-1 was still to come.
        assert found.pop(ORDERS_1) is None
        assert found == {
            partition: PartitionManifest(partition, number, states[partition], YESTERDAY, named)
            for partition, number, named in (
                (ORDERS_0, 2, ()),
                (PAYMENTS_0, 2, ()),
                (REFUNDS_0, 3, (damaged.segment_id.id,)),
            )
        }


def test_a_stop_is_still_in_force_and_the_store_knows_of_it(with_documents: Path) -> None:
    with open_at(with_documents, LATER) as remote_log:
        expiry = messages(remote_log, f"{RUN}/expiry.jsonl", ExpiryPlan)
        for delete in (
            lambda: remote_log.deletions.mark_expired(expiry, "today"),
            lambda: remote_log.deletions.delete_marked("today"),
        ):
            with pytest.raises(DeletionRefusedError, match="somebody looks into it"):
                delete()
        assert len(marked(remote_log, ORDERS_0)) == len(marked(remote_log, REFUNDS_0)) == 1
        remote_log.context.bind_store()
        assert isinstance(remote_log.context.storage, ObjectRemoteStorageManager)
        assert (
            remote_log.context.storage.generations.newest_number()
            == remote_log.context.store.generation.read().number
            == 1
        )


def test_yesterdays_metadata_are_found_to_be_older_than_what_was_decided_today(with_documents: Path) -> None:
    backup = database_of(with_documents).read_bytes()
    with open_at(with_documents, LATER) as remote_log:
        let_deletions_proceed(remote_log)
        remote_log.context.safety.stop("once more", "today")
    for left in with_documents.glob("state/remote_log_metadata.db*"):
        left.unlink()
    database_of(with_documents).write_bytes(backup)

    with (
        open_at(with_documents, LATER, outdated=True) as remote_log,
        pytest.raises(OutdatedMetadataError),
    ):
        remote_log.context.safety.lift("today")


def test_a_rebuild_from_the_store_keeps_marks_and_log_starts(with_documents: Path) -> None:
    with open_at(with_documents) as remote_log:
        known = {each: finished(segments_of(remote_log, each)) for each in (ORDERS_0, PAYMENTS_0, REFUNDS_0)}
        starts = {each: remote_log.context.segments.log_start_offset(each) for each in known}
    database_of(with_documents).unlink()
    settings = load_settings(with_documents / "settings.yaml", environ={})

    report = rebuild_metadata(settings, store_options(settings, {}), ManualClock(LATER))

    assert (report.unreadable, report.marked) == ((), 2)
    with open_at(with_documents, LATER) as remote_log:
        assert {each: ranges(finished(segments_of(remote_log, each))) for each in known} == {
            each: ranges(segments) for each, segments in known.items()
        }
        assert {each: remote_log.context.segments.log_start_offset(each) for each in known} == starts
        remote_log.context.bind_store()
        assert offsets_read(remote_log, 0, REFUNDS_0) == list(range(35))
