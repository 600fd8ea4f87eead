from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from support.command_line import mentions, run_on
from support.metadata_files import database_of, remove_metadata
from support.remote_logs import (
    ENABLED,
    RemoteLogFiles,
    a_remote_log,
    be_the_original,
    begin,
    carry_out,
    copy,
    end_below,
    flip_bit,
    offsets_read,
    states_of,
)
from tiered_storage.errors import OutdatedMetadataError
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.rebuild.take_over import take_over
from tiered_storage.remote_log.retention.object_deletion import DeletionReport
from tiered_storage.remote_log.selection import EVERYTHING

STARTED, FINISHED = "COPY_SEGMENT_STARTED", "COPY_SEGMENT_FINISHED"
TOPICS = {"orders": {**ENABLED, "remote.deletion.allowed": False, "local.retention.ms": 1}}


def back_up(files: RemoteLogFiles) -> Path:
    path = files.root / "backup.db"
    with closing(sqlite3.connect(database_of(files))) as source, closing(sqlite3.connect(path)) as backup:
        source.backup(backup)
    return path


def trim(remote_log: RemoteLogManager) -> None:
    plans, _ = remote_log.deletions.plan_local_retention(EVERYTHING, remote_log.context.clock())
    assert remote_log.deletions.enforce_local_retention(plans).failures == ()


def expire_twice(files: RemoteLogFiles) -> DeletionReport:
    """Let two runs of expiry delete, the second once the grace time is over."""
    for _ in range(2):
        files.clock.now += 4_000_000
        with files.open() as remote_log:
            report = remote_log.deletions.delete_marked("expire")
    return report


@pytest.fixture
def restored(tmp_path: Path) -> RemoteLogFiles:
    """Metadata from a backup made while a copy ran that was committed later; its local segments are trimmed."""
    files = a_remote_log(tmp_path, topics=TOPICS)
    with files.open() as remote_log:
        outcomes = carry_out(remote_log, begin(remote_log))
        backup = back_up(files)
        assert remote_log.commit_copy(outcomes).is_whole
        shutil.copytree(files.log_directory, files.root / "before")
        trim(remote_log)
    assert files.local_starts() == [30]
    remove_metadata(files)
    shutil.copy(backup, database_of(files))
    with files.open(outdated=True) as remote_log:
        assert take_over(remote_log.context).was_outdated
    files.clock.now += 10_000_000
    return files


def test_copies_committed_after_the_backup_stay_and_are_reported(restored: RemoteLogFiles) -> None:
    report = expire_twice(restored)

    assert report.deleted == ()
    assert ["'tiered-storage repair'" in each.message for each in report.failures] == [True] * 3
    assert "offsets 0 to 9" in report.failures[0].message
    assert len(restored.objects()) == 9
    with restored.open() as remote_log:
        assert len(list(remote_log.context.safety.failures())) == 3
    remove_metadata(restored)
    assert run_on(restored, "rebuild-metadata", "--yes").exit_code == 0
    with restored.open() as remote_log:
        assert offsets_read(remote_log, 0) == list(range(35))


def test_an_orphan_is_deleted_if_the_local_log_has_its_offsets(restored: RemoteLogFiles) -> None:
    shutil.rmtree(restored.log_directory)
    (restored.root / "before").rename(restored.log_directory)

    assert len(expire_twice(restored).deleted) == 3
    assert restored.objects() == []


def test_an_orphan_below_the_global_log_start_is_deleted(restored: RemoteLogFiles) -> None:
    with restored.open() as remote_log:
        end_below(remote_log, 15)

    report = expire_twice(restored)
    assert [segment.start_offset for segment in report.deleted] == [0]
    assert "offsets 15 to 19" in report.failures[0].message


def test_nothing_is_deleted_of_a_partition_of_which_the_store_knows_later_segments(restored: RemoteLogFiles) -> None:
    shutil.copy(database_of(restored), restored.root / "old.db")
    shutil.rmtree(restored.log_directory)
    (restored.root / "before").rename(restored.log_directory)
    with restored.open() as remote_log:
        assert copy(remote_log).is_whole
    remove_metadata(restored)
    shutil.copy(restored.root / "old.db", database_of(restored))
    be_the_original(database_of(restored))

    with pytest.raises(OutdatedMetadataError):
        expire_twice(restored)

    assert len(restored.objects(".log")) == 6
    with restored.open(outdated=True) as remote_log:
        assert states_of(remote_log) == [(start, STARTED) for start in (0, 10, 20)]


def test_an_uncommitted_second_copy_of_a_finished_segment_is_deleted(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path, topics=TOPICS)
    with files.open() as remote_log:
        begun = begin(remote_log)
        carry_out(remote_log, begun)
        for lease in {task.lease for task in begun.tasks}:
            remote_log.context.leases.release(lease)
        assert copy(remote_log, owner="another").is_whole
        trim(remote_log)

    assert expire_twice(files).failures == ()
    assert len(files.objects(".log")) == 3
    with files.open() as remote_log:
        assert states_of(remote_log) == [(start, FINISHED) for start in (0, 10, 20)]
        assert offsets_read(remote_log, 0) == list(range(35))


def test_a_second_copy_stays_where_the_finished_one_is_not_in_the_store(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path, topics=TOPICS)
    with files.open() as remote_log:
        begun = begin(remote_log)
        carry_out(remote_log, begun)
        first = set(files.objects(".log"))
        for lease in {task.lease for task in begun.tasks}:
            remote_log.context.leases.release(lease)
        assert copy(remote_log, owner="another").is_whole
        trim(remote_log)
    for lost in set(files.objects(".log")) - first:
        lost.unlink()

    assert expire_twice(files).deleted == ()
    assert set(files.objects(".log")) == first


def test_a_second_copy_stays_where_the_finished_one_is_rotten(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path, topics=TOPICS)
    with files.open() as remote_log:
        begun = begin(remote_log)
        carry_out(remote_log, begun)
        first = files.objects(".log")
        for lease in {task.lease for task in begun.tasks}:
            remote_log.context.leases.release(lease)
        assert copy(remote_log, owner="another").is_whole
        trim(remote_log)
    [rotten, *_] = [path for path in files.objects(".log") if path not in first]
    flip_bit(rotten, -10)

    report = expire_twice(files)

    [kept] = [path for path in first if path.exists()]
    assert kept.name[:20] == rotten.name[:20]
    assert [failure.partition for failure in report.failures] == ["orders-0"]
    assert "damaged (" in report.failures[0].message
    assert rotten.name in report.failures[0].message
    assert "'tiered-storage audit --deep'" in report.failures[0].message


def test_a_segment_that_lost_its_marker_stays_when_the_metadata_are_rebuilt(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path, topics=TOPICS)
    with files.open() as remote_log:
        assert copy(remote_log).is_whole
        trim(remote_log)
    marker = files.objects(".commit")[0]
    content = marker.read_bytes()
    marker.unlink()
    remove_metadata(files)
    assert run_on(files, "rebuild-metadata", "--yes").exit_code == 0
    files.clock.now = 2_000_000_000_000
    assert run_on(files, "metadata", "trust-clock", "--yes").exit_code == 0

    report = expire_twice(files)

    assert report.deleted == ()
    assert mentions(report.failures[0].message, "all of it", "'tiered-storage repair'", "offsets 0 to 9")
    marker.write_bytes(content)
    remove_metadata(files)
    assert run_on(files, "rebuild-metadata", "--yes").exit_code == 0
    with files.open() as remote_log:
        assert offsets_read(remote_log, 0) == list(range(35))


def only_data_left(files: RemoteLogFiles, lost: Path, *, broken: bool = False) -> Path:
    """Remove marker and indexes of the segment `lost`, or break them; rebuild the metadata; return `lost`."""
    lost.with_suffix(".commit").unlink()
    if broken:
        lost.with_suffix(".indexes").write_bytes(b"broken")
    else:
        lost.with_suffix(".indexes").unlink()
    remove_metadata(files)
    assert run_on(files, "rebuild-metadata", "--yes").exit_code == 0
    assert run_on(files, "metadata", "trust-clock", "--yes").exit_code == 0
    files.clock.now = 2_000_000_000_000
    assert run_on(files, "metadata", "trust-clock", "--yes").exit_code == 0
    return lost


@pytest.mark.parametrize("broken", [False, True])
@pytest.mark.parametrize("damaged", [False, True])
def test_a_segment_of_which_only_the_data_are_left_stays_when_the_metadata_are_rebuilt(
    tmp_path: Path, broken: bool, damaged: bool
) -> None:
    files = a_remote_log(tmp_path, topics=TOPICS)
    with files.open() as remote_log:
        assert copy(remote_log).is_whole
        trim(remote_log)
    data = only_data_left(files, files.objects(".log")[1], broken=broken)
    if damaged:
        flip_bit(data, -10)
    content = data.read_bytes()

    report = expire_twice(files)

    assert report.deleted == ()
    [failure] = report.failures
    assert mentions(failure.message, "offsets 10 to ", "missing or corrupt", f"{data.stem}.*", "backup")
    for options in (("--dry-run",), ()):
        result = run_on(files, "repair", "--json", *options)
        assert result.exit_code == 1
        [named] = [each["message"] for each in result.document["troubles"] if data.stem in each["message"]]
        assert "offsets 10 to " in named
    assert expire_twice(files).deleted == ()
    assert data.read_bytes() == content


def test_the_data_of_a_segment_are_deleted_if_the_local_log_has_their_batches(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path, topics=TOPICS)
    with files.open() as remote_log:
        assert copy(remote_log).is_whole
    data = only_data_left(files, files.objects(".log")[1])

    assert expire_twice(files).failures == ()
    assert not data.exists()


def test_the_data_of_a_second_copy_are_deleted_if_a_finished_one_has_their_batches(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path, topics=TOPICS)
    with files.open() as remote_log:
        assert copy(remote_log).is_whole
    data = files.objects(".log")[1]
    only_data_left(files, data)
    with files.open() as remote_log:
        assert copy(remote_log).is_whole
        trim(remote_log)

    assert expire_twice(files).failures == ()
    assert not data.exists()


def test_data_without_any_sound_batch_are_deleted(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path, topics=TOPICS)
    with files.open() as remote_log:
        assert copy(remote_log).is_whole
        trim(remote_log)
    data = only_data_left(files, files.objects(".log")[1])
    data.write_bytes(bytes(1000))

    assert expire_twice(files).failures == ()
    assert not data.exists()


def test_half_of_a_copy_is_always_deleted(restored: RemoteLogFiles) -> None:
    for marker in restored.objects(".commit"):
        marker.unlink()
    for bundle in restored.objects(".indexes")[:2]:
        bundle.unlink()
    restored.objects(".indexes")[0].write_bytes(b"broken")

    assert len(expire_twice(restored).deleted) == 3
    assert restored.objects() == []
