"""Every step that outlives a process, not only those with a name: killed after the first, the second, to the last."""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from support.aftermath import (
    GRACE_MS,
    LEASE_MS,
    assert_copy_completes,
    assert_expiry_completes,
    assert_readable,
    assert_settled,
    assert_trim_completes,
    run,
)
from support.crash_points import Crash, CrashPoint
from support.crash_site import CrashSite
from support.remote_logs import BATCH_BYTES, ENABLED, RemoteLogFiles
from support.two_at_once import BACKFILL

PARTITIONS = {("orders", 0): 2, ("orders", 1): 2}
ALL = [(f"orders-{number}", start, start + 9) for number in (0, 1) for start in (0, 10)]
KEEPS_ONE_SEGMENT = {"orders": {**ENABLED, "retention.bytes": 3 * BATCH_BYTES}}
KEEPS_NOTHING_LOCAL = {"orders": {**ENABLED, "local.retention.bytes": 1}}
KEEPS_LITTLE = {"orders": {**ENABLED, "retention.bytes": 9 * BATCH_BYTES, "local.retention.bytes": 3 * BATCH_BYTES}}


def killed_after_each_step(site: CrashSite, command: str, topics: dict[str, Any] | None) -> Iterator[RemoteLogFiles]:
    """Yield remote logs on which `command` was killed after its first step, its second, until it gets to its end."""
    for nth in count(1):
        new = site.new if command == "copy" else site.copied
        files = new(PARTITIONS, f"site-{nth}", topics=topics)
        program = site.programs.start(command, "--config", files.config, at=Crash(CrashPoint.AFTER_ANY_STEP, nth))
        if program.wait() == 0:
            assert nth > 5
            return
        assert program.wait() == -signal.SIGKILL, program.said
        yield files


@pytest.mark.nightly
def test_a_copy(site: CrashSite) -> None:
    for files in killed_after_each_step(site, "copy", None):
        assert_copy_completes(files, site.clock, ALL)


@pytest.mark.nightly
def test_an_expiry(site: CrashSite) -> None:
    for files in killed_after_each_step(site, "expire", KEEPS_ONE_SEGMENT):
        assert_expiry_completes(files, site.clock, [("orders-0", 10, 19), ("orders-1", 10, 19)])


@pytest.mark.nightly
def test_a_trim(site: CrashSite) -> None:
    for files in killed_after_each_step(site, "retain", KEEPS_NOTHING_LOCAL):
        assert_trim_completes(files, (0, 1), 20)


@pytest.mark.parametrize(
    ("seed", "rounds"), [(1, 4), *(pytest.param(seed, 25, marks=pytest.mark.nightly) for seed in range(2, 8))]
)
def test_many_that_die_at_once_again_and_again_lose_no_record_and_leave_nothing(
    site: CrashSite, seed: int, rounds: int
) -> None:
    chance = random.Random(seed)  # noqa: S311 - the same deaths for the same seed
    files = site.copied(PARTITIONS, topics=KEEPS_LITTLE)
    for _ in range(rounds):
        for number in (0, 1):
            files.append(chance.randrange(5), number=number)
        deaths = [Crash(CrashPoint.AFTER_ANY_STEP, chance.randint(1, 50)) for _ in range(4)]
        started = [
            *(site.programs.start(command, "--config", files.config, at=at)
              for command, at in zip(("copy", "expire", "retain"), deaths, strict=False)),
            site.programs.start(files.config, "backfill", site.clock(), at=deaths[-1], program=BACKFILL),
        ]  # fmt: skip
        for program in started:
            program.wait()
        with files.open() as remote_log:
            assert_readable(remote_log)
        site.clock.move_by(chance.choice([1, LEASE_MS + 1, GRACE_MS + 1]))
    site.clock.move_by(LEASE_MS + 1)
    for command in ("copy", "expire"):
        run(files, command)
    site.clock.move_by(GRACE_MS + 1)
    for command in ("expire", "retain"):
        run(files, command)
    assert_settled(files)
