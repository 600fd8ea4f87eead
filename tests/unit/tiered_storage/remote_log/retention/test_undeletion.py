"""An undelete brings back what was marked, as far as the store still has it, and a rebuild agrees."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.command_line import mentions
from support.metadata_files import remove_metadata
from support.remote_logs import (
    ENABLED,
    ORDERS_0,
    SEGMENT_BYTES,
    RemoteLogFiles,
    a_copied_remote_log,
    assert_clean,
    carry_out,
    end_below,
    held_by,
    local_log,
    offsets_read,
    partition_of,
    segments_of,
    states_of,
)
from tiered_storage.errors import ConfigurationError
from tiered_storage.remote_log.context import store_options
from tiered_storage.remote_log.copy.tasks import CopyPlan, PlannedSegment
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.metadata.manifest_sync import manifests_of
from tiered_storage.remote_log.model import (
    LeaseHeldFinding,
    PartitionDeleteState,
    RemoteLogSegmentMetadataUpdate,
    SegmentState,
)
from tiered_storage.remote_log.rebuild.metadata_rebuild import rebuild_metadata
from tiered_storage.remote_log.selection import EVERYTHING
from unit.tiered_storage.remote_log.retention.replaced_topics import show_created_again

GRACE = 3_600_000
DELETING, FINISHED = "DELETE_SEGMENT_STARTED", "COPY_SEGMENT_FINISHED"
EVERYTHING_READABLE = [(0, FINISHED), (10, FINISHED), (20, FINISHED)]


@pytest.fixture
def files(tmp_path: Path) -> RemoteLogFiles:
    topics = {"orders": {**ENABLED, "retention.bytes": SEGMENT_BYTES + 1}}
    return a_copied_remote_log(tmp_path, topics=topics, remote_log_deletion_grace_ms=GRACE)


def expire(remote_log: RemoteLogManager) -> None:
    plans, _ = remote_log.deletions.plan_expiry(EVERYTHING, remote_log.context.clock())
    assert remote_log.deletions.mark_expired(plans, "expire")[1] == ()
    assert remote_log.deletions.delete_marked("expire").failures == ()


def delete_records(remote_log: RemoteLogManager, before: int = 20) -> None:
    plan = remote_log.deletions.plan_record_deletion(ORDERS_0, before)
    assert plan is not None
    assert remote_log.deletions.mark_expired([plan], "delete-records")[1] == ()


def decide(remote_log: RemoteLogManager, **changed: Any) -> None:
    remote_log.context.topics.put(replace(remote_log.context.decided_topic(ORDERS_0), **changed))


def disable(remote_log: RemoteLogManager) -> None:
    decide(remote_log, remote_storage_enable=False, properties={"remote.log.delete.on.disable": "true"})
    expire(remote_log)


def delete_topic(remote_log: RemoteLogManager) -> None:
    decide(remote_log, remote_storage_enable=False)
    plan = remote_log.deletions.plan_topic_deletion("orders")
    assert remote_log.deletions.mark_topic_deleted(plan, "delete-topic")[1] == ()


def delete_topic_and_expire(remote_log: RemoteLogManager) -> None:
    delete_topic(remote_log)
    expire(remote_log)


WAYS = [expire, delete_records, disable, delete_topic, delete_topic_and_expire]


@pytest.mark.parametrize("delete", WAYS)
def test_an_undelete_restores_the_state_before_any_kind_of_deletion(
    files: RemoteLogFiles, delete: Callable[[RemoteLogManager], None]
) -> None:
    with files.open() as remote_log:
        before = remote_log.context.segments.partition_state(ORDERS_0)
        delete(remote_log)
        files.clock.now += GRACE - 1
        [done], left = remote_log.deletions.undelete("orders", "ada")
        assert (done.topic_id_partition, done.log_start_offset, left) == (ORDERS_0, 0, [])
        assert remote_log.context.segments.partition_state(ORDERS_0) == before
        assert states_of(remote_log) == EVERYTHING_READABLE
        assert offsets_read(remote_log, 0) == list(range(35))
        assert_clean(remote_log)
        assert remote_log.context.leases.acquire(ORDERS_0, "next", 1).owner == "next"


@pytest.mark.parametrize("delete", WAYS)
def test_metadata_rebuilt_from_the_store_agree(
    files: RemoteLogFiles, delete: Callable[[RemoteLogManager], None]
) -> None:
    with files.open() as remote_log:
        delete(remote_log)
        remote_log.deletions.undelete("orders", "ada")
    rebuild(files)
    with files.open() as remote_log:
        assert states_of(remote_log) == EVERYTHING_READABLE
        assert remote_log.context.segments.log_start_offset(ORDERS_0) == 0
        assert_clean(remote_log)


@pytest.mark.parametrize("delete", [expire, delete_records, delete_topic_and_expire])
def test_segments_marked_before_a_rebuild_can_be_undeleted_after_it(
    files: RemoteLogFiles, delete: Callable[[RemoteLogManager], None]
) -> None:
    with files.open() as remote_log:
        delete(remote_log)
    rebuild(files)
    with files.open() as remote_log:
        assert DELETING in {state for _, state in states_of(remote_log)}
        remote_log.deletions.undelete("orders", "ada")
        assert states_of(remote_log) == EVERYTHING_READABLE
        assert remote_log.context.segments.log_start_offset(ORDERS_0) == 0


def rebuild(files: RemoteLogFiles) -> None:
    remove_metadata(files)
    files.clock.now += 1
    settings = files.settings()
    assert rebuild_metadata(settings, store_options(settings, {}), files.clock).unreadable == ()


def test_the_store_knows_before_the_metadata_do(files: RemoteLogFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    with files.open() as remote_log:
        expire(remote_log)
        manifests = manifests_of(remote_log.context.storage)
        assert manifests is not None

        def died(*_: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(type(remote_log.context.segments), "undelete", died)
        with pytest.raises(KeyboardInterrupt):
            remote_log.deletions.undelete("orders", "ada")
        document = manifests.read(ORDERS_0)
        assert document is not None
        assert (document.state.log_start_offset, document.marked) == (0, ())
        assert states_of(remote_log) == [(0, DELETING), (10, DELETING), (20, FINISHED)]
        monkeypatch.undo()
        remote_log.deletions.undelete("orders", "ada")
        assert_clean(remote_log)


def test_the_log_start_returns_to_where_it_was_and_not_to_the_first_offset_that_is_there(
    files: RemoteLogFiles,
) -> None:
    with files.open() as remote_log:
        delete_records(remote_log, 5)
        files.clock.now += GRACE + 1
        expire(remote_log)
        assert remote_log.context.segments.log_start_offset(ORDERS_0) == 20
        remote_log.deletions.undelete("orders", "ada")
        assert remote_log.context.segments.log_start_offset(ORDERS_0) == 5


def test_records_of_the_active_segment_come_back(files: RemoteLogFiles) -> None:
    with files.open() as remote_log:
        delete_records(remote_log, 33)
        remote_log.deletions.undelete("orders", "ada")
        assert offsets_read(remote_log, 0) == list(range(35))


def test_an_object_that_is_gone_is_named_and_the_log_begins_after_it(files: RemoteLogFiles) -> None:
    with files.open() as remote_log:
        expire(remote_log)
        for path in (files.root / "logs").rglob("0000000000000000000*.log"):
            path.unlink()
        gone = next(path for path in files.objects(".commit") if path.name.startswith(f"{0:020}"))
        gone.unlink()
        [done], [left] = remote_log.deletions.undelete("orders", "ada")
        assert mentions(left.message, gone.name, "offsets 0 to 9")
        assert states_of(remote_log) == [(0, DELETING), (10, FINISHED), (20, FINISHED)]
        assert done.log_start_offset == remote_log.context.segments.log_start_offset(ORDERS_0)
        assert remote_log.context.segments.log_start_offset(ORDERS_0) == 10


def test_segments_before_an_unrecoverable_gap_stay_marked(files: RemoteLogFiles) -> None:
    with files.open() as remote_log:
        remote_log.deletions.mark_expired(remote_log.deletions.plan_expiry(EVERYTHING, files.clock.now)[0], "expire")
        for base_offset in (0, 10):
            for path in files.partition_directory().glob(f"{base_offset:020}.*"):
                path.unlink()
        next(path for path in files.objects(".indexes") if path.name.startswith(f"{10:020}")).unlink()
        with_hole, left = remote_log.deletions.undelete("orders", "ada")
        assert (with_hole, len(left)) == ([], 1)
        assert states_of(remote_log) == [(0, DELETING), (10, DELETING), (20, FINISHED)]
        assert remote_log.context.segments.log_start_offset(ORDERS_0) == 20


def test_a_copy_that_a_repair_replaced_stays_marked(files: RemoteLogFiles) -> None:
    """It may be damaged: readers take the offsets from the one that was made in its place."""
    with files.open() as remote_log:
        [damaged, *_] = segments_of(remote_log)
        [path] = [each.location for each in local_log(remote_log).segments if each.base_offset == 0]
        again = PlannedSegment(ORDERS_0, path, 0, 9, damaged.size, local_log(remote_log).leader_epochs)
        begun = remote_log.begin_copy(CopyPlan((again,), replacing=frozenset({damaged.segment_id.id})), "repair")
        [sound] = remote_log.commit_copy(carry_out(remote_log, begun, "runs/repair/1")).committed
        end_below(remote_log, 0, to_mark=[damaged])
        lease = held_by(remote_log, "repair")
        marking = RemoteLogSegmentMetadataUpdate(
            damaged.segment_id, SegmentState.DELETE_SEGMENT_STARTED, files.clock.now
        )
        remote_log.context.segments.update_remote_log_segment_metadata(marking, lease)
        remote_log.context.leases.release(lease)
        files.clock.now += 1
        expire(remote_log)

        [done], _ = remote_log.deletions.undelete("orders", "ada")
        assert done.second_copies == 1
        states = {segment.segment_id: segment.state.name for segment in segments_of(remote_log)}
        assert (states[sound.segment_id], states[damaged.segment_id]) == (FINISHED, DELETING)
        assert_clean(remote_log)


def test_a_finished_deletion_cannot_be_taken_back(files: RemoteLogFiles) -> None:
    with files.open() as remote_log:
        delete_topic(remote_log)
        expire(remote_log)
        files.clock.now += GRACE
        expire(remote_log)
        assert remote_log.context.segments.partition_state(ORDERS_0).delete_state is PartitionDeleteState.FINISHED
        with pytest.raises(ConfigurationError, match=r"orders: .*segment"):
            remote_log.deletions.undelete("orders", "ada")


@pytest.mark.parametrize("topic", ["orders", "order", "no-such"])
def test_an_undelete_without_marked_segments_reports_it(files: RemoteLogFiles, topic: str) -> None:
    with (
        files.open() as remote_log,
        pytest.raises(ConfigurationError, match=f"{topic}"),
    ):
        remote_log.deletions.undelete(topic, "ada")


def test_a_dry_run_changes_nothing(files: RemoteLogFiles) -> None:
    with files.open() as remote_log:
        expire(remote_log)
        manifests = {path: path.read_bytes() for path in files.store.rglob("state/*.json")}
        [shown], left = remote_log.deletions.undelete("orders", "ada", dry_run=True)
        assert (shown.log_start_offset, [one.start_offset for one in shown.segments], left) == (0, [0, 10], [])
        assert states_of(remote_log) == [(0, DELETING), (10, DELETING), (20, FINISHED)]
        assert {path: path.read_bytes() for path in files.store.rglob("state/*.json")} == manifests


def test_only_the_partitions_that_are_named_come_back(tmp_path: Path) -> None:
    topics = {"orders": {**ENABLED, "retention.bytes": 1}}
    files = a_copied_remote_log(
        tmp_path, {("orders", 0): 2, ("orders", 1): 2}, topics=topics, remote_log_deletion_grace_ms=GRACE
    )
    with files.open() as remote_log:
        expire(remote_log)
        remote_log.deletions.undelete("orders", "ada", frozenset({1}))
        assert {state for _, state in states_of(remote_log, partition_of("orders", 0))} == {DELETING}
        assert {state for _, state in states_of(remote_log, partition_of("orders", 1))} == {FINISHED}


def test_a_partition_that_somebody_works_on_is_left_and_reported(files: RemoteLogFiles) -> None:
    with files.open() as remote_log:
        expire(remote_log)
        held_by(remote_log, "a run of expire")
        done, [left] = remote_log.deletions.undelete("orders", "ada")
        assert done == []
        assert isinstance(left, LeaseHeldFinding)
        assert "a run of expire" in left.message
        assert states_of(remote_log)[0] == (0, DELETING)


def test_local_segments_are_needed_again(files: RemoteLogFiles) -> None:
    """What is below the global log start may be trimmed; after an undelete nothing is."""
    with files.open() as remote_log:
        expire(remote_log)
        remote_log.deletions.undelete("orders", "ada")
        [plan], _ = remote_log.deletions.plan_local_retention(EVERYTHING, files.clock.now)
        assert len(plan.held_by) == len(plan.segments)
        assert len(segments_of(remote_log)) == 3


def test_an_undeleted_topic_that_was_created_again_is_not_marked_by_the_next_expire(
    files: RemoteLogFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.properties["remote.log.replaced.topic.grace.ms"] = 0
    with files.open() as remote_log:
        decide(remote_log, remote_storage_enable=False)
        show_created_again(monkeypatch, remote_log, [ORDERS_0])
        remote_log.deletions.delete_marked("expire")
        assert remote_log.context.segments.partition_state(ORDERS_0).delete_state is not None
        shown, _ = remote_log.deletions.undelete("orders", "ada", dry_run=True)
        assert remote_log.context.decided_topic(ORDERS_0).remote_deletion_allowed

        [done], left = remote_log.deletions.undelete("orders", "ada")
        files.clock.now += 1
        remote_log.deletions.delete_marked("expire")

        assert (done.is_replaced, shown, left) == (True, [done], [])
        assert mentions(done.kept, "old one", "forbidden")
        assert remote_log.context.segments.partition_state(ORDERS_0).delete_state is None
        assert states_of(remote_log) == EVERYTHING_READABLE
