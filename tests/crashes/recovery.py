"""What is checked after a process died: readers, later runs, losses, repairs, rebuilds and restores."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from crashes.crash_points import Crash, CrashPoint
from crashes.programs import Programs
from crashes.shared_clock import SharedClock
from support.command_line import CommandResult, mentions, run_on
from support.local_logs import read_all
from support.plain_reader import PlainReader
from support.remote_logs import (
    LOG_CONFIG,
    ORDERS_0,
    Partitions,
    RemoteLogFiles,
    a_copied_remote_log,
    a_remote_log,
    assert_clean,
    flip_bit,
    local_log,
    offsets_read,
    partition_of,
    record,
    records,
)
from tiered_storage.kafka_log.files.meta_properties import META_PROPERTIES
from tiered_storage.kafka_log.log.local_log import LocalLog
from tiered_storage.kafka_log.log.log_directory_writer import LogDirectoryWriter
from tiered_storage.remote_log.copy.job import CopyJob
from tiered_storage.remote_log.copy.tasks import CommitReport
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.model import (
    PartitionDeleteState,
    RemoteLogSegmentMetadata,
    SegmentState,
    TopicIdPartition,
)
from tiered_storage.remote_log.source.partition_log import PartitionLog
from tiered_storage.remote_log.storage.commit_marker import CommitMarker
from tiered_storage.remote_log.storage.documents.object_names import segment_object_names


def cells(crashes: Iterable[Crash], *, daily: int = 2) -> list[Any]:
    """Return the parameters of a test: nightly is what is deeper in a run than the `daily` time at a point."""
    return [
        pytest.param(crash, id=str(crash), marks=[pytest.mark.nightly] if crash.nth > daily else [])
        for crash in crashes
    ]


@dataclass(frozen=True, slots=True)
class CrashSite:
    """Makes remote logs below `root`, kills programs on them, and lets time pass."""

    root: Path
    clock: SharedClock
    programs: Programs

    def new(self, partitions: Partitions, name: str = "site", **settings: Any) -> RemoteLogFiles:
        """Return a remote log with nothing copied; see a_remote_log. Each of several needs a name."""
        return self._with_our_clock(a_remote_log(self.root / name, partitions, **settings))

    def copied(self, partitions: Partitions, name: str = "site", **settings: Any) -> RemoteLogFiles:
        """Return one with every closed segment copied; see a_copied_remote_log."""
        files = self._with_our_clock(a_copied_remote_log(self.root / name, partitions, **settings))
        with files.open() as remote_log:
            # It was copied years ago by our clock.
            remote_log.deletions.clocks.trust()
        return files

    def _with_our_clock(self, files: RemoteLogFiles) -> RemoteLogFiles:
        files.clock = self.clock
        return files


LEASE_MS = 600_000
GRACE_MS = 3_600_000


def run(files: RemoteLogFiles, *arguments: object) -> CommandResult:
    """Run a command that has to succeed."""
    ended = run_on(files, *arguments)
    assert ended.exit_code == 0, ended.err
    return ended


def assert_readable(remote_log: RemoteLogManager) -> None:
    """Assert that every partition can be read from its start to its end: each offset once, each record as written."""
    for partition in _partitions(remote_log):
        reader = PlainReader(remote_log).open(partition)
        expected = [record(offset) for offset in range(reader.log_start_offset, reader.log_end_offset)]
        assert list(reader.records(reader.log_start_offset)) == expected


def all_segments(remote_log: RemoteLogManager) -> list[RemoteLogSegmentMetadata]:
    """Return every remote segment of every partition that the metadata know."""
    return [
        segment
        for partition in remote_log.context.segments.list_partitions()
        for segment in remote_log.context.segments.list_remote_log_segments(partition)
    ]


def finished_ranges(remote_log: RemoteLogManager) -> list[tuple[str, int, int]]:
    """Return partition, first and last offset of every segment that readers may see."""
    return [
        (str(segment.topic_id_partition), segment.start_offset, segment.end_offset)
        for segment in all_segments(remote_log)
        if segment.state is SegmentState.COPY_SEGMENT_FINISHED
    ]


def assert_copy_completes(files: RemoteLogFiles, clock: SharedClock, expected: list[tuple[str, int, int]]) -> None:
    """Assert that runs after a killed copy do what it should have, and that nothing of it is left in the end.

    `expected` are the ranges that are finished then. At no time do readers see half a segment.
    """
    dead = job_folders(files)
    with files.open() as remote_log:
        assert_readable(remote_log)
    _assert_done_or_held(run_on(files, "copy"))

    clock.move_by(LEASE_MS + 1)
    run(files, "copy")
    with files.open() as remote_log:
        assert finished_ranges(remote_log) == expected
        before = all_segments(remote_log)
        assert_readable(remote_log)

    for report in commit_jobs(files, dead):
        assert set(report.committed) <= set(before)
    with files.open() as remote_log:
        assert all_segments(remote_log) == before

    objects = files.objects()
    run(files, "expire")
    assert files.objects() == objects
    clock.move_by(GRACE_MS + 1)
    run(files, "expire")
    assert_settled(files)


def assert_expiry_completes(files: RemoteLogFiles, clock: SharedClock, expected: list[tuple[str, int, int]]) -> None:
    """Assert that a run after a killed expiry does what it should have; `expected` are the ranges that stay."""
    with files.open() as remote_log:
        assert_readable(remote_log)
    _assert_done_or_held(run_on(files, "expire"))

    clock.move_by(LEASE_MS + 1)
    run(files, "expire")
    with files.open() as remote_log:
        assert finished_ranges(remote_log) == expected
    assert_settled(files)


def assert_trim_completes(files: RemoteLogFiles, numbers: Sequence[int], expected: int) -> None:
    """Assert that a run after a killed trim does what it should have: logs of orders begin at `expected` then."""
    with files.open() as remote_log:
        assert_readable(remote_log)
    run(files, "retain")
    for number in numbers:
        left = files.partition_directory(number=number).glob("0*")
        assert min(int(path.stem) for path in left) == expected
        with files.open() as remote_log:
            assert local_log(remote_log, partition_of(number=number)).log_start_offset == expected
    assert_settled(files)


def assert_topic_is_gone(files: RemoteLogFiles) -> None:
    """Assert that nothing remote is left of orders, neither in the metadata nor in the store, and all that is local."""
    with files.open() as remote_log:
        states = remote_log.context.segments.partition_states()
        assert {state.delete_state for state in states.values()} == {PartitionDeleteState.FINISHED}
    # The manifest that records the deletion stays.
    left = [path for path in files.store.rglob("orders-*/**/*") if path.is_file()]
    assert {path.parent.name for path in left} <= {"state"}
    assert_settled(files)


def _assert_done_or_held(ended: CommandResult) -> None:
    assert ended.exit_code == 0 or "works on it until" in ended.err, ended.err


def assert_settled(files: RemoteLogFiles) -> None:
    """Assert that nothing is left but finished segments with their objects, and that an audit is clean."""
    with files.open() as remote_log:
        segments = all_segments(remote_log)
        unfinished = [segment for segment in segments if segment.state is not SegmentState.COPY_SEGMENT_FINISHED]
        assert unfinished == [], unfinished
        names = {str(path.relative_to(files.store)) for path in files.objects()}
        expected = {name for segment in segments for name in _object_names(segment)}
        # What a killed writer of a generation left stays until the next one.
        found = {name for name in names if "/state/" not in name and not name.startswith("store.")}
        assert found == expected, found ^ expected
        assert_clean(remote_log)


def commit_jobs(files: RemoteLogFiles, folders: list[str]) -> list[CommitReport]:
    """Commit what was left of copies, as a zombie does that continues at the very end."""
    with files.open() as remote_log:
        return [
            remote_log.commit_copy(CopyJob.read(remote_log.context.work, folder)[0].outcomes()) for folder in folders
        ]


def job_folders(files: RemoteLogFiles) -> list[str]:
    """Return the folders of all copy jobs in the work area."""
    work = files.root / "state" / "work"
    return sorted(str(path.parent.relative_to(work)) for path in work.rglob("job.json"))


def _partitions(remote_log: RemoteLogManager) -> set[TopicIdPartition]:
    local = [log.topic_id_partition for log in remote_log.context.source.partitions() if isinstance(log, PartitionLog)]
    return {*local, *remote_log.context.segments.list_partitions()}


def _object_names(segment: RemoteLogSegmentMetadata) -> list[str]:
    names = segment_object_names(segment.segment_id, segment.start_offset)
    marker = CommitMarker.from_custom_metadata(segment, segment.custom_metadata or b"")
    return [names.data, names.indexes, names.commit_marker, *([names.key] if marker.is_encrypted else [])]


LOG_START = 25
KNOWN_AGAIN = [("orders-0", 20, 29), ("orders-1", 0, 9), ("orders-1", 10, 19), ("orders-1", 20, 29)]


def damage(files: RemoteLogFiles) -> None:
    """Break segments of orders-0 and orders-1, one by a bit and one by a lost object, and leave a half copy in each.

    They are the second of orders-0 and the first of orders-1.
    """
    data = {(path.parts[-2], path.name[:20]): path for path in files.objects(".log")}
    flip_bit(data["0", f"{10:020}"], 100)
    data["1", f"{0:020}"].unlink()
    for number in ("0", "1"):
        left = data[number, f"{10:020}"]
        left.with_name(f"{left.name}.0123456789abcdef.tmp").write_bytes(b"half")


def assert_repair_completes(files: RemoteLogFiles, clock: SharedClock, expected: list[tuple[str, int, int]]) -> None:
    """Assert that a repair after a killed one does what it should have; `expected` are the ranges that are finished."""
    clock.move_by(LEASE_MS + 1)
    run(files, "repair", "--deep")
    with files.open() as remote_log:
        assert finished_ranges(remote_log) == expected
        assert_readable(remote_log)
    run(files, "audit", "--deep")

    clock.move_by(GRACE_MS + 1)
    run(files, "expire")
    assert_settled(files)


def metadata_files(files: RemoteLogFiles) -> list[Path]:
    """Return the file of the metadata, where it is there, and its logs."""
    return sorted(files.root.glob("state/remote_log_metadata.db*"))


def lose_metadata(files: RemoteLogFiles) -> None:
    """Remove the metadata."""
    for path in metadata_files(files):
        path.unlink()


def without_metadata(site: CrashSite, name: str = "site") -> RemoteLogFiles:
    """Return a remote log without metadata, with an unfinished copy in orders-1 and expired records in orders-0."""
    files = site.copied({("orders", 0): 3, ("orders", 1): 2}, name)
    files.append(2, number=1)
    site.programs.kill("copy", "--config", files.config, at=Crash(CrashPoint.AFTER_INDEXES))
    site.clock.move_by(LEASE_MS + 1)
    run(files, "delete-records", "orders", 0, "--before", LOG_START)
    lose_metadata(files)
    return files


def assert_rebuild_completes(files: RemoteLogFiles, clock: SharedClock) -> None:
    """Assert that a rebuild after a killed one does what it should have, where that had not done all.

    `files` are those of `without_metadata`.
    """
    if metadata_files(files):
        assert "never changes one" in run_on(files, "rebuild-metadata").err
    else:
        run(files, "rebuild-metadata", "--yes")
    with files.open() as remote_log:
        remote_log.context.bind_store()
        assert_readable(remote_log)
        assert PlainReader(remote_log).log_start_offset(ORDERS_0) == LOG_START
        assert offsets_read(remote_log, LOG_START) == list(range(LOG_START, 35))

    # Segments that were only marked are live again: a person has to request their deletion again.
    run(files, "topics", "allow-deletion", "orders")
    # It was copied years ago by our clock.
    run(files, "metadata", "trust-clock", "--yes")
    run(files, "copy")
    run(files, "delete-records", "orders", 0, "--before", LOG_START)
    clock.move_by(GRACE_MS + 1)
    run(files, "expire")
    with files.open() as remote_log:
        assert finished_ranges(remote_log) == KNOWN_AGAIN
    assert_settled(files)


Ends = Mapping[str, int]
"""The end of the log in each directory of a partition."""


def restore(files: RemoteLogFiles, target: Path) -> None:
    """Restore orders into `target`."""
    run(files, "restore", "orders", "--to-directory", target, "--validation", "records")


def contents(target: Path) -> dict[str, bytes]:
    """Return the files in `target`, without the directory's own id; checkpoints have no order."""
    found = {str(path.relative_to(target)): path for path in target.rglob("*") if path.is_file()}
    return {
        name: b"" if name == META_PROPERTIES else b"\n".join(sorted(path.read_bytes().splitlines()))
        for name, path in found.items()
        if name != ".lock"
    }


def assert_nothing_half_has_a_name(target: Path, ends: Ends) -> None:
    """Assert that every folder a broker would open is a whole partition; it removes those marked for deletion."""
    for directory in target.iterdir() if target.exists() else ():
        if directory.is_dir() and not directory.name.endswith("-delete"):
            # A copy, because opening a log changes its directory.
            looked_at = shutil.copytree(directory, target.with_name("looked at") / directory.name, dirs_exist_ok=True)
            with LocalLog.open(looked_at, LOG_CONFIG, clock=lambda: 0) as log:
                assert (log.log_start_offset, log.log_end_offset) == (0, ends[directory.name])
                assert read_all(log) == records(0, ends[directory.name])
            shutil.rmtree(looked_at)


def assert_restore_completes(files: RemoteLogFiles, target: Path, expected: dict[str, bytes], ends: Ends) -> None:
    """Assert that the same command finishes a killed restore, with the contents of one that was never killed.

    If the first was killed after its last step, the second reports that everything is there.
    """
    if contents(target) == expected:
        again = run_on(files, "restore", "orders", "--to-directory", target)
        assert mentions(again.err, target, "orders-0, orders-1 already")
    else:
        restore(files, target)
    found = contents(target)
    assert found == expected, [name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name)]
    with LogDirectoryWriter.open(target) as broker:
        for name, end in ends.items():
            assert read_all(broker.log("orders", int(name.rpartition("-")[2]))) == records(0, end)
    assert_settled(files)
