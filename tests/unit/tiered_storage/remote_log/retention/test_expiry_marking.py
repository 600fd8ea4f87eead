"""Plans are carried out in groups of partitions, and each of them as if it were alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.remote_logs import (
    ENABLED,
    ORDERS_0,
    RemoteLogFiles,
    a_copied_remote_log,
    held_by,
    partition_of,
    states_of,
)
from tiered_storage.errors import RemoteStorageError
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.metadata.manifest_sync import manifests_of
from tiered_storage.remote_log.metadata.sql.leases import SqlLeases
from tiered_storage.remote_log.metadata.sql.segments import SqlRemoteLogMetadataManager
from tiered_storage.remote_log.model import TopicIdPartition
from tiered_storage.remote_log.retention import expiry_marking
from tiered_storage.remote_log.retention.expiry import ExpiryPlan
from tiered_storage.remote_log.selection import EVERYTHING
from tiered_storage.remote_log.storage.documents.partition_manifest import PartitionManifest, PartitionManifests

DELETING = "DELETE_SEGMENT_STARTED"
FINISHED = "COPY_SEGMENT_FINISHED"
PARTITIONS = [partition_of("orders", number) for number in range(4)]


@pytest.fixture
def files(tmp_path: Path) -> RemoteLogFiles:
    topics = {"orders": {**ENABLED, "retention.bytes": 1}}
    return a_copied_remote_log(tmp_path, {("orders", number): 1 for number in range(4)}, topics=topics)


def plans_of(remote_log: RemoteLogManager) -> list[ExpiryPlan]:
    plans, findings = remote_log.deletions.plan_expiry(EVERYTHING, remote_log.context.clock())
    assert findings == []
    return sorted(plans, key=lambda plan: plan.topic_id_partition)


def states(remote_log: RemoteLogManager) -> list[str]:
    return [state for partition in PARTITIONS for _, state in states_of(remote_log, partition)]


def after_first(kind: Any, name: str, change: Callable[[], object], patch: pytest.MonkeyPatch) -> None:
    """Let `change` happen once, right after a call of that name."""
    real = getattr(kind, name)

    def call(*arguments: Any, **options: Any) -> Any:
        result = real(*arguments, **options)
        patch.setattr(kind, name, real)
        change()
        return result

    patch.setattr(kind, name, call)


def test_a_group_takes_its_steps_together(files: RemoteLogFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, int]] = []

    def count_calls(kind: type, name: str) -> None:
        real = getattr(kind, name)

        def counted(*arguments: Any) -> Any:
            calls.append((name, len(list(arguments[1]))))
            return real(*arguments)

        monkeypatch.setattr(kind, name, counted)

    count_calls(SqlLeases, "acquire_many")
    count_calls(SqlRemoteLogMetadataManager, "advance_log_start_offsets")
    count_calls(SqlRemoteLogMetadataManager, "update_remote_log_segments")
    count_calls(SqlLeases, "release_many")
    monkeypatch.setattr(expiry_marking, "GROUP_PARTITIONS", 3)
    with files.open() as remote_log:
        done, left = remote_log.deletions.mark_expired(plans_of(remote_log), "expire")
        assert (list(done), left) == (PARTITIONS, ())
        assert states(remote_log) == [DELETING] * 4

    steps = ("acquire_many", "advance_log_start_offsets", "update_remote_log_segments", "release_many")
    assert calls == [(name, count) for count in (3, 1) for name in steps]


def test_two_plans_of_one_partition_are_carried_out_one_after_the_other(files: RemoteLogFiles) -> None:
    with files.open() as remote_log:
        plan = plans_of(remote_log)[0]
        done, left = remote_log.deletions.mark_expired([plan, plan], "expire")
        assert (set(done), left) == ({ORDERS_0}, ())


def test_a_second_plan_of_a_partition_is_not_taken_for_the_first(files: RemoteLogFiles) -> None:
    with files.open() as remote_log:
        plans = [remote_log.deletions.plan_record_deletion(ORDERS_0, before) for before in (5, 10)]
        done, left = remote_log.deletions.mark_expired([plan for plan in plans if plan is not None], "expire")

        assert (done, left) == ((ORDERS_0,), ())
        assert remote_log.context.segments.log_start_offset(ORDERS_0) == 10
        assert states_of(remote_log, ORDERS_0) == [(0, DELETING)]


def test_a_stop_while_a_group_is_looked_at_marks_nothing_of_it(
    files: RemoteLogFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    with files.open() as remote_log:
        plans = plans_of(remote_log)
        after_first(SqlLeases, "acquire_many", lambda: remote_log.context.safety.stop("enough", "ada"), monkeypatch)
        done, left = remote_log.deletions.mark_expired(plans, "expire")

        assert done == ()
        assert ["ada stopped all deletions" in each.message for each in left] == [True] * 4
        assert states(remote_log) == [FINISHED] * 4
        assert [remote_log.context.segments.log_start_offset(each) for each in PARTITIONS] == [0] * 4
        for partition in PARTITIONS:
            held_by(remote_log, "another", partition)


def test_a_stop_after_a_group_was_planned_again_marks_nothing_of_it(
    files: RemoteLogFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    with files.open() as remote_log:
        plans = plans_of(remote_log)
        change = lambda: remote_log.context.safety.stop("enough", "ada")  # noqa: E731
        after_first(expiry_marking, "incomplete_partitions", change, monkeypatch)
        done, left = remote_log.deletions.mark_expired(plans, "expire")

        assert (done, len(left)) == ((), 4)
        assert states(remote_log) == [FINISHED] * 4
        assert [documented_start(remote_log, each) for each in PARTITIONS] == [0] * 4


def documented_start(remote_log: RemoteLogManager, partition: TopicIdPartition) -> int | None:
    manifests = manifests_of(remote_log.context.storage)
    assert manifests is not None
    document = manifests.read(partition)
    assert document is not None
    return document.state.log_start_offset


def test_a_failure_of_one_partition_stops_no_other_of_its_group(
    files: RemoteLogFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One is held by a copy, of one the document cannot be written, of one the store has lost an object."""
    next(path for path in files.objects(".log") if path.parent.name == "2").unlink()
    written = PartitionManifests.write

    def away(self: PartitionManifests, document: PartitionManifest) -> None:
        if document.topic_id_partition.partition == 1:
            raise RemoteStorageError("away")
        written(self, document)

    monkeypatch.setattr(PartitionManifests, "write", away)
    with files.open() as remote_log:
        plans = plans_of(remote_log)
        lease = held_by(remote_log, "a copy", PARTITIONS[0])
        done, left = remote_log.deletions.mark_expired(plans, "expire")

        assert list(done) == PARTITIONS[3:]
        assert sorted((each.partition, each.message.rpartition(" ")[2]) for each in left) == [
            ("orders-0", "lease"), ("orders-1", "away"), ("orders-2", "--give-up"),
        ]  # fmt: skip
        assert states(remote_log) == [FINISHED, FINISHED, FINISHED, DELETING]
        remote_log.context.leases.release(lease)


def test_the_store_knows_before_the_metadata_do(files: RemoteLogFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    with files.open() as remote_log:
        seen: list[list[int | None]] = []
        real = SqlRemoteLogMetadataManager.advance_log_start_offsets

        def advance(self: SqlRemoteLogMetadataManager, moves: Sequence[Any], moved_at: int) -> Any:
            seen.append([documented_start(remote_log, each) for each in PARTITIONS])
            return real(self, moves, moved_at)

        monkeypatch.setattr(SqlRemoteLogMetadataManager, "advance_log_start_offsets", advance)
        remote_log.deletions.mark_expired(plans_of(remote_log), "expire")
        assert seen == [[10] * 4]


def test_a_right_that_was_taken_away_is_reported_for_each_partition(files: RemoteLogFiles) -> None:
    with files.open() as remote_log:
        plans = plans_of(remote_log)
        remote_log.context.topics.put(
            replace(remote_log.context.decided_topic(ORDERS_0), remote_deletion_allowed=False)
        )
        done, left = remote_log.deletions.mark_expired(plans, "expire")

        assert done == ()
        assert [each.partition for each in left] == [str(partition) for partition in PARTITIONS]
