"""Trims below the global log start of logs that forked: only records that were deleted remotely are removed."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scenarios.replicas.forked_logs import (
    SEGMENT_BYTES,
    SIZES,
    VERIFIES,
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
from support.records import USUAL_EXAMPLES
from support.remote_logs import ENABLED, NOW, ORDERS_0, RemoteLogFiles, copy, local_log, segments_of
from tiered_storage.errors import ForkedLogError
from tiered_storage.kafka_log.files.log_segment import list_segments
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.selection import EVERYTHING
from tiered_storage.remote_log.source.partition_log import LocalSegment


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
def test_retain_leaves_a_fork_that_was_elsewhere_when_the_global_log_start_moved(
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

    # Segments above the global log start stay local, so none of them is compared by itself.
    kept = {"orders": {**ENABLED, "local.retention.bytes": 10**9}}
    files = over(tmp_path, there, topics=kept, **{"remote.log.verify.before.trim": verifies})
    files.clock.now += 10**9
    with files.open() as remote_log:
        failures = retain(remote_log)

    assert local_values(there) == before
    assert any(mentions(failure, "orders-0", "fork") for failure in failures)
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
    assert mentions(everything_said([ended]), "orders-0", "fork")
    # Nothing was removed: no row says so.
    assert "Removed locally none" in everything_said([ended])


@pytest.mark.parametrize("verifies", [True, False])
@pytest.mark.parametrize("cut_there", [300, 500])
def test_retain_leaves_a_fork_though_all_that_is_remote_was_copied_from_it(
    tmp_path: Path, cut_there: int, verifies: bool
) -> None:
    """The other log was copied and deleted, so the two logs differ in nothing above the global log start."""
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
    assert mentions(everything_said([ended]), "orders-0", "fork")
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
def test_a_replica_that_cuts_its_segments_elsewhere_is_trimmed_while_total_retention_continues(
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
                    start = PlainReader(remote_log).log_start_offset(ORDERS_0)
                    assert offsets_of_all_from(remote_log, start) == list(range(start, now - NOW))
                    assert all((one.end_offset or 0) >= start for one in closed(remote_log))


def offsets_of_all_from(remote_log: RemoteLogManager, start: int) -> list[int]:
    return [record.offset for record in PlainReader(remote_log).records(ORDERS_0, start)]


def closed(remote_log: RemoteLogManager) -> list[LocalSegment]:
    return list(local_log(remote_log).closed_segments)


@given(SIZES, SEGMENT_BYTES, SEGMENT_BYTES, st.integers(1, 40), VERIFIES)
def test_deleted_records_are_trimmed_whatever_the_segment_boundaries(
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
                # Otherwise it is compared together with a segment that stays, and also stays.
                assert list_segments(there / "orders-0")[0].base_offset == end + 1
            assert offsets_of_all_from(remote_log, before) == list(range(before, sum(sizes) + 60))


@settings(max_examples=USUAL_EXAMPLES // 2, deadline=None)
@given(SIZES, SIZES, SIZES, SEGMENT_BYTES, SEGMENT_BYTES, st.sampled_from([0.3, 0.8, 1]))
def test_no_record_of_a_fork_gets_lost_below_the_global_log_start(
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
