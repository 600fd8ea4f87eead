"""After leader changes readers get the last leader's records, whatever was copied from others (scenarios 8, 9)."""

from __future__ import annotations

from pathlib import Path

import pytest

from scenarios.replicas.brokers import Brokers
from support.command_line import mentions
from support.plain_reader import PlainReader
from support.remote_logs import (
    ENABLED,
    NOW,
    ORDERS_0,
    RemoteLogFiles,
    assert_clean,
    begin,
    carry_out,
    copy,
    ranges,
    segments_of,
)
from tiered_storage.errors import LeaseHeldError, RemoteObjectNotFoundError
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.remote_log.audit.report import AnomalyKind
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.selection import EVERYTHING


@pytest.fixture
def brokers(tmp_path: Path) -> Brokers:
    return Brokers(tmp_path)


@pytest.fixture
def files(tmp_path: Path) -> RemoteLogFiles:
    return RemoteLogFiles(tmp_path, properties={"topics": {"orders": dict(ENABLED)}})


def opened(files: RemoteLogFiles, brokers: Brokers, number: int) -> RemoteLogManager:
    """Open the remote log over one broker's directory."""
    files.properties["log.dirs"] = [str(brokers.directory(number))]
    return files.open()


def values_read(remote_log: RemoteLogManager, start: int = 0) -> list[bytes]:
    return [record.value or b"" for record in PlainReader(remote_log).records(ORDERS_0, start)]


def lineage_of(remote_log: RemoteLogManager) -> list[tuple[int, int]]:
    kept = remote_log.context.segments.partition_state(ORDERS_0).lineage
    return [(entry.epoch, entry.start_offset) for entry in kept]


def test_a_leader_changes_while_its_segments_are_copied(brokers: Brokers, files: RemoteLogFiles) -> None:
    brokers.append(7)
    brokers.replicate(1, batches=5)
    with opened(files, brokers, 0) as remote_log:
        outcomes = carry_out(remote_log, begin(remote_log))
        assert lineage_of(remote_log) == [(0, 0)]
    brokers.elect(1)
    brokers.append(4)

    with opened(files, brokers, 1) as remote_log:
        report = remote_log.commit_copy(outcomes)
        assert ranges(report.committed) == [(0, 9), (10, 19)]
        assert "leader changed meanwhile" in report.failures[0].message
        assert lineage_of(remote_log) == [(0, 0), (1, 25)]

        assert ranges(copy(remote_log).committed) == [(20, 29), (30, 39)]
        assert values_read(remote_log) == brokers.values()
        assert_clean(remote_log, expected=None)


def test_after_an_unclean_election_readers_follow_the_new_leader(brokers: Brokers, files: RemoteLogFiles) -> None:
    brokers.append(5)
    with opened(files, brokers, 0) as remote_log:
        assert ranges(copy(remote_log).committed) == [(0, 9), (10, 19)]
        brokers.replicate(1, batches=3)
        assert values_read(remote_log) == brokers.values()
    brokers.elect(1)
    brokers.append(4)

    with opened(files, brokers, 1) as remote_log:
        assert ranges(copy(remote_log).committed) == [(10, 19), (20, 29)]
        assert values_read(remote_log) == brokers.values()
        assert len(segments_of(remote_log)) == 4
        assert_clean(remote_log, expected=None)


def test_no_manifest_has_a_leader_epoch_that_every_log_forgot(brokers: Brokers, files: RemoteLogFiles) -> None:
    """The global log start moved while a new leader had an empty log, before any copy of it."""
    brokers.append(6)
    brokers.elect(1)
    with opened(files, brokers, 1) as remote_log:
        copy(remote_log)
        assert lineage_of(remote_log) == [(1, 0)]
    brokers.elect(0)
    with opened(files, brokers, 0) as remote_log:
        plan = remote_log.deletions.plan_record_deletion(ORDERS_0, 28)
        assert plan is not None
        remote_log.deletions.mark_expired([plan], "delete records")

        assert copy(remote_log).committed == ()

        assert lineage_of(remote_log) == [(0, 0), (2, 30)]
        files.clock.now += files.settings().remote_log_orphan_grace_ms + 1
        assert_clean(remote_log, expected=None)


def test_the_epoch_of_an_uncopied_leader_outlives_its_brokers_checkpoint(
    brokers: Brokers, files: RemoteLogFiles
) -> None:
    """No copy of the new leader finished, and its retention deleted the records: only our metadata know its epoch."""
    brokers.append(5)
    brokers.replicate(1, batches=3)
    with opened(files, brokers, 0) as remote_log:
        copy(remote_log)
    brokers.elect(1)
    brokers.append(6)
    with opened(files, brokers, 1) as remote_log:
        assert begin(remote_log, "dies").tasks
        assert lineage_of(remote_log) == [(0, 0), (1, 15)]
    brokers.delete_records(30)

    files.clock.now += files.settings().lease_duration_ms + 1
    with opened(files, brokers, 1) as remote_log:
        brokers.append(2)
        copy(remote_log)
        assert lineage_of(remote_log) == [(0, 0), (1, 15)]
        assert values_read(remote_log, 30) == brokers.values(30)
        found = []
        with pytest.raises(RemoteObjectNotFoundError, match="offset 15"):
            found += [record.value for record in PlainReader(remote_log).open(ORDERS_0).records(0)]
        # No audit may be clean here: the records are lost.
        anomalies = remote_log.checks.audit().anomalies
        assert [(each.kind, each.offsets) for each in anomalies] == [(AnomalyKind.GAP, (15, 29))]


def test_the_log_of_an_older_replica_is_refused(brokers: Brokers, files: RemoteLogFiles) -> None:
    brokers.append(7)
    brokers.replicate(1, batches=3)
    with opened(files, brokers, 1) as remote_log:
        copy(remote_log)
    brokers.elect(1)
    brokers.append(4)
    with opened(files, brokers, 1) as remote_log:
        copy(remote_log)

    # Broker 0 was offline meanwhile: it has other records from offset 15 on.
    with opened(files, brokers, 0) as remote_log:
        before = segments_of(remote_log)
        plan = remote_log.plan_copy()
        assert plan.is_empty
        [finding] = plan.unreadable
        assert finding.partition == "orders-0"
        assert mentions(finding.message, "leader epoch is 0", "offset 34")
        assert mentions(finding.message, "offset 15", "epoch 1", "not 0")
        for planned, findings in (
            remote_log.deletions.plan_local_retention(EVERYTHING, NOW + 10**12),
            remote_log.deletions.plan_expiry(EVERYTHING, NOW + 10**12),
        ):
            assert list(planned) == []
            assert [each.message for each in findings] == [finding.message]
        assert values_read(remote_log) == brokers.values()[:30]
        assert segments_of(remote_log) == before
        assert lineage_of(remote_log) == [(0, 0), (1, 15)]

    brokers.replicate(0)
    brokers.elect(0)
    brokers.append(2)
    with opened(files, brokers, 0) as remote_log:
        copy(remote_log)
        assert values_read(remote_log) == brokers.values()
        assert_clean(remote_log, expected=None)


def test_a_directory_that_turns_out_older_while_it_is_copied_is_not_committed(
    brokers: Brokers, files: RemoteLogFiles
) -> None:
    brokers.append(7)
    brokers.replicate(1, batches=3)
    with opened(files, brokers, 0) as remote_log:
        begun = begin(remote_log)
        outcomes = carry_out(remote_log, begun)
        remote_log.context.segments.put_lineage(ORDERS_0, [EpochEntry(1, 15)], begun.leases[0])
        report = remote_log.commit_copy(outcomes)
        assert report.committed == ()
        assert mentions(report.failures[0].message, "orders-0", "older replica")
        assert report.retriable

    brokers.elect(1)
    brokers.append(4)
    with opened(files, brokers, 1) as remote_log:
        assert ranges(copy(remote_log).committed) == [(0, 9), (10, 19), (20, 29)]
        assert values_read(remote_log) == brokers.values()
        files.clock.now += remote_log.context.settings.remote_log_orphan_grace_ms + 1
        assert len(remote_log.deletions.delete_marked("expire").deleted) == 3
        assert_clean(remote_log, expected=None)


def test_a_plan_older_than_the_newest_leader_is_left_to_the_next_run(brokers: Brokers, files: RemoteLogFiles) -> None:
    brokers.append(7)
    brokers.replicate(1, batches=3)
    with opened(files, brokers, 0) as remote_log:
        old = remote_log.plan_copy()
    brokers.elect(1)
    brokers.append(4)
    with opened(files, brokers, 1) as remote_log:
        begun = begin(remote_log, "another")
        remote_log.context.leases.release_many(begun.leases)
        late = remote_log.begin_copy(old, "late")
        assert ranges(task.metadata for task in late.tasks) == [(0, 9)]
        [left] = late.left
        assert "another leader" in left.message
        remote_log.context.leases.release_many(late.leases)
        copy(remote_log)
        assert values_read(remote_log) == brokers.values()
        assert_clean(remote_log, expected=None)


def test_the_lineage_is_recorded_before_a_trim_lets_the_broker_forget_it(
    brokers: Brokers, files: RemoteLogFiles
) -> None:
    brokers.append(4)
    brokers.replicate(1)
    files.properties["topics"]["orders"]["local.retention.bytes"] = 1
    with opened(files, brokers, 0) as remote_log:
        assert len(copy(remote_log).committed) == 1
    brokers.elect(1)
    brokers.append(1)

    with opened(files, brokers, 1) as remote_log:
        assert lineage_of(remote_log) == [(0, 0)]
        plans, _ = remote_log.deletions.plan_local_retention(EVERYTHING, NOW)
        holder = remote_log.context.leases.acquire(ORDERS_0, "somebody", 60_000)
        report = remote_log.deletions.enforce_local_retention(plans)
        assert report.trimmed == ()
        assert "somebody works on it" in report.failures[0].message
        with pytest.raises(LeaseHeldError):
            remote_log.context.leases.acquire(ORDERS_0, "another", 60_000)
        remote_log.context.leases.release(holder)

        assert len(remote_log.deletions.enforce_local_retention(plans).trimmed) == 1
        assert lineage_of(remote_log) == [(0, 0), (1, 20)]
        assert values_read(remote_log) == brokers.values()
        assert_clean(remote_log, expected=None)
