"""Expiry of forked logs: no record of either log is deleted while it is the only copy."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

import pytest

from scenarios.replicas.forked_logs import everything_said, forked, local_values, over, retain, stored_values, write
from support.command_line import mentions, run_on
from support.metadata_files import remove_metadata
from support.remote_logs import ENABLED, NOW, ORDERS_0, RemoteLogFiles, begin, carry_out, copy, segments_of
from tiered_storage.kafka_log.files.log_segment import list_segments
from tiered_storage.remote_log.context import store_options
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata
from tiered_storage.remote_log.rebuild.metadata_rebuild import rebuild_metadata
from tiered_storage.remote_log.rebuild.take_over import take_over
from tiered_storage.remote_log.selection import EVERYTHING


@pytest.mark.parametrize("cut_there", [300, 100_000])
def test_expire_leaves_a_fork_whose_young_records_local_retention_would_take_for_expired(
    tmp_path: Path, cut_there: int
) -> None:
    topics = {"orders": {**ENABLED, "local.retention.bytes": 0, "retention.ms": 1000}}
    here = write(tmp_path / "here", [5] * 4, "shared")
    there = shutil.copytree(here, tmp_path / "there")
    write(here, [3] * 20, "here")
    # The last batches end at the same offsets as the other log's; only earlier ones differ.
    write(there, [5] * 8, "there", cut_there)
    write(there, [3] * 20, "there", cut_there)
    with over(tmp_path, here, topics=topics).open() as remote_log:
        assert copy(remote_log).is_whole
        copied = segments_of(remote_log)
    before = local_values(there)
    files = over(tmp_path, there, topics=topics, **{"remote.log.deletion.grace.ms": 0})
    files.clock.now += 10**9
    with files.open() as remote_log:
        plans, _ = remote_log.deletions.plan_expiry(EVERYTHING, files.clock.now)
        assert plans[0].new_log_start > 20
        done, left = remote_log.deletions.mark_expired(plans, "expire")

        assert done == ()
        assert mentions(str(left[0]), "orders-0", "fork")
        assert segments_of(remote_log) == copied
        retain(remote_log)
        assert {value for value in before if value and value.startswith(b"there")} <= local_values(there)


@pytest.mark.parametrize("limit", ["retention.bytes", "retention.ms"])
@pytest.mark.parametrize("are_closed", [True, False])
def test_expire_ends_nothing_while_a_fork_is_in_its_place(tmp_path: Path, limit: str, are_closed: bool) -> None:
    """Only records of both logs would expire, because the fork is longer."""
    here = write(tmp_path / "here", [5] * 20, "shared")
    there = shutil.copytree(here, tmp_path / "there")
    write(here, [5] * 8, "here")
    write(there, [5] * 60, "there", 300 if are_closed else 100_000)
    local_bytes = sum(segment.size() for segment in list_segments(there / "orders-0"))
    value = {"retention.bytes": local_bytes - 600, "retention.ms": 1000}[limit]
    topics = {"orders": {**ENABLED, "local.retention.bytes": 0, limit: value}}
    files = over(tmp_path, here, topics=topics)
    files.clock.now = NOW + 1060
    with files.open() as remote_log:
        assert copy(remote_log).is_whole
        copied = segments_of(remote_log)
    files = over(tmp_path, there, topics=topics, **{"remote.log.deletion.grace.ms": 0})
    files.clock.now = NOW + 1060
    with files.open() as remote_log:
        plans, _ = remote_log.deletions.plan_expiry(EVERYTHING, files.clock.now)
        assert 0 < plans[0].new_log_start <= 100

    ended = run_on(files, "expire")

    assert ended.exit_code == 1
    assert mentions(everything_said([ended]), "orders-0", "fork")
    with files.open() as remote_log:
        assert segments_of(remote_log) == copied
        assert remote_log.context.segments.log_start_offset(ORDERS_0) in (None, 0)


def test_expire_continues_where_a_replica_cut_its_segments_elsewhere(tmp_path: Path) -> None:
    topics = {"orders": {**ENABLED, "local.retention.bytes": 0, "retention.ms": 1000}}
    here = write(tmp_path / "here", [5] * 20, "same", 300)
    there = write(tmp_path / "there", [5] * 30, "same", 500)
    with over(tmp_path, here, topics=topics).open() as remote_log:
        assert copy(remote_log).is_whole
    files = over(tmp_path, there, topics=topics)
    files.clock.now += 10**9
    with files.open() as remote_log:
        plans, _ = remote_log.deletions.plan_expiry(EVERYTHING, files.clock.now)
        done, left = remote_log.deletions.mark_expired(plans, "expire")

        assert (done, left) == ((ORDERS_0,), ())
        assert remote_log.context.segments.log_start_offset(ORDERS_0) == plans[0].new_log_start > 100


@pytest.mark.parametrize("fork_is_copied", [False, True])
def test_expire_keeps_a_whole_copy_that_lost_its_marker_where_only_a_fork_has_its_offsets(
    tmp_path: Path, fork_is_copied: bool
) -> None:
    here, there = forked(tmp_path, [5] * 4, [5] * 12, [5] * 30)
    with over(tmp_path, here).open() as remote_log:
        assert copy(remote_log).is_whole
        assert retain(remote_log) == []
        lost = [segment for segment in segments_of(remote_log) if segment.end_offset >= 20]
    files = without_markers(over(tmp_path, there), lost)
    if fork_is_copied:
        with files.open() as remote_log:
            assert copy(remote_log).is_whole
    stored = stored_values(files)

    with files.open() as remote_log:
        remote_log.deletions.delete_marked("expire")
        files.clock.now += 10**9
        report = remote_log.deletions.delete_marked("expire")

        assert report.deleted == ()
        assert any("with the same batches" in str(failure) for failure in report.failures)
        assert stored and stored_values(files) == stored


@pytest.mark.parametrize("cut_there", [300, 500])
@pytest.mark.parametrize("is_copied", [False, True])
def test_expire_deletes_a_whole_copy_that_lost_its_marker_where_its_batches_are_in_segments_of_any_boundaries(
    tmp_path: Path, cut_there: int, is_copied: bool
) -> None:
    here = write(tmp_path / "here", [5] * 16, "same", 300)
    there = write(tmp_path / "there", [5] * 16, "same", cut_there)
    with over(tmp_path, here).open() as remote_log:
        assert copy(remote_log).is_whole
        lost = [segment for segment in segments_of(remote_log) if 20 <= segment.end_offset < 60]
    files = without_markers(over(tmp_path, there), lost)
    if is_copied:
        with files.open() as remote_log:
            assert copy(remote_log).is_whole

    with files.open() as remote_log:
        remote_log.deletions.delete_marked("expire")
        files.clock.now += 10**9
        report = remote_log.deletions.delete_marked("expire")

        assert (len(report.deleted), report.failures) == (len(lost), ())


def without_markers(files: RemoteLogFiles, lost: Iterable[RemoteLogSegmentMetadata]) -> RemoteLogFiles:
    """Remove the commit markers of `lost` and rebuild the metadata; all grace times are over then."""
    ids = [segment.segment_id.id for segment in lost]
    assert ids
    for marker in files.objects(".commit"):
        if any(one in marker.name for one in ids):
            marker.unlink()
    remove_metadata(files)
    settings = files.settings()
    rebuild_metadata(settings, store_options(settings, {}), files.clock)
    return files


def committed_after_a_backup(root: Path, here: Path) -> None:
    """Copy and trim the log in `here`, then restore metadata in which all copies are unfinished."""
    database, backup = root / "state" / "remote_log_metadata.db", root / "backup.db"
    with over(root, here).open() as remote_log:
        outcomes = carry_out(remote_log, begin(remote_log))
        with closing(sqlite3.connect(database)) as source, closing(sqlite3.connect(backup)) as target:
            source.backup(target)
        assert remote_log.commit_copy(outcomes).is_whole
        assert retain(remote_log) == []
    for path in database.parent.glob(f"{database.name}*"):
        path.unlink()
    shutil.copy(backup, database)
    with over(root, here).open(outdated=True) as remote_log:
        assert take_over(remote_log.context).was_outdated


@pytest.mark.parametrize("is_copied", [False, True])
@pytest.mark.parametrize("broken", [False, True])
@pytest.mark.parametrize("is_fork", [False, True])
def test_expire_deletes_a_copy_with_a_marker_and_no_indexes_only_where_its_batches_are_elsewhere(
    tmp_path: Path, is_copied: bool, broken: bool, is_fork: bool
) -> None:
    here = write(tmp_path / "here", [5] * 4, "shared")
    there = shutil.copytree(here, tmp_path / "there")
    for root, word in ((here, "here"), (there, "there" if is_fork else "here")):
        write(root, [5] * 12, word, 500)
    committed_after_a_backup(tmp_path, here)
    files = over(tmp_path, there)
    stored = stored_values(files)
    files.clock.now += 10**9
    [*_, lost] = files.objects(".indexes")
    if broken:
        os.truncate(lost, 10)
    else:
        lost.unlink()
    if is_copied:
        with files.open() as remote_log:
            assert copy(remote_log).is_whole

    for _ in range(2):
        with files.open() as remote_log:
            report = remote_log.deletions.delete_marked("expire")
        files.clock.now += 10**9

    if is_fork:
        assert stored and stored_values(files) == stored
        assert any("with the same batches" in str(failure) for failure in report.failures)
    else:
        assert report.failures == ()
        assert not files.objects(".indexes") or is_copied
