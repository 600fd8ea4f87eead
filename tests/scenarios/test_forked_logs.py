"""A log directory that was copied with cp and written on in both places: no record of either log gets lost.

Both go on at the same leader epoch, so that only their batches tell the logs apart.
"""

from __future__ import annotations

import re
import shutil
import sqlite3
import time
from collections.abc import Iterable
from contextlib import closing, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.command_line import CommandResult, run_on
from support.examples import USUAL_EXAMPLES
from support.metadata_stores import ManualClock, a_step
from support.plain_reader import plain_reader
from support.remote_logs import (
    CLUSTER_ID,
    ENABLED,
    NOW,
    ORDERS_0,
    RemoteLogFiles,
    begin,
    carry_out,
    copy,
    cut,
    end_below,
    flip_bit,
    held_by,
    local_log,
    segments_of,
    topic_id,
    unsynced,
)
from tiered_storage.errors import ForkedLogError
from tiered_storage.kafka_log.files.log_segment import list_segments
from tiered_storage.kafka_log.log.log_config import LogConfig
from tiered_storage.kafka_log.log.log_directory_writer import LogDirectoryWriter
from tiered_storage.kafka_log.records.record import Record
from tiered_storage.kafka_log.records.record_batch import read_records
from tiered_storage.kafka_log.records.segment_scan import iterate_segment
from tiered_storage.remote_log.context import store_options
from tiered_storage.remote_log.copy import copier, forked_log
from tiered_storage.remote_log.copy import start as copy_run
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata, SegmentState
from tiered_storage.remote_log.rebuild.metadata_rebuild import rebuild_metadata
from tiered_storage.remote_log.rebuild.take_over import take_over
from tiered_storage.remote_log.selection import EVERYTHING
from tiered_storage.remote_log.source.segment_source import LocalSegment

FINISHED = SegmentState.COPY_SEGMENT_FINISHED
SIZES = st.lists(st.integers(1, 5), max_size=12)
"""How many records each batch has."""
SEGMENT_BYTES = st.sampled_from([200, 300, 500, 900])
VERIFIES = st.booleans()


def write(root: Path, sizes: Iterable[int], word: str, segment_bytes: int = 300) -> Path:
    """Append batches of so many records, whose values begin with `word`, to the log of orders-0 in `root`."""
    config = LogConfig(segment_bytes=segment_bytes, index_interval_bytes=100)
    is_new = not root.exists()
    with unsynced(), _writer(root, config, is_new=is_new) as writer:
        log = writer.create_log("orders", 0, topic_id("orders"), config) if is_new else writer.log("orders", 0)
        for size in sizes:
            end = log.log_end_offset
            log.append([Record(at, NOW + at, None, f"{word} {at}".encode()) for at in range(end, end + size)])
    return root


def _writer(root: Path, config: LogConfig, *, is_new: bool) -> LogDirectoryWriter:
    if is_new:
        return LogDirectoryWriter.create(root, CLUSTER_ID, clock=lambda: NOW)
    return LogDirectoryWriter.open(root, config, clock=lambda: NOW)


def forked(root: Path, shared: Iterable[int], ours: Iterable[int], theirs: Iterable[int]) -> tuple[Path, Path]:
    """Write `shared` batches, copy the directory, and write on in both places."""
    here = write(root / "here", shared, "shared")
    there = shutil.copytree(here, root / "there")
    return write(here, ours, "here", 500), write(there, theirs, "there")


def over(root: Path, log_directory: Path, **properties: Any) -> RemoteLogFiles:
    """Return the remote log whose store and metadata are below `root`, over `log_directory`; it trims all it can."""
    topics = {"orders": {**ENABLED, "local.retention.bytes": 0}}
    return RemoteLogFiles(root, properties={"topics": topics, "log.dirs": [str(log_directory)], **properties})


def local_values(root: Path) -> set[bytes | None]:
    return {
        record.value
        for segment in list_segments(root / "orders-0")
        for window, table in iterate_segment(segment.log_path, segment.base_offset)
        for at, size in zip((table.position - table.position[0]).tolist(), table.size.tolist(), strict=True)
        for record in read_records(window[at : at + size])
    }


def remote_values(remote_log: RemoteLogManager) -> set[bytes | None]:
    """Return the values of all that a reader without a local log gets."""
    reader = plain_reader(remote_log).open(ORDERS_0)
    reader.local = None
    return {record.value for record in reader.records(reader.log_start_offset)} if reader.coverage.ranges else set()


def retain(remote_log: RemoteLogManager) -> list[str]:
    """Enforce local retention; return what failed."""
    plans, unreadable = remote_log.deletions.plan_local_retention(EVERYTHING, NOW)
    report = remote_log.deletions.enforce_local_retention(plans)
    return [finding.message for finding in (*unreadable, *report.failures)]


# ------------------------------------------------------------------------------------------------------------ trimming


@given(SIZES, SIZES, SIZES, SEGMENT_BYTES, SEGMENT_BYTES, VERIFIES)
def test_no_record_of_a_fork_gets_lost_whatever_the_boundaries(
    shared: list[int], ours: list[int], theirs: list[int], cut_here: int, cut_there: int, verifies: bool
) -> None:
    with TemporaryDirectory() as folder:
        root = Path(folder)
        here = write(root / "here", shared, "shared", cut_here)
        there = shutil.copytree(here, root / "there")
        write(here, ours, "here", cut_here)
        write(there, theirs, "there", cut_there)
        before = local_values(there)
        with over(root, here).open() as remote_log:
            assert copy(remote_log).is_whole
        with over(root, there, **{"remote.log.verify.before.trim": verifies}).open() as remote_log:
            failures = retain(remote_log)

            assert before <= local_values(there) | remote_values(remote_log)
            assert all("is a fork of the log that was copied" in failure for failure in failures)
        # What was copied is the same on both sides, so that side is trimmed whatever its fork did.
        with over(root, here, **{"remote.log.verify.before.trim": verifies}).open() as remote_log:
            assert retain(remote_log) == []
            assert len(list_segments(here / "orders-0")) == 1


@given(SIZES, SEGMENT_BYTES, SEGMENT_BYTES, VERIFIES)
def test_a_replica_that_cuts_its_segments_elsewhere_is_no_fork(
    sizes: list[int], cut_here: int, cut_there: int, verifies: bool
) -> None:
    with TemporaryDirectory() as folder:
        root = Path(folder)
        here = write(root / "here", [*sizes, 5, 5, 5, 5], "same", cut_here)
        there = write(root / "there", [*sizes, 5, 5, 5, 5], "same", cut_there)
        with over(root, here).open() as remote_log:
            assert copy(remote_log).is_whole
        with over(root, there, **{"remote.log.verify.before.trim": verifies}).open() as remote_log:
            assert retain(remote_log) == []
            plan = remote_log.plan_copy()
            assert plan.unreadable == ()
            assert copy(remote_log).is_whole
            assert retain(remote_log) == []
            assert len(list_segments(there / "orders-0")) == 1
            assert offsets_of_all(remote_log) == list(range(sum(sizes) + 20))


def offsets_of_all(remote_log: RemoteLogManager) -> list[int]:
    return [record.offset for record in plain_reader(remote_log).records(ORDERS_0, 0)]


@pytest.mark.parametrize("verifies", [True, False])
def test_the_command_line_names_the_fork_and_leaves_its_files(tmp_path: Path, verifies: bool) -> None:
    here, there = forked(tmp_path, [5] * 4, [3] * 30, [5] * 30)
    with over(tmp_path, here).open() as remote_log:
        copy(remote_log)
    before = local_values(there)

    ended = run_on(over(tmp_path, there, **{"remote.log.verify.before.trim": verifies}), "retain")

    assert ended.exit_code == 1
    said = " ".join((ended.out + ended.err).split())
    assert "orders-0" in said
    assert "at offset 20 it has a batch of offsets 20 to 24 with CRC" in said
    assert "and the remote log a batch of offsets 20 to 22 with CRC" in said
    assert "take it out of log.dirs" in said
    assert local_values(there) >= {value for value in before if value and value.startswith(b"there")}


# ------------------------------------------------------------------------------------------------------------- copying


def test_a_fork_is_not_copied_behind_the_other_log(tmp_path: Path) -> None:
    here, there = forked(tmp_path, [5] * 4, [3] * 10, [5] * 30)
    with over(tmp_path, here).open() as remote_log:
        copy(remote_log)
        copied = segments_of(remote_log)
    files = over(tmp_path, there)
    planned = run_on(files, "plan", "--json")
    done = run_on(files, "copy")

    assert planned.exit_code == 1
    assert "is a fork of the log that was copied" in " ".join((planned.out + planned.err).split())
    assert done.exit_code == 1
    assert "is a fork of the log that was copied" in " ".join((done.out + done.err).split())
    with files.open() as remote_log:
        assert segments_of(remote_log) == copied


def test_a_plan_from_before_the_other_log_was_copied_is_refused_under_the_lease(tmp_path: Path) -> None:
    here, there = forked(tmp_path, [5] * 4, [3] * 10, [5] * 30)
    with over(tmp_path, there).open() as remote_log:
        old = remote_log.plan_copy()
    with over(tmp_path, here).open() as remote_log:
        copy(remote_log)
        copied = segments_of(remote_log)
    with over(tmp_path, there).open() as remote_log:
        with pytest.raises(ForkedLogError, match="is a fork"):
            remote_log.begin_copy(old, "late")

        assert segments_of(remote_log) == copied
        # Its lease was given back.
        remote_log.leases.release(remote_log.leases.acquire(ORDERS_0, "other", 1000))


def test_the_log_that_was_copied_goes_on_whatever_its_fork_does(tmp_path: Path) -> None:
    here, _ = forked(tmp_path, [5] * 4, [3] * 10, [5] * 30)
    with over(tmp_path, here).open() as remote_log:
        copy(remote_log)
    write(here, [2] * 30, "later")
    with over(tmp_path, here).open() as remote_log:
        assert copy(remote_log).is_whole
        assert retain(remote_log) == []
        assert offsets_of_all(remote_log) == list(range(20 + 30 + 60))


def test_a_fork_is_not_copied_though_both_logs_end_alike_at_the_join(tmp_path: Path) -> None:
    """As where one source feeds both copies again: the last batch is the same, those before it are not."""
    here = write(tmp_path / "here", [5] * 4, "shared", 500)
    there = shutil.copytree(here, tmp_path / "there")
    for root, word in ((here, "ours!"), (there, "their")):
        write(root, [5] * 4, word, 500)
        write(root, [5] * 4, "alike", 500)
    last = list_segments(here / "orders-0")[-2]
    assert {b"ours!", b"alike"} <= set(re.findall(rb"ours!|alike", last.log_path.read_bytes()))
    with over(tmp_path, here).open() as remote_log:
        assert copy(remote_log).is_whole
        copied = segments_of(remote_log)
    write(there, [5] * 10, "their", 500)

    files = over(tmp_path, there)
    ended = run_on(files, "copy")

    assert ended.exit_code == 1
    assert "is a fork of the log that was copied" in everything_said([ended])
    with files.open() as remote_log:
        assert [one for one in segments_of(remote_log) if one.state is FINISHED] == copied


# ------------------------------------------------------------------------------------------ what was copied of both


def copy_forks_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let forks be copied, as by releases that told none."""
    monkeypatch.setattr(copy_run, "forked_copies", lambda *_: {})
    monkeypatch.setattr(forked_log, "forked_copies", lambda *_: {})
    monkeypatch.setattr(copier, "ensure_same_segment", lambda *_: True)


def test_a_remote_segment_of_a_fork_is_not_taken_for_a_second_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Earlier releases copied both: then one log's longer segments hold the offsets of the other's shorter ones."""
    here = write(tmp_path / "here", [5] * 4, "shared")
    there = write(shutil.copytree(here, tmp_path / "there"), [5] * 20, "there", 200)
    write(here, [5] * 80, "here", 4000)
    copy_forks_too(monkeypatch)
    for log_directory in (there, here):
        with over(tmp_path, log_directory).open() as remote_log:
            assert copy(remote_log).is_whole
    files = over(tmp_path, here)
    files.clock.now += 10**9
    with files.open() as remote_log:
        plans, _ = remote_log.deletions.plan_expiry(EVERYTHING, files.clock.now)
        hidden = [segment for plan in plans for segment in plan.superseded]
        assert len(hidden) > 5
        remote_log.deletions.mark_expired(plans, "expire")

        kept = {segment.segment_id for segment in segments_of(remote_log) if segment.state is FINISHED}
        assert kept >= {segment.segment_id for segment in hidden if segment.end_offset >= 20}


# ----------------------------------------------------------------------------------------------------------- expiring


@pytest.mark.parametrize("cut_there", [300, 100_000])
def test_expire_leaves_a_fork_whose_young_records_local_retention_would_take_for_expired(
    tmp_path: Path, cut_there: int
) -> None:
    topics = {"orders": {**ENABLED, "local.retention.bytes": 0, "retention.ms": 1000}}
    here = write(tmp_path / "here", [5] * 4, "shared")
    there = shutil.copytree(here, tmp_path / "there")
    write(here, [3] * 20, "here")
    # Its batches end where the other log's do, so that only those before tell them apart.
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
        assert "is a fork of the log that was copied" in left[0].message
        assert segments_of(remote_log) == copied
        retain(remote_log)
        assert {value for value in before if value and value.startswith(b"there")} <= local_values(there)


@pytest.mark.parametrize("limit", ["retention.bytes", "retention.ms"])
@pytest.mark.parametrize("are_closed", [True, False])
def test_expire_ends_nothing_while_a_fork_is_in_its_place(tmp_path: Path, limit: str, are_closed: bool) -> None:
    """Only shared records would end, by what the fork has more of: nothing that ends differs."""
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
    assert "is a fork of the log that was copied" in everything_said([ended])
    with files.open() as remote_log:
        assert segments_of(remote_log) == copied
        assert remote_log.segments.log_start_offset(ORDERS_0) in (None, 0)


def test_expire_goes_on_where_a_replica_cut_its_segments_elsewhere(tmp_path: Path) -> None:
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
        assert remote_log.segments.log_start_offset(ORDERS_0) == plans[0].new_log_start > 100


# ------------------------------------------------------------------------------------------------- copies of a crash


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
        assert any("was found to have the same batches" in str(failure) for failure in report.failures)
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
    """Take the commit markers of `lost` away and make the metadata again; all graces are over then."""
    ids = [segment.segment_id.id for segment in lost]
    assert ids
    for marker in files.objects(".commit"):
        if any(one in marker.name for one in ids):
            marker.unlink()
    for database in (files.root / "state").glob("remote_log_metadata.db*"):
        database.unlink()
    settings = files.settings()
    rebuild_metadata(settings, store_options(settings, {}), files.clock)
    return files


def stored_values(files: RemoteLogFiles) -> set[bytes]:
    """Return what the store has of the records that are only in the first log."""
    return {found for path in files.objects(".log") for found in re.findall(rb"here [0-9]+", path.read_bytes())}


# ---------------------------------------------------------------------------------------------------------- repairing


def trimmed(
    root: Path, shared: Iterable[int], ours: Iterable[int], theirs: Iterable[int]
) -> tuple[RemoteLogFiles, Path]:
    """Copy and trim the first log; return the remote log over its fork, long past all graces, and the fork's folder."""
    here, there = forked(root, shared, ours, theirs)
    with over(root, here).open() as remote_log:
        assert copy(remote_log).is_whole
        assert retain(remote_log) == []
    files = over(root, there)
    files.clock = ManualClock(time.time_ns() // 1_000_000 + 10**10)
    return files, there


def repair_and_expire(files: RemoteLogFiles) -> list[CommandResult]:
    """Repair, and let everything go that may: twice, for a repair marks and an expiry deletes."""
    ended = []
    for command in (("repair", "--deep"), ("expire",), ("repair", "--deep"), ("expire",)):
        ended.append(run_on(files, *command))
        files.clock.now += 10**9
    return ended


def everything_said(ended: Iterable[CommandResult]) -> str:
    return " ".join(" ".join(each.out + each.err for each in ended).split())


@pytest.mark.parametrize("damage", [".indexes", ".commit"])
def test_repair_rebuilds_lost_indexes_and_takes_nothing_of_a_fork(tmp_path: Path, damage: str) -> None:
    files, there = trimmed(tmp_path, [5] * 4, [5] * 12, [5] * 30)
    stored, before = stored_values(files), local_values(there)
    files.objects(damage)[-1].unlink()

    repair_and_expire(files)

    assert stored and stored_values(files) == stored
    assert local_values(there) == before
    with files.open() as remote_log:
        values = remote_values(remote_log)
        assert not any(value and value.startswith(b"there") for value in values)
        assert {value for value in values if value and value.startswith(b"here")} == stored


@pytest.mark.parametrize("position", [0, 7, 11, 30, 100])
def test_repair_replaces_no_damaged_segment_by_a_fork_while_a_batch_of_it_can_be_read(
    tmp_path: Path, position: int
) -> None:
    files, there = trimmed(tmp_path, [5] * 4, [5] * 12, [5] * 30)
    before = local_values(there)
    flip_bit(files.objects(".log")[-1], position)
    stored = stored_values(files)

    ended = repair_and_expire(files)

    assert stored and stored_values(files) == stored
    assert local_values(there) == before
    assert ended[0].exit_code == 1
    assert "is a fork of the log that was copied" in everything_said(ended)


@pytest.mark.parametrize("left", [None, 0, 100, 250])
@pytest.mark.parametrize("cut_there", [300, 700])
def test_repair_replaces_no_lost_segment_by_a_fork_of_other_boundaries(
    tmp_path: Path, left: int | None, cut_there: int
) -> None:
    here = write(tmp_path / "here", [5] * 4, "shared")
    there = shutil.copytree(here, tmp_path / "there")
    # Only the last remote segment tells the logs apart.
    write(here, [5] * 3, "here", 500)
    write(there, [5] * 30, "there", cut_there)
    files = lost_the_last(tmp_path, here, there, left)
    stored, before = stored_values(files), local_values(there)

    ended = run_on(files, "repair")

    assert ended.exit_code == 1
    assert "fork of the log" in everything_said([ended]) or "nothing proves that" in everything_said([ended])
    assert (stored_values(files), local_values(there)) == (stored, before)
    with files.open() as remote_log:
        assert all(one.state is FINISHED for one in segments_of(remote_log))


@pytest.mark.parametrize("left", [None, 0, 100])
@pytest.mark.parametrize("cut_there", [300, 700])
def test_repair_replaces_a_lost_segment_by_a_replica_of_other_boundaries(
    tmp_path: Path, left: int | None, cut_there: int
) -> None:
    here = write(tmp_path / "here", [5] * 10, "same", 500)
    there = write(tmp_path / "there", [5] * 30, "same", cut_there)
    files = lost_the_last(tmp_path, here, there, left)

    assert run_on(files, "repair").exit_code == 0

    assert run_on(files, "audit").exit_code == 0
    with files.open() as remote_log:
        assert {value for value in local_values(here) if value} <= local_values(there) | remote_values(remote_log)


def lost_the_last(root: Path, here: Path, there: Path, left: int | None) -> RemoteLogFiles:
    """Copy and trim the log in `here`, cut the last remote `.log` to `left` bytes (None: delete it), go on `there`."""
    with over(root, here).open() as remote_log:
        assert copy(remote_log).is_whole
        assert retain(remote_log) == []
    files = over(root, there)
    lost = files.objects(".log")[-1]
    if left is None:
        lost.unlink()
    else:
        cut(lost, left)
    files.clock = ManualClock(time.time_ns() // 1_000_000 + 10**10)
    return files


def test_undelete_brings_back_what_an_earlier_release_replaced_by_a_fork(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy_forks_too(monkeypatch)
    here, there = forked(tmp_path, [5] * 4, [5] * 12, [5] * 30)
    with over(tmp_path, here).open() as remote_log:
        assert copy(remote_log).is_whole
        ended = [segment for segment in segments_of(remote_log) if segment.end_offset >= 20]
    with over(tmp_path, there).open() as remote_log:
        end_below(remote_log, 0, going=ended)
        lease = held_by(remote_log, "repair")
        for segment in ended:
            marking = a_step(segment, SegmentState.DELETE_SEGMENT_STARTED)
            remote_log.segments.update_remote_log_segment_metadata(marking, lease)
        remote_log.leases.release(lease)
        assert copy(remote_log).is_whole

        [done], left = remote_log.deletions.undelete("orders", "ada")

        assert left == []
        assert {one.segment_id for one in done.segments} == {one.segment_id for one in ended}


# -------------------------------------------------------------------------------------- a copy that lost its indexes


def committed_after_a_backup(root: Path, here: Path) -> None:
    """Copy and trim the log in `here`, and put metadata back that know all copies as begun."""
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
        assert take_over(remote_log).was_outdated


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
        cut(lost, 10)
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
        assert any("was found to have the same batches" in str(failure) for failure in report.failures)
    else:
        assert report.failures == ()
        assert not files.objects(".indexes") or is_copied


# ----------------------------------------------------------------------- below a log start that moved without the fork


def ended_below(files: RemoteLogFiles, before: int) -> None:
    """Delete the records before an offset, with their objects."""
    with files.open() as remote_log:
        plan = remote_log.deletions.plan_record_deletion(ORDERS_0, before)
        assert plan is not None
        remote_log.deletions.mark_expired([plan], "ada")
        remote_log.deletions.delete_marked("expire")
    files.clock.now += 10**9


@pytest.mark.parametrize("verifies", [True, False])
@pytest.mark.parametrize("cut_there", [300, 500])
def test_retain_leaves_a_fork_that_was_elsewhere_when_our_log_start_moved(
    tmp_path: Path, cut_there: int, verifies: bool
) -> None:
    here = write(tmp_path / "here", [5] * 4, "shared")
    there = shutil.copytree(here, tmp_path / "there")
    write(here, [5] * 30, "here", 500)
    write(there, [5] * 30, "there", cut_there)
    with over(tmp_path, here).open() as remote_log:
        assert copy(remote_log).is_whole
    files = over(tmp_path, here)
    ended_below(files, 100)
    before = local_values(there)

    # What is above our log start stays local: none of it is compared for its own sake.
    kept = {"orders": {**ENABLED, "local.retention.bytes": 10**9}}
    files = over(tmp_path, there, topics=kept, **{"remote.log.verify.before.trim": verifies})
    files.clock.now += 10**9
    with files.open() as remote_log:
        failures = retain(remote_log)

    assert local_values(there) == before
    assert any("is a fork of the log that was copied" in failure for failure in failures)
    files = over(tmp_path, here, topics=kept)
    files.clock.now += 10**9
    with files.open() as remote_log:
        assert retain(remote_log) == []
        assert 50 < list_segments(here / "orders-0")[0].base_offset <= 100


def test_retain_leaves_a_fork_of_what_a_person_deleted(tmp_path: Path) -> None:
    here, there = forked(tmp_path, [5] * 4, [5] * 12, [5] * 8)
    with over(tmp_path, here).open() as remote_log:
        assert copy(remote_log).is_whole
        end = segments_of(remote_log)[-1].end_offset + 1
    ended_below(over(tmp_path, here), end)
    before = local_values(there)

    files = over(tmp_path, there)
    files.clock.now += 10**9
    ended = run_on(files, "retain")

    assert local_values(there) == before
    assert "is a fork of the log that was copied" in everything_said([ended])
    # Nothing was removed: no row says so.
    assert "Removed locally none" in everything_said([ended])


@pytest.mark.parametrize("verifies", [True, False])
@pytest.mark.parametrize("cut_there", [300, 500])
def test_retain_leaves_a_fork_though_all_that_is_remote_was_copied_from_it(
    tmp_path: Path, cut_there: int, verifies: bool
) -> None:
    """The other log was copied and deleted; so nothing above our log start tells the two apart any more."""
    here, there = forked(tmp_path, [5] * 4, [5] * 30, [])
    write(there, [5] * 60, "there", cut_there)
    with over(tmp_path, here).open() as remote_log:
        assert copy(remote_log).is_whole
        end = segments_of(remote_log)[-1].end_offset + 1
    ended_below(over(tmp_path, here), end)
    before = local_values(there)

    files = over(tmp_path, there, **{"remote.log.verify.before.trim": verifies})
    files.clock.now += 10**9
    assert run_on(files, "copy").exit_code == 0
    ended = run_on(files, "retain")

    assert ended.exit_code == 1
    assert "is a fork of the log that was copied" in everything_said([ended])
    assert local_values(there) == before


LIMITS = st.sampled_from(
    [
        {"retention.ms": 60, "local.retention.ms": 20},
        {"retention.ms": 60, "local.retention.ms": 55},
        {"retention.ms": 60, "local.retention.ms": -2},
        {"retention.ms": -1, "retention.bytes": 900, "local.retention.bytes": 300},
        {"retention.ms": -1, "retention.bytes": 900, "local.retention.bytes": 800},
        {"retention.ms": -1, "retention.bytes": 900, "local.retention.bytes": -2},
        {"retention.ms": 60, "retention.bytes": 900, "local.retention.bytes": 300},
    ]
)


@settings(max_examples=USUAL_EXAMPLES // 2, deadline=None)
@given(st.lists(SIZES, min_size=2, max_size=4), SEGMENT_BYTES, SEGMENT_BYTES, LIMITS, VERIFIES)
def test_a_replica_that_cuts_its_segments_elsewhere_is_trimmed_while_total_retention_goes_on(
    rounds: list[list[int]], cut_here: int, cut_there: int, limits: dict[str, int], verifies: bool
) -> None:
    topics = {"orders": {**ENABLED, **limits}}
    with TemporaryDirectory() as folder:
        root, now = Path(folder), NOW
        for sizes in rounds:
            here = write(root / "here", [*sizes, 5, 5, 5, 5], "same", cut_here)
            there = write(root / "there", [*sizes, 5, 5, 5, 5], "same", cut_there)
            now += sum(sizes) + 20
            leader = over(root, here, topics=topics)
            leader.clock.now = now + 1
            with leader.open() as remote_log:
                assert copy(remote_log).is_whole
                plans, left = remote_log.deletions.plan_expiry(EVERYTHING, now)
                assert (left, remote_log.deletions.mark_expired(plans, "expire")[1]) == ([], ())
                assert remote_log.deletions.delete_marked("expire").failures == ()
            for log_directory in (there, here):
                files = over(root, log_directory, topics=topics, **{"remote.log.verify.before.trim": verifies})
                files.clock.now = now + 1
                with files.open() as remote_log:
                    trims, _ = remote_log.deletions.plan_local_retention(EVERYTHING, now)
                    held_back = [why for plan in trims if (why := plan.held_back) and "not yet remote" not in why]
                    assert held_back == []
                    assert remote_log.deletions.enforce_local_retention(trims).failures == ()
                    start = plain_reader(remote_log).log_start_offset(ORDERS_0)
                    assert offsets_of_all_from(remote_log, start) == list(range(start, now - NOW))
                    assert all((one.end_offset or 0) >= start for one in closed(remote_log))


def offsets_of_all_from(remote_log: RemoteLogManager, start: int) -> list[int]:
    return [record.offset for record in plain_reader(remote_log).records(ORDERS_0, start)]


def closed(remote_log: RemoteLogManager) -> list[LocalSegment]:
    return list(local_log(remote_log).closed_segments)


@given(SIZES, SEGMENT_BYTES, SEGMENT_BYTES, st.integers(1, 40), VERIFIES)
def test_what_a_person_deleted_is_trimmed_whatever_the_boundaries(
    sizes: list[int], cut_here: int, cut_there: int, before: int, verifies: bool
) -> None:
    kept = {"orders": {**ENABLED, "local.retention.bytes": 10**9}}
    with TemporaryDirectory() as folder:
        root = Path(folder)
        here = write(root / "here", [*sizes, *[5] * 12], "same", cut_here)
        there = write(root / "there", [*sizes, *[5] * 12], "same", cut_there)
        with over(root, here).open() as remote_log:
            assert copy(remote_log).is_whole
            copied = segments_of(remote_log)
        ended_below(over(root, here), before)
        files = over(root, there, topics=kept, **{"remote.log.verify.before.trim": verifies})
        files.clock.now += 10**9
        with files.open() as remote_log:
            ours = [one for one in closed(remote_log) if one.end_offset is not None and one.end_offset < before]
            assert retain(remote_log) == []
            end = max((one.end_offset or 0 for one in ours), default=-1)
            if not any(one.start_offset <= end < one.end_offset for one in copied):
                # Otherwise it is compared together with a segment that stays, and stays with it.
                assert list_segments(there / "orders-0")[0].base_offset == end + 1
            assert offsets_of_all_from(remote_log, before) == list(range(before, sum(sizes) + 60))


@settings(max_examples=USUAL_EXAMPLES // 2, deadline=None)
@given(SIZES, SIZES, SIZES, SEGMENT_BYTES, SEGMENT_BYTES, st.sampled_from([0.3, 0.8, 1]))
def test_no_record_of_a_fork_gets_lost_below_our_log_start(
    shared: list[int], ours: list[int], theirs: list[int], cut_here: int, cut_there: int, share: float
) -> None:
    with TemporaryDirectory() as folder:
        root = Path(folder)
        here = write(root / "here", [*shared, 5], "shared", cut_here)
        there = shutil.copytree(here, root / "there")
        write(here, [*ours, 5, 5, 5, 5], "here", cut_here)
        write(there, [*theirs, *[5] * 15], "there", cut_there)
        with over(root, here).open() as remote_log:
            assert copy(remote_log).is_whole
            end = segments_of(remote_log)[-1].end_offset + 1
        ended_below(over(root, here), 1 + round(share * (end - 1)))
        before = local_values(there)
        files = over(root, there)
        files.clock.now += 10**9
        with files.open() as remote_log:
            with suppress(ForkedLogError):
                copy(remote_log)
            retain(remote_log)

            assert before <= local_values(there) | remote_values(remote_log) | local_values(here)
