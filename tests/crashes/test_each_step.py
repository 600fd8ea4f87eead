"""Kill a process after each lasting step, named or not, from the first to the last."""

from __future__ import annotations

import random
import shutil
import signal
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from typing import Any

import pytest

from crashes.crash_points import Crash, CrashPoint
from crashes.programs import BACKFILL
from crashes.recovery import (
    GRACE_MS,
    LEASE_MS,
    CrashSite,
    assert_copy_completes,
    assert_expiry_completes,
    assert_nothing_half_has_a_name,
    assert_readable,
    assert_rebuild_completes,
    assert_repair_completes,
    assert_restore_completes,
    assert_settled,
    assert_topic_is_gone,
    assert_trim_completes,
    contents,
    damage,
    finished_ranges,
    restore,
    run,
    without_metadata,
)
from support.command_line import run_on
from support.key_rings import RING, ring_file, ring_of_three
from support.remote_logs import BATCH_BYTES, ENABLED, RemoteLogFiles

PARTITIONS = {("orders", 0): 2, ("orders", 1): 2}
ALL = [(f"orders-{number}", start, start + 9) for number in (0, 1) for start in (0, 10)]
KEEPS_ONE_SEGMENT = {"orders": {**ENABLED, "retention.bytes": 3 * BATCH_BYTES}}
KEEPS_NOTHING_LOCAL = {"orders": {**ENABLED, "local.retention.bytes": 1}}
ENCRYPTED = {"orders": {**ENABLED, "remote.encryption.enabled": True, "remote.compression.enabled": True}}
NOT_TIERED = {"orders": {**ENABLED, "remote.storage.enable": False}}
ENDS = {"orders-0": 20, "orders-1": 20}
KEEPS_LITTLE = {"orders": {**ENABLED, "retention.bytes": 9 * BATCH_BYTES, "local.retention.bytes": 3 * BATCH_BYTES}}


def killed_after_each_step(
    site: CrashSite,
    made: Callable[[str], RemoteLogFiles],
    *command: object,
    point: CrashPoint = CrashPoint.AFTER_ANY_STEP,
) -> Iterator[RemoteLogFiles]:
    """Yield remote logs, as `made` by name, on which `command` was killed after its first step, to its last."""
    for nth in count(1):
        files = made(f"site-{nth}")
        program = site.programs.start(*command, "--config", files.config, at=Crash(point, nth))
        if program.wait() == 0:
            assert nth > 3
            return
        assert program.wait() == -signal.SIGKILL, program.said
        yield files


def copied(site: CrashSite, topics: dict[str, Any], **settings: Any) -> Callable[[str], RemoteLogFiles]:
    """Return a function that makes remote logs with all segments copied."""
    return lambda name: site.copied(PARTITIONS, name, topics=topics, **settings)


@pytest.mark.nightly
def test_a_copy(site: CrashSite) -> None:
    for files in killed_after_each_step(site, lambda name: site.new(PARTITIONS, name), "copy"):
        assert_copy_completes(files, site.clock, ALL)


@pytest.mark.nightly
def test_a_copy_that_encrypts(site: CrashSite) -> None:
    made = partial(site.new, PARTITIONS, topics=ENCRYPTED, **key_settings(site, "third"))
    for files in killed_after_each_step(site, made, "copy"):
        assert_copy_completes(files, site.clock, ALL)


@pytest.mark.nightly
@pytest.mark.parametrize("point", [CrashPoint.AFTER_ANY_STEP, CrashPoint.AFTER_FILE_SYNCED])
def test_a_rotation_of_keys(site: CrashSite, point: CrashPoint) -> None:
    """The old key is deleted at the end, and everything must still be readable."""

    def encrypted(name: str) -> RemoteLogFiles:
        files = site.new(PARTITIONS, name, topics=ENCRYPTED, **key_settings(site, "first"))
        run(files, "copy")
        files.properties["rsm.config.encryption.key.pair.id"] = "third"
        return files

    for files in killed_after_each_step(site, encrypted, "rotate-keys", point=point):
        with files.open() as remote_log:
            assert_readable(remote_log)
        site.clock.move_by(LEASE_MS + 1)
        run(files, "rotate-keys")
        assert keys_in_use(files) == {"third": len(ALL)}
        # It removes the key that was never renamed to its own name.
        site.clock.move_by(GRACE_MS + 1)
        run(files, "repair")
        only_third = {"third": {"key.file": str(site.root / "keys" / "third.key")}}
        files.properties["rsm.config.encryption.key.ring.file"] = str(ring_file(files.root, only_third))
        assert_settled(files)


def key_settings(site: CrashSite, active: str) -> dict[str, str]:
    """Return the settings of a key ring of three, the key `active` wrapping new data keys."""
    ring = site.root / "keys" / RING
    return {
        "rsm_config_encryption_key_ring_file": str(ring if ring.exists() else ring_of_three(ring.parent)),
        "rsm_config_encryption_key_pair_id": active,
    }


def keys_in_use(files: RemoteLogFiles) -> dict[str, int]:
    """Return how many segments each key wraps."""
    rows = run(files, "rotate-keys", "--dry-run", "--json").document["rows"]
    return {row["key"]: row["segments"] for row in rows}


@pytest.mark.nightly
def test_an_expiry(site: CrashSite) -> None:
    for files in killed_after_each_step(site, copied(site, KEEPS_ONE_SEGMENT), "expire"):
        assert_expiry_completes(files, site.clock, [("orders-0", 10, 19), ("orders-1", 10, 19)])


@pytest.mark.nightly
def test_a_trim(site: CrashSite) -> None:
    for files in killed_after_each_step(site, copied(site, KEEPS_NOTHING_LOCAL), "retain"):
        assert_trim_completes(files, (0, 1), 20)


@pytest.mark.nightly
def test_a_mark_of_a_topic_that_is_to_be_deleted(site: CrashSite) -> None:
    for files in killed_after_each_step(site, copied(site, NOT_TIERED), "delete-topic", "orders"):
        site.clock.move_by(LEASE_MS + 1)
        run(files, "delete-topic", "orders")
        run(files, "expire")
        assert_topic_is_gone(files)


@pytest.mark.nightly
@pytest.mark.parametrize("batch", [1, 1000])
def test_the_deletion_of_a_topic(site: CrashSite, batch: int) -> None:
    def marked(name: str) -> RemoteLogFiles:
        files = site.copied(PARTITIONS, name, topics=NOT_TIERED, deletion_batch_segments=batch)
        run(files, "delete-topic", "orders")
        return files

    for files in killed_after_each_step(site, marked, "expire"):
        site.clock.move_by(LEASE_MS + 1)
        run(files, "expire")
        assert_topic_is_gone(files)


@pytest.mark.nightly
def test_a_deletion_of_records(site: CrashSite) -> None:
    command = ("delete-records", "orders", 0, "--before", 15)
    for files in killed_after_each_step(site, lambda name: site.copied(PARTITIONS, name), *command):
        site.clock.move_by(LEASE_MS + 1)
        run(files, *command)
        run(files, "expire")
        with files.open() as remote_log:
            assert finished_ranges(remote_log) == ALL[1:]
        assert_settled(files)


@pytest.mark.nightly
def test_an_undelete(site: CrashSite) -> None:
    def deleted(name: str) -> RemoteLogFiles:
        files = site.copied(PARTITIONS, name, topics=KEEPS_ONE_SEGMENT, remote_log_deletion_grace_ms=10 * GRACE_MS)
        run(files, "expire")
        return files

    for files in killed_after_each_step(site, deleted, "undelete", "orders"):
        site.clock.move_by(LEASE_MS + 1)
        again = run_on(files, "undelete", "orders")
        assert again.exit_code == 0 or "nothing was brought back" in again.err
        with files.open() as remote_log:
            assert finished_ranges(remote_log) == ALL
        assert_settled(files)


@pytest.mark.nightly
def test_a_repair(site: CrashSite) -> None:
    def damaged(name: str) -> RemoteLogFiles:
        files = site.copied(PARTITIONS, name)
        damage(files)
        site.clock.move_by(2 * GRACE_MS)
        return files

    for files in killed_after_each_step(site, damaged, "repair", "--deep"):
        assert_repair_completes(files, site.clock, ALL)


@pytest.mark.nightly
@pytest.mark.parametrize("point", [CrashPoint.AFTER_ANY_STEP, CrashPoint.AFTER_FILE_SYNCED])
def test_a_rebuild(site: CrashSite, point: CrashPoint) -> None:
    made = partial(without_metadata, site)
    for files in killed_after_each_step(site, made, "rebuild-metadata", "--yes", point=point):
        assert_rebuild_completes(files, site.clock)


@pytest.mark.nightly
@pytest.mark.parametrize("point", [CrashPoint.AFTER_ANY_STEP, CrashPoint.AFTER_FILE_SYNCED])
def test_a_restore(site: CrashSite, point: CrashPoint) -> None:
    target = site.root / "never killed"
    restore(site.copied(PARTITIONS, "never killed either"), target)
    expected = contents(target)

    def made(name: str) -> RemoteLogFiles:
        shutil.rmtree(site.root / "restored", ignore_errors=True)
        return site.copied(PARTITIONS, name)

    command = ("restore", "orders", "--workers", 1, "--to-directory", site.root / "restored")
    for files in killed_after_each_step(site, made, *command, point=point):
        assert_nothing_half_has_a_name(site.root / "restored", ENDS)
        assert_restore_completes(files, site.root / "restored", expected, ENDS)


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
