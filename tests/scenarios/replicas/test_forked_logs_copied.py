"""Copies and trims of forked logs: no record of either log is lost."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given

from scenarios.replicas.forked_logs import (
    FINISHED,
    SEGMENT_BYTES,
    SIZES,
    VERIFIES,
    copy_forks_too,
    everything_said,
    forked,
    local_values,
    over,
    remote_values,
    retain,
    write,
)
from support.command_line import mentions, run_on
from support.plain_reader import PlainReader
from support.remote_logs import ORDERS_0, copy, segments_of
from tiered_storage.errors import ForkedLogError
from tiered_storage.kafka_log.files.log_segment import list_segments
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.selection import EVERYTHING


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
            assert all(mentions(failure, "orders-0", "fork") for failure in failures)
        # The copied records are in both logs, so this one is trimmed whatever the fork has.
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
    return [record.offset for record in PlainReader(remote_log).records(ORDERS_0, 0)]


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
    assert mentions(said, "offset 20", "offsets 20 to 24", "CRC")
    assert "offsets 20 to 22" in said
    assert "log.dirs" in said
    assert local_values(there) >= {value for value in before if value and value.startswith(b"there")}


def test_a_fork_is_not_copied_after_the_other_log(tmp_path: Path) -> None:
    here, there = forked(tmp_path, [5] * 4, [3] * 10, [5] * 30)
    with over(tmp_path, here).open() as remote_log:
        copy(remote_log)
        copied = segments_of(remote_log)
    files = over(tmp_path, there)
    planned = run_on(files, "plan", "--json")
    done = run_on(files, "copy")

    assert planned.exit_code == 1
    assert mentions(" ".join((planned.out + planned.err).split()), "orders-0", "fork")
    assert done.exit_code == 1
    assert mentions(" ".join((done.out + done.err).split()), "orders-0", "fork")
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
        # Its lease was released.
        remote_log.context.leases.release(remote_log.context.leases.acquire(ORDERS_0, "other", 1000))


def test_the_log_that_was_copied_continues_whatever_its_fork_does(tmp_path: Path) -> None:
    here, _ = forked(tmp_path, [5] * 4, [3] * 10, [5] * 30)
    with over(tmp_path, here).open() as remote_log:
        copy(remote_log)
    write(here, [2] * 30, "later")
    with over(tmp_path, here).open() as remote_log:
        assert copy(remote_log).is_whole
        assert retain(remote_log) == []
        assert offsets_of_all(remote_log) == list(range(20 + 30 + 60))


def test_a_fork_is_not_copied_though_both_logs_end_alike_at_the_join(tmp_path: Path) -> None:
    """As if one source wrote to both copies again: only the last batch is the same."""
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
    assert mentions(everything_said([ended]), "orders-0", "fork")
    with files.open() as remote_log:
        assert [one for one in segments_of(remote_log) if one.state is FINISHED] == copied


def test_a_remote_segment_of_a_fork_is_not_taken_for_a_second_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Earlier releases copied both logs, so one log's long segments hold the offsets of the other's short ones."""
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
