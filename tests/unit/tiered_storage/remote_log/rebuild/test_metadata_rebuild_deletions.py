"""After a rebuild, exactly the segments that were marked before are deleted."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from support.metadata_files import remove_metadata
from support.plain_reader import PlainReader
from support.remote_logs import (
    ENABLED,
    ORDERS_0,
    RemoteLogFiles,
    a_copied_remote_log,
    a_remote_log,
    assert_clean,
    begin,
    carry_out,
    copy,
    offsets_read,
    ranges,
    segments_of,
    states_of,
)
from support.simulated_crashes import dies_at
from tiered_storage.errors import RemoteStorageError
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import LEADER_EPOCH_CHECKPOINT, LeaderEpochCache
from tiered_storage.kafka_log.files.offset_checkpoint import LOG_START_OFFSET_CHECKPOINT, write_offset_checkpoint
from tiered_storage.remote_log.context import store_options
from tiered_storage.remote_log.coverage import Coverage
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.metadata.sql.segments import SqlRemoteLogMetadataManager
from tiered_storage.remote_log.model import PartitionDeleteState, RemoteLogSegmentMetadata, SegmentState
from tiered_storage.remote_log.rebuild.metadata_rebuild import RebuildReport, rebuild_metadata
from tiered_storage.remote_log.selection import EVERYTHING
from tiered_storage.remote_log.storage.clients.local_directory import LocalDirectory
from tiered_storage.remote_log.storage.segment_objects import ObjectRemoteStorageManager

DELETING = "DELETE_SEGMENT_STARTED"
FINISHED = "COPY_SEGMENT_FINISHED"
DISABLED = {**ENABLED, "remote.storage.enable": False}
DELETED_ON_DISABLE = {**DISABLED, "remote.log.delete.on.disable": True}


def lose_and_rebuild(files: RemoteLogFiles) -> RebuildReport:
    """Lose the metadata and rebuild them from the store."""
    remove_metadata(files)
    settings = files.settings()
    return rebuild_metadata(settings, store_options(settings, {}), files.clock)


def mark(remote_log: RemoteLogManager) -> None:
    plans, findings = remote_log.deletions.plan_expiry(EVERYTHING, remote_log.context.clock())
    _, left = remote_log.deletions.mark_expired(plans, "expire")
    assert (findings, left) == ([], ())


def allow_deletion(remote_log: RemoteLogManager) -> None:
    remote_log.context.topics.put(replace(remote_log.context.decided_topic(ORDERS_0), remote_deletion_allowed=True))


def decide(remote_log: RemoteLogManager, *, enabled: bool) -> None:
    remote_log.context.topics.put(replace(remote_log.context.decided_topic(ORDERS_0), remote_storage_enable=enabled))


def stored_marks(files: RemoteLogFiles) -> tuple[str, ...]:
    with files.open() as remote_log:
        assert isinstance(remote_log.context.storage, ObjectRemoteStorageManager)
        document = remote_log.context.storage.partition_manifests.read(ORDERS_0)
        return () if document is None else document.marked


def local_starts_at(files: RemoteLogFiles, offset: int) -> None:
    """Let the local log begin at `offset`, as a broker's own retention does."""
    for path in files.partition_directory().iterdir():
        if path.suffix in {".log", ".index", ".timeindex"} and int(path.stem) < offset:
            path.unlink()
    LeaderEpochCache.read(files.partition_directory() / LEADER_EPOCH_CHECKPOINT).truncate_from_start(offset)
    write_offset_checkpoint(files.log_directory / LOG_START_OFFSET_CHECKPOINT, {})


# ------------------------------------------------------------------------------------------------ marked segments


def test_all_that_was_marked_as_a_topic_was_disabled_stays_marked(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path, topics={"orders": DELETED_ON_DISABLE})
    with files.open() as remote_log:
        mark(remote_log)
        assert states_of(remote_log) == [(start, DELETING) for start in (0, 10, 20)]

    for _ in range(2):
        report = lose_and_rebuild(files)
        assert (report.segments, report.marked, report.unreadable) == (0, 3, ())
        with files.open() as remote_log:
            assert states_of(remote_log) == [(start, DELETING) for start in (0, 10, 20)]
            assert remote_log.deletions.delete_marked("expire").deleted == (), "the right was taken away"

    with files.open() as remote_log:
        allow_deletion(remote_log)
        assert len(remote_log.deletions.delete_marked("expire").deleted) == 3
        assert files.objects() == []
    assert stored_marks(files) == ()


def test_segments_copied_since_are_readable_beside_marked_ones(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path, topics={"orders": DELETED_ON_DISABLE})
    with files.open() as remote_log:
        mark(remote_log)
        before = [segment.segment_id.id for segment in segments_of(remote_log)]
        decide(remote_log, enabled=True)
        assert len(copy(remote_log).committed) == 3
    assert stored_marks(files) == tuple(sorted(before))

    assert (lose_and_rebuild(files).segments, lose_and_rebuild(files).marked) == (3, 3)
    with files.open() as remote_log:
        marked = [one.segment_id.id for one in segments_of(remote_log) if one.state.name == DELETING]
        assert sorted(marked) == sorted(before)
        allow_deletion(remote_log)
        assert len(remote_log.deletions.delete_marked("expire").deleted) == 3
        assert offsets_read(remote_log, 0) == list(range(35))
        assert_clean(remote_log)


def test_segments_below_the_global_log_start_are_marked_though_no_manifest_names_them(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path, topics={"orders": {**ENABLED, "retention.bytes": 1}})
    with files.open() as remote_log:
        mark(remote_log)
        assert states_of(remote_log) == [(start, DELETING) for start in (0, 10, 20)]
    assert stored_marks(files) == ()

    assert lose_and_rebuild(files).marked == 3
    with files.open() as remote_log:
        assert states_of(remote_log) == [(start, DELETING) for start in (0, 10, 20)]
        assert PlainReader(remote_log).log_start_offset(ORDERS_0) == 30


def test_a_second_copy_that_was_marked_stays_so(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    with files.open() as remote_log:
        with mock.patch.object(Coverage, "lacks", lambda _, start, *__: start == 10):
            copy(remote_log, "another run")
        files.clock.now += remote_log.context.settings.remote_log_orphan_grace_ms + 1
        mark(remote_log)
        [going] = [one for one in segments_of(remote_log) if one.state.name == DELETING]
    assert stored_marks(files) == (going.segment_id.id,)

    lose_and_rebuild(files)
    with files.open() as remote_log:
        marked = [one.segment_id for one in segments_of(remote_log) if one.state.name == DELETING]
        assert marked == [going.segment_id]
        assert_clean(remote_log)


def test_segments_under_deletion_are_not_taken_for_unfinished_copies(tmp_path: Path) -> None:
    """All commit markers went, as a deletion begins; then the run was killed, and the metadata were lost."""
    files = a_copied_remote_log(tmp_path, topics={"orders": DELETED_ON_DISABLE})
    with files.open() as remote_log:
        mark(remote_log)
    for marker in files.objects(".commit"):
        marker.unlink()
    shutil.rmtree(files.partition_directory())

    for _ in range(2):
        report = lose_and_rebuild(files)
        assert (report.segments, report.marked, report.unfinished) == (0, 3, 0)
    files.clock.now = 2_000_000_000_000
    with files.open() as remote_log:
        assert states_of(remote_log) == [(start, DELETING) for start in (0, 10, 20)]
        assert remote_log.repairs.plan(remote_log.checks.audit(), EVERYTHING).unfinished == ()
        allow_deletion(remote_log)
        remote_log.deletions.clocks.trust()
        report_of_deletion = remote_log.deletions.delete_marked("expire")
        assert (len(report_of_deletion.deleted), report_of_deletion.failures) == (3, ())
        assert files.objects() == []


def test_a_mark_whose_objects_are_gone_is_forgotten(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path, topics={"orders": DELETED_ON_DISABLE})
    with files.open() as remote_log:
        mark(remote_log)
    assert len(stored_marks(files)) == 3
    with files.open() as remote_log:
        remote_log.deletions.delete_marked("expire")
    assert stored_marks(files) == ()


def test_a_mark_that_the_metadata_never_got_holds_until_the_next_commit(tmp_path: Path) -> None:
    """A run died between the store's document and the metadata; then the topic is enabled again, and copied."""
    files = a_copied_remote_log(tmp_path, topics={"orders": DELETED_ON_DISABLE})
    with files.open() as remote_log:
        plans, _ = remote_log.deletions.plan_expiry(EVERYTHING, remote_log.context.clock())
        died = mock.Mock(side_effect=RuntimeError("killed"))
        with (
            mock.patch.object(SqlRemoteLogMetadataManager, "update_remote_log_segments", died),
            pytest.raises(RuntimeError),
        ):
            remote_log.deletions.mark_expired(plans, "expire")
        assert states_of(remote_log) == [(start, FINISHED) for start in (0, 10, 20)]
    assert len(stored_marks(files)) == 3

    files.append(2)
    with files.open() as remote_log:
        decide(remote_log, enabled=True)
        assert len(copy(remote_log).committed) == 1
    assert stored_marks(files) == ()
    assert lose_and_rebuild(files).segments == 4


def test_a_mark_that_the_metadata_never_got_is_found_by_an_audit_and_taken_back_by_a_repair(tmp_path: Path) -> None:
    """As before, but nothing is copied any more, and the remote segments are the only ones there are."""
    files = a_copied_remote_log(tmp_path, topics={"orders": DELETED_ON_DISABLE})
    died = mock.Mock(side_effect=RuntimeError("killed"))
    with files.open() as remote_log:
        plans, _ = remote_log.deletions.plan_expiry(EVERYTHING, remote_log.context.clock())
        with (
            mock.patch.object(SqlRemoteLogMetadataManager, "update_remote_log_segments", died),
            pytest.raises(RuntimeError),
        ):
            remote_log.deletions.mark_expired(plans, "expire")
        decide(remote_log, enabled=True)
        assert remote_log.checks.audit().anomalies == (), "whoever wrote it may be about to mark them"
    shutil.rmtree(files.partition_directory())
    files.clock.now += 100 * 24 * 3_600_000

    with files.open() as remote_log:
        found = remote_log.checks.audit()
        [wrong] = found.anomalies
        assert wrong.message.startswith("lists 3 segments as marked")
        report = remote_log.repairs.carry_out(remote_log.repairs.plan(found, EVERYTHING), "repair", mock.Mock())
        assert (report.documents, report.failures) == ((ORDERS_0,), ())
        assert remote_log.checks.audit().anomalies == ()

    assert (lose_and_rebuild(files).segments, stored_marks(files)) == (3, ())
    with files.open() as remote_log:
        assert offsets_read(remote_log, 0) == list(range(30))


def test_no_more_is_marked_than_a_document_may_name_and_the_next_run_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tiered_storage.remote_log.metadata.manifest_sync.MAX_MARKED", 2)
    files = a_copied_remote_log(tmp_path, topics={"orders": DELETED_ON_DISABLE})
    with files.open() as remote_log:
        for expected in ([FINISHED], []):
            plans, _ = remote_log.deletions.plan_expiry(EVERYTHING, remote_log.context.clock())
            done, left = remote_log.deletions.mark_expired(plans, "expire")
            assert done == (ORDERS_0,)
            assert [re.sub(r"\d+", "N", each.message)[:20] for each in left] == ["N segments wait: the"] * len(expected)
            assert [one.state.name for one in segments_of(remote_log) if one.state.name != DELETING] == expected
            remote_log.deletions.delete_marked("expire")
        assert files.objects() == []


# -------------------------------------------------------------------------------------------------- deleted topics


def delete_topic(remote_log: RemoteLogManager) -> None:
    plan = remote_log.deletions.plan_topic_deletion("orders")
    _, left = remote_log.deletions.mark_topic_deleted(plan, "delete-topic")
    assert left == ()


def delete_state(remote_log: RemoteLogManager) -> PartitionDeleteState | None:
    return remote_log.context.segments.partition_state(ORDERS_0).delete_state


def assert_the_deletion_ends(files: RemoteLogFiles) -> None:
    with files.open() as remote_log:
        allow_deletion(remote_log)
        files.clock.now += remote_log.context.settings.remote_log_orphan_grace_ms + 1
        newest = max((path.stat().st_mtime_ns // 1_000_000 for path in files.objects()), default=0)
        files.clock.now = max(files.clock.now, newest + remote_log.context.settings.remote_log_orphan_grace_ms + 1)
        # It was copied years ago by our clock.
        remote_log.deletions.clocks.trust()
        assert remote_log.deletions.delete_marked("expire").failures == ()
        assert delete_state(remote_log) is PartitionDeleteState.FINISHED
        assert files.objects() == []
        assert states_of(remote_log) == []
        assert remote_log.checks.audit().anomalies == ()


def fails_for(offset: int) -> Callable[..., Any]:
    real = ObjectRemoteStorageManager.delete_segments

    def delete(self: ObjectRemoteStorageManager, segments: list[RemoteLogSegmentMetadata]) -> dict[str, Any]:
        stuck = {one.segment_id.id: RemoteStorageError("away") for one in segments if one.start_offset == offset}
        return {**real(self, [one for one in segments if one.segment_id.id not in stuck]), **stuck}

    return delete


def test_a_topic_that_was_only_marked_is_marked_again(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path, topics={"orders": DISABLED})
    with files.open() as remote_log:
        delete_topic(remote_log)
    lose_and_rebuild(files)

    with files.open() as remote_log:
        assert delete_state(remote_log) is PartitionDeleteState.MARKED
        assert len(segments_of(remote_log)) == 3
    assert_the_deletion_ends(files)


def test_segments_that_a_topic_deletion_failed_to_delete_are_not_readable_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = a_copied_remote_log(tmp_path, topics={"orders": DISABLED})
    with files.open() as remote_log:
        delete_topic(remote_log)
        with monkeypatch.context() as patched:
            patched.setattr(ObjectRemoteStorageManager, "delete_segments", fails_for(10))
            assert len(remote_log.deletions.delete_marked("expire").deleted) == 2
    lose_and_rebuild(files)

    with files.open() as remote_log:
        assert delete_state(remote_log) is PartitionDeleteState.STARTED
        assert states_of(remote_log) == [(10, DELETING)]
    assert_the_deletion_ends(files)


def test_a_topic_that_is_gone_stays_deleted_whatever_shows_up_of_it(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path, topics={"orders": DISABLED})
    kept = {path: path.read_bytes() for path in files.objects()}
    with files.open() as remote_log:
        delete_topic(remote_log)
        assert len(remote_log.deletions.delete_marked("expire").deleted) == 3
        assert delete_state(remote_log) is PartitionDeleteState.FINISHED
        assert remote_log.checks.audit().anomalies == ()
    assert lose_and_rebuild(files).partitions == 0
    with files.open() as remote_log:
        assert delete_state(remote_log) is PartitionDeleteState.FINISHED
        assert remote_log.checks.audit().anomalies == ()

    # A worker that stood still, or a version of the store that somebody brought back.
    for path, content in kept.items():
        path.write_bytes(content)
    next(path for path in kept if path.suffix == ".commit").unlink()
    report = lose_and_rebuild(files)
    assert (report.partitions, report.segments, report.marked, report.unfinished) == (1, 0, 2, 1)
    with files.open() as remote_log:
        assert delete_state(remote_log) is PartitionDeleteState.STARTED
        assert {state for _, state in states_of(remote_log)} == {DELETING}
        decide(remote_log, enabled=True)
        assert copy(remote_log).committed == ()
    assert_the_deletion_ends(files)


# --------------------------------------------------------------------------------------------- without a document


def without_documents(files: RemoteLogFiles) -> None:
    for path in files.store.rglob("state/*.json"):
        path.unlink()


def test_a_later_segment_does_not_hide_an_earlier_one_that_was_not_copied(tmp_path: Path) -> None:
    """The very first run died with its second segment whole in the store, and its first one only in the local log."""
    files = a_remote_log(tmp_path)
    with files.open() as remote_log:
        carry_out(remote_log, begin(remote_log))
    for path in files.objects():
        if path.name.startswith(f"{0:020}-"):
            path.unlink()
    lose_and_rebuild(files)

    with files.open() as remote_log:
        assert ranges(segments_of(remote_log)) == [(10, 19), (20, 29)]
        assert offsets_read(remote_log, 0) == list(range(35))
        assert ranges(copy(remote_log).committed) == [(0, 9)]
        assert remote_log.context.segments.log_start_offset(ORDERS_0) == 0
        assert_clean(remote_log)


def test_a_log_start_that_the_broker_moved_hides_nothing_of_what_is_remote(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    without_documents(files)
    lose_and_rebuild(files)
    files.append(2)
    (files.log_directory / "log-start-offset-checkpoint").write_text("0\n1\norders 0 15\n")
    local_starts_at(files, 10)

    with files.open() as remote_log:
        assert ranges(copy(remote_log).committed) == [(30, 39)]
        assert offsets_read(remote_log, 0) == list(range(45))
        assert remote_log.context.segments.log_start_offset(ORDERS_0) == 0


@pytest.mark.parametrize("lost", ["marker", "bundle"])
def test_a_whole_copy_below_all_others_that_is_not_known_does_not_end_its_life(tmp_path: Path, lost: str) -> None:
    files = a_copied_remote_log(tmp_path)
    suffix = ".commit" if lost == "marker" else ".indexes"
    path = next(path for path in files.objects(suffix) if path.name.startswith(f"{0:020}-"))
    content = path.read_bytes()
    path.unlink() if lost == "marker" else path.write_bytes(content[:-1] + b"!")
    without_documents(files)
    local_starts_at(files, 10)
    report = lose_and_rebuild(files)
    assert (report.unfinished, len(report.unreadable)) == ((1, 0) if lost == "marker" else (0, 1))

    files.append(2)
    with files.open() as remote_log:
        allow_deletion(remote_log)
        copy(remote_log)
        files.clock.now += remote_log.context.settings.remote_log_orphan_grace_ms + 1
        remote_log.deletions.delete_marked("expire")
        # A whole copy that cannot be read is there: nobody is to give its offsets up.
        expected = "gap" if lost == "marker" else "metadata older than the store"
        assert [str(one.kind) for one in remote_log.checks.audit().anomalies if one.offsets in {(0, 9), None}] == [
            expected
        ]
    assert len([one for one in files.objects() if one.name.startswith(f"{0:020}-")]) == (2 if lost == "marker" else 3)

    path.write_bytes(content)
    lose_and_rebuild(files)
    with files.open() as remote_log:
        assert ranges(segments_of(remote_log))[0] == (0, 9)
        assert offsets_read(remote_log, 0) == list(range(45))
        assert [one.state for one in segments_of(remote_log)] == [SegmentState.COPY_SEGMENT_FINISHED] * 4


# --------------------------------------------------------------------------------------------------------- crashes


@pytest.mark.parametrize("after_it", [False, pytest.param(True, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("step", range(14))
def test_a_deletion_that_dies_anywhere_leaves_nothing_that_comes_back(
    tmp_path: Path, step: int, *, after_it: bool
) -> None:
    files = a_copied_remote_log(tmp_path, topics={"orders": DISABLED})
    with files.open() as remote_log:
        delete_topic(remote_log)
        with dies_at(step, after_it=after_it):
            remote_log.deletions.delete_marked("expire")
        before = {one.segment_id for one in segments_of(remote_log) if one.state.name == FINISHED}
    lose_and_rebuild(files)
    with files.open() as remote_log:
        alive = {one.segment_id for one in segments_of(remote_log) if one.state.name == FINISHED}
        assert alive <= before
        assert delete_state(remote_log) is not None
    assert_the_deletion_ends(files)
    assert LocalDirectory(files.store).root
