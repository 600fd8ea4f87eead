"""Repairs of logs that forked: no segment is replaced by the other log's."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from scenarios.replicas.forked_logs import (
    FINISHED,
    copy_forks_too,
    everything_said,
    forked,
    local_values,
    over,
    remote_values,
    retain,
    stored_values,
    write,
)
from support.clocks import ManualClock
from support.command_line import CommandResult, mentions, run_on
from support.metadata_stores import a_step
from support.remote_logs import RemoteLogFiles, copy, end_below, flip_bit, held_by, segments_of
from tiered_storage.remote_log.model import SegmentState


def trimmed(
    root: Path, shared: Iterable[int], ours: Iterable[int], theirs: Iterable[int]
) -> tuple[RemoteLogFiles, Path]:
    """Copy and trim the first log; return the remote log over its fork, after all grace times, and that folder."""
    here, there = forked(root, shared, ours, theirs)
    with over(root, here).open() as remote_log:
        assert copy(remote_log).is_whole
        assert retain(remote_log) == []
    files = over(root, there)
    files.clock = ManualClock(time.time_ns() // 1_000_000 + 10**10)
    return files, there


def repair_and_expire(files: RemoteLogFiles) -> list[CommandResult]:
    """Repair and expire twice, because a repair marks and an expiry deletes."""
    ended = []
    for command in (("repair", "--deep"), ("expire",), ("repair", "--deep"), ("expire",)):
        ended.append(run_on(files, *command))
        files.clock.now += 10**9
    return ended


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
    assert mentions(everything_said(ended), "orders-0", "fork")


@pytest.mark.parametrize("left", [None, 0, 100, 250])
@pytest.mark.parametrize("cut_there", [300, 700])
def test_repair_replaces_no_lost_segment_by_a_fork_of_other_boundaries(
    tmp_path: Path, left: int | None, cut_there: int
) -> None:
    here = write(tmp_path / "here", [5] * 4, "shared")
    there = shutil.copytree(here, tmp_path / "there")
    # The logs differ only in the last remote segment.
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
    """Copy and trim the log in `here`, cut the last remote `.log` to `left` bytes (None: delete it); open `there`."""
    with over(root, here).open() as remote_log:
        assert copy(remote_log).is_whole
        assert retain(remote_log) == []
    files = over(root, there)
    lost = files.objects(".log")[-1]
    if left is None:
        lost.unlink()
    else:
        os.truncate(lost, left)
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
        end_below(remote_log, 0, to_mark=ended)
        lease = held_by(remote_log, "repair")
        for segment in ended:
            marking = a_step(segment, SegmentState.DELETE_SEGMENT_STARTED)
            remote_log.context.segments.update_remote_log_segment_metadata(marking, lease)
        remote_log.context.leases.release(lease)
        assert copy(remote_log).is_whole

        [done], left = remote_log.deletions.undelete("orders", "ada")

        assert left == []
        assert {one.segment_id for one in done.segments} == {one.segment_id for one in ended}
