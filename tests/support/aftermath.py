"""What is looked at and done after a process died: what readers see, what next runs do, what a zombie gets."""

from __future__ import annotations

from collections.abc import Sequence

from support.command_line import CommandResult, run_on
from support.plain_reader import plain_reader
from support.remote_logs import RemoteLogFiles, assert_clean, local_log, partition_of, record
from support.shared_clock import SharedClock
from tiered_storage.remote_log.copy.commit import CommitReport
from tiered_storage.remote_log.copy.job import CopyJob
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.model import (
    PartitionDeleteState,
    RemoteLogSegmentMetadata,
    SegmentState,
    TopicIdPartition,
)
from tiered_storage.remote_log.source.segment_source import PartitionLog
from tiered_storage.remote_log.storage.object_names import segment_object_names

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
        reader = plain_reader(remote_log).open(partition)
        expected = [record(offset) for offset in range(reader.log_start_offset, reader.log_end_offset)]
        assert list(reader.records(reader.log_start_offset)) == expected


def all_segments(remote_log: RemoteLogManager) -> list[RemoteLogSegmentMetadata]:
    """Return every remote segment of every partition that the metadata know."""
    return [
        segment
        for partition in remote_log.segments.list_partitions()
        for segment in remote_log.segments.list_remote_log_segments(partition)
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
        states = remote_log.segments.partition_states()
        assert {state.delete_state for state in states.values()} == {PartitionDeleteState.FINISHED}
    # The document that says so stays.
    left = [path for path in files.store.rglob("orders-*/**/*") if path.is_file()]
    assert {path.parent.name for path in left} <= {"state"}
    assert_settled(files)


def _assert_done_or_held(ended: CommandResult) -> None:
    assert ended.exit_code == 0 or "works on it until" in ended.err, ended.err


def assert_settled(files: RemoteLogFiles) -> None:
    """Assert that nothing is left but finished segments with their three objects each, and that an audit is clean."""
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
    """Let what was left of copies be committed, as a zombie does that comes back at the very end."""
    with files.open() as remote_log:
        return [remote_log.commit_copy(CopyJob.read(remote_log.work, folder)[0].outcomes()) for folder in folders]


def job_folders(files: RemoteLogFiles) -> list[str]:
    """Return the folders of all copy jobs in the work area."""
    work = files.root / "state" / "work"
    return sorted(str(path.parent.relative_to(work)) for path in work.rglob("job.json"))


def _partitions(remote_log: RemoteLogManager) -> set[TopicIdPartition]:
    local = [log.topic_id_partition for log in remote_log.source.partitions() if isinstance(log, PartitionLog)]
    return {*local, *remote_log.segments.list_partitions()}


def _object_names(segment: RemoteLogSegmentMetadata) -> tuple[str, str, str]:
    names = segment_object_names(segment.segment_id, segment.start_offset)
    return names.data, names.indexes, names.commit_marker
