"""A remote segment without another copy lost its indexes: a repair rebuilds them from its `.log`."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from support.clocks import ManualClock
from support.command_line import mentions, run_on
from support.remote_logs import (
    CLUSTER_ID,
    ENABLED,
    NOW,
    ORDERS_0,
    RemoteLogFiles,
    a_remote_log,
    be_the_original,
    carry_out,
    copy,
    flip_bit,
    held_by,
    local_log,
    move_log_start,
    ranges,
    segments_of,
    topic_id,
    unsynced,
)
from support.transactions import ABORT, COMMIT, data
from tiered_storage.errors import RemoteObjectNotFoundError
from tiered_storage.kafka_log.log.log_config import LogConfig
from tiered_storage.kafka_log.log.log_directory_writer import LogDirectoryWriter
from tiered_storage.kafka_log.producers.transaction_state import Isolation
from tiered_storage.remote_log.copy.tasks import CommitReport, CopyPlan
from tiered_storage.remote_log.coverage import finished
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata, SegmentState
from tiered_storage.remote_log.read.blocking_reader import BlockingLogReader
from tiered_storage.remote_log.repair.plan import RepairPlan
from tiered_storage.remote_log.repair.repairs import RepairReport
from tiered_storage.remote_log.selection import EVERYTHING
from tiered_storage.remote_log.source.log_directory_trim import LogDirectoryTrim
from tiered_storage.remote_log.storage.remote_storage_manager import IndexKind
from tiered_storage.remote_log.storage.segment_objects import ObjectRemoteStorageManager

DAYS = 10**10
CONFIG = LogConfig(segment_bytes=700, index_interval_bytes=100)
OF_THE_OBJECT = {IndexKind.MANIFEST, IndexKind.REMOTE_LOG_INDEX, IndexKind.REMOTE_OFFSET_INDEX}
OF_THE_OBJECT |= {IndexKind.REMOTE_TIME_INDEX}
"""These name the object, or count its chunks, which tests cut smaller than settings may."""


def written(root: Path) -> RemoteLogFiles:
    """A copied log of many segments, of transactions that abort over their borders, of which only the end is local."""
    files = a_remote_log(root, {}, topics={"orders": ENABLED}, index_interval_bytes=100)
    shutil.rmtree(files.log_directory)
    with unsynced(), LogDirectoryWriter.create(files.log_directory, CLUSTER_ID, clock=lambda: NOW) as writer:
        log = writer.create_log("orders", 0, topic_id("orders"), CONFIG)
        for sequence in range(60):
            producer = sequence % 3
            log.append_encoded_batch(data(0, 20 + producer, sequence // 3, transactional=producer < 2))
            if sequence % 13 == 12:
                log.append_end_marker(20 + sequence % 2, 0, ABORT if sequence % 26 == 12 else COMMIT)
        for producer in (20, 21):
            log.append_end_marker(producer, 0, COMMIT)
    with files.open() as remote_log:
        assert copy(remote_log).is_whole
        closed = local_log(remote_log).closed_segments
        LogDirectoryTrim().trim(ORDERS_0, closed, local_log(remote_log).segments[len(closed)].base_offset)
    files.clock = ManualClock(time.time_ns() // 1_000_000 + DAYS)
    return files


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> RemoteLogFiles:
    return written(tmp_path_factory.mktemp("written"))


@pytest.fixture
def files(site: RemoteLogFiles, tmp_path: Path) -> RemoteLogFiles:
    for name in ("logs", "state"):
        shutil.copytree(site.root / name, tmp_path / name)
    be_the_original(tmp_path / "state" / "remote_log_metadata.db")
    return RemoteLogFiles(tmp_path, site.clock, dict(site.properties))


def planned(remote_log: RemoteLogManager) -> RepairPlan:
    return remote_log.repairs.plan(remote_log.checks.audit(deep=True), EVERYTHING)


def repaired(remote_log: RemoteLogManager) -> RepairReport:
    def copied(copies: CopyPlan) -> CommitReport:
        return remote_log.commit_copy(carry_out(remote_log, remote_log.begin_copy(copies, "repair"), "runs/repair/1"))

    return remote_log.repairs.carry_out(planned(remote_log), "repair", copied)


def offsets(remote_log: RemoteLogManager) -> list[int]:
    """Read what was committed, to the end."""
    with BlockingLogReader(remote_log.open_log_reader()) as reader:
        start = remote_log.context.segments.log_start_offset(ORDERS_0) or 0
        return [record.offset for record in reader.records(ORDERS_0, start, isolation=Isolation.READ_COMMITTED)]


def bundle(remote_log: RemoteLogManager, segment: RemoteLogSegmentMetadata) -> dict[IndexKind, bytes]:
    assert isinstance(remote_log.context.storage, ObjectRemoteStorageManager)
    return dict(remote_log.context.storage.fetch_bundle(segment))


def path_of(files: RemoteLogFiles, segment: RemoteLogSegmentMetadata, suffix: str) -> Path:
    [path] = (path for path in files.objects(suffix) if segment.segment_id.id in path.name)
    return path


def aborting(remote_log: RemoteLogManager) -> RemoteLogSegmentMetadata:
    """Return a segment that aborts a transaction which began before it."""
    *_, last = (one for one in segments_of(remote_log) if IndexKind.TRANSACTION in bundle(remote_log, one))
    assert last.start_offset > 0
    return last


def lose(path: Path) -> None:
    path.unlink()


def cut_short(path: Path) -> None:
    os.truncate(path, 10)


def turn_a_bit(path: Path) -> None:
    flip_bit(path, path.stat().st_size - 3)


@pytest.mark.parametrize(
    ("suffix", "damage"),
    [
        (".indexes", lose),
        (".indexes", cut_short),
        (".indexes", turn_a_bit),
        (".commit", lose),
        (".commit", cut_short),
    ],
)
def test_indexes_are_rebuilt_from_the_log(files: RemoteLogFiles, suffix: str, damage: Callable[[Path], None]) -> None:
    with files.open() as remote_log:
        before, lost = offsets(remote_log), aborting(remote_log)
        sent = bundle(remote_log, lost)
        damage(path_of(files, lost, suffix))

        report = repaired(remote_log)

        assert (report.rebuilt, report.retired, report.failures, report.notices) == ((lost,), report.retired, (), ())
        assert [each.segment_id for each in report.retired] == [lost.segment_id]
        assert remote_log.checks.audit(deep=True).anomalies == ()
        [replacement] = (each for each in finished(segments_of(remote_log)) if each.start_offset == lost.start_offset)
        made = bundle(remote_log, replacement)
        assert {kind: made[kind] for kind in made.keys() - OF_THE_OBJECT} == {
            kind: sent[kind] for kind in sent.keys() - OF_THE_OBJECT
        }
        assert offsets(remote_log) == before
        assert planned(remote_log).is_empty
        assert len(remote_log.deletions.delete_marked("expire").deleted) == 1
        assert remote_log.checks.audit(deep=True).anomalies == ()


def test_lost_indexes_of_all_segments_are_rebuilt_each_from_the_one_before(files: RemoteLogFiles) -> None:
    with files.open() as remote_log:
        before, known = offsets(remote_log), segments_of(remote_log)
        for path in files.objects(".indexes"):
            path.unlink()

        report = repaired(remote_log)

        assert ranges(report.rebuilt) == ranges(known)
        assert (report.failures, report.notices) == ((), ())
        assert remote_log.checks.audit(deep=True).anomalies == ()
        assert offsets(remote_log) == before


def without_snapshot(files: RemoteLogFiles, remote_log: RemoteLogManager, lost: RemoteLogSegmentMetadata) -> None:
    """Lose the bundle of a segment, and all but the marker of the one before it."""
    [before] = (each for each in segments_of(remote_log) if each.end_offset + 1 == lost.start_offset)
    path_of(files, lost, ".indexes").unlink()
    for suffix in (".log", ".indexes"):
        path_of(files, before, suffix).unlink()


def test_a_repair_invents_no_aborted_transactions(files: RemoteLogFiles) -> None:
    with files.open() as remote_log:
        lost = aborting(remote_log)
        without_snapshot(files, remote_log, lost)
        before = [each for each in segments_of(remote_log) if each.state is SegmentState.COPY_SEGMENT_FINISHED]

        report = repaired(remote_log)

        assert report.rebuilt == report.retired == ()
        [failure] = report.failures
        assert mentions(failure.message, lost.segment_id.id, "transactions are aborted")
        assert "restore its .indexes" in failure.message
        assert finished(segments_of(remote_log)) == before


def test_the_first_readable_segment_is_rebuilt_without_a_producer_snapshot(
    files: RemoteLogFiles,
) -> None:
    with files.open() as remote_log:
        lost = aborting(remote_log)
        lease = held_by(remote_log, "test")
        move_log_start(remote_log, lost.start_offset, lease)
        remote_log.context.leases.release(lease)
        before = offsets(remote_log)
        without_snapshot(files, remote_log, lost)

        report = repaired(remote_log)

        assert report.rebuilt == (lost,)
        assert any("no producer snapshot" in notice.message for notice in report.notices)
        [replacement] = (each for each in finished(segments_of(remote_log)) if each.start_offset == lost.start_offset)
        with pytest.raises(RemoteObjectNotFoundError, match="PRODUCER_SNAPSHOT"):
            remote_log.context.storage.fetch_index(replacement, IndexKind.PRODUCER_SNAPSHOT)
        assert offsets(remote_log) == before


def test_a_log_that_is_broken_too_makes_no_indexes(files: RemoteLogFiles) -> None:
    with files.open() as remote_log:
        lost = segments_of(remote_log)[1]
        flip_bit(path_of(files, lost, ".log"), 100)
        path_of(files, lost, ".indexes").unlink()
        before = finished(segments_of(remote_log))

        report = repaired(remote_log)

        assert report.rebuilt == report.retired == ()
        assert f"{lost.segment_id.id} stays as it is" in report.failures[0].message
        assert finished(segments_of(remote_log)) == before


def test_a_segment_whose_log_is_lost_is_left_to_a_person(files: RemoteLogFiles) -> None:
    with files.open() as remote_log:
        lost = segments_of(remote_log)[1]
        for suffix in (".log", ".indexes"):
            path_of(files, lost, suffix).unlink()

        plan = planned(remote_log)

        assert plan.is_empty
        assert "restore the objects" in plan.advice[0].message


def test_the_command_says_what_it_would_rebuild_and_rebuilds_it(files: RemoteLogFiles) -> None:
    with files.open() as remote_log:
        lost = aborting(remote_log)
        path_of(files, lost, ".indexes").unlink()
    what = f"offsets {lost.start_offset} to {lost.end_offset} of {lost.segment_id.id} from its .log"

    shown = run_on(files, "repair", "--dry-run", "--json")
    assert [(row["action"], row["what"]) for row in shown.rows] == [("rebuild indexes", what)]
    assert run_on(files, "audit", "--deep").exit_code == 1
    done = run_on(files, "repair", "--json")

    assert done.exit_code == 0, done.err
    assert ("rebuilt indexes", what) in [(row["action"], row["what"]) for row in done.rows]
    assert run_on(files, "audit", "--deep").exit_code == 0
