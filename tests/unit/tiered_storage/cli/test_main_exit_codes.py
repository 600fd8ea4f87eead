"""A request that is not carried out gives exit code 1 and a line that names it; nothing to do gives 0."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.command_line import run_on
from support.remote_logs import (
    BATCH_BYTES,
    ENABLED,
    ORDERS_0,
    SEGMENT_BYTES,
    RemoteLogFiles,
    a_copied_remote_log,
    a_remote_log,
)
from tiered_storage.kafka_log.files.directory_lock import DirectoryLock
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import LEADER_EPOCH_CHECKPOINT

ALWAYS_MS = 10**12
Prepared = Callable[[Path], RemoteLogFiles]


def with_limits(**limits: Any) -> dict[str, Any]:
    return {"orders": {**ENABLED, **{name.replace("_", "."): value for name, value in limits.items()}}}


def sound(root: Path) -> RemoteLogFiles:
    return a_copied_remote_log(root)


def not_copied(root: Path) -> RemoteLogFiles:
    return a_remote_log(root, topics=with_limits(local_retention_bytes=0))


def past_limits(root: Path) -> RemoteLogFiles:
    return a_copied_remote_log(
        root, topics=with_limits(local_retention_bytes=0, retention_bytes=SEGMENT_BYTES + BATCH_BYTES)
    )


def without_rights(root: Path) -> RemoteLogFiles:
    return a_copied_remote_log(root, topics={"orders": {"retention.bytes": 1000, "local.retention.bytes": 0}})


def paused(root: Path) -> RemoteLogFiles:
    files = not_copied(root)
    assert run_on(files, "topics", "pause", "orders").exit_code == 0
    return files


def held(root: Path) -> RemoteLogFiles:
    files = past_limits(root)
    with files.open() as remote_log:
        remote_log.context.leases.acquire(ORDERS_0, "another run", ALWAYS_MS)
    return files


def damaged(root: Path) -> RemoteLogFiles:
    files = sound(root)
    os.truncate(files.objects(".log")[0], BATCH_BYTES)
    return files


def damaged_and_held(root: Path) -> RemoteLogFiles:
    files = damaged(root)
    with files.open() as remote_log:
        remote_log.context.leases.acquire(ORDERS_0, "another run", ALWAYS_MS)
    return files


def unreadable(root: Path) -> RemoteLogFiles:
    files = past_limits(root)
    (files.partition_directory() / LEADER_EPOCH_CHECKPOINT).write_text("0\nmany\n")
    return files


def lost(root: Path) -> RemoteLogFiles:
    files = past_limits(root)
    files.objects(".log")[0].unlink()
    return files


def stopped(root: Path) -> RemoteLogFiles:
    files = past_limits(root)
    assert run_on(files, "stop-deletions", "--reason", "a test").exit_code == 0
    return files


def of_a_later_release(root: Path) -> RemoteLogFiles:
    files = sound(root)
    marker = files.objects(".commit")[0]
    marker.write_text(marker.read_text().replace('"format_version":1', '"format_version":3'))
    return files


NOT_DONE: list[tuple[Prepared, tuple[object, ...], str]] = [
    (unreadable, ("plan",), "unreadable: orders-0"),
    (unreadable, ("copy",), "error: orders-0"),
    (held, ("copy", "--topics", "clicks"), "no partition"),
    (without_rights, ("copy", "--topics", "orders"), "orders is not enabled"),
    (paused, ("copy", "--topics", "orders"), "orders is paused"),
    (past_limits, ("retain", "--plan", "/dev/null"), "/dev/null"),
    (past_limits, ("expire", "--plan", "/dev/null"), "/dev/null"),
    (not_copied, ("retain",), "orders-0: offsets 0 to 9 "),
    (not_copied, ("retain", "--dry-run"), "orders-0: offsets 0 to 9 "),
    (without_rights, ("retain", "--topics", "orders"), "topics allow-deletion"),
    (unreadable, ("retain",), "error: orders-0"),
    (lost, ("retain",), "error: orders-0"),
    (stopped, ("retain",), "stopped all deletions"),
    (without_rights, ("expire", "--topics", "orders"), "topics allow-deletion"),
    (held, ("expire",), "another run "),
    (unreadable, ("expire",), "error: orders-0"),
    (stopped, ("expire",), "stopped all deletions"),
    (held, ("delete-records", "orders", 0, "--before", 15), "another run "),
    (unreadable, ("delete-records", "orders", 0, "--before", 15), "leader-epoch-checkpoint"),
    (lost, ("delete-records", "orders", 0, "--before", 15), "orders-0"),
    (stopped, ("delete-records", "orders", 0, "--before", 15), "stopped all deletions"),
    (without_rights, ("delete-records", "orders", 0, "--before", 15), "topics allow-deletion"),
    (held, ("delete-topic", "orders"), "orders"),
    (damaged, ("audit",), "shows "),
    (unreadable, ("audit",), "error: orders-0: its local log"),
    (of_a_later_release, ("audit", "--deep"), "could not be read"),
    (damaged_and_held, ("repair",), "another run "),
    (unreadable, ("repair",), "error: orders-0: its local log"),
    (of_a_later_release, ("repair", "--deep"), "could not be read"),
    (of_a_later_release, ("repair", "--deep", "--dry-run"), "could not be read"),
    (sound, ("segments", "--topics", "clicks"), "no partition"),
    (sound, ("failed-deletions", "--topics", "clicks"), "no partition"),
]


@pytest.mark.parametrize(("prepare", "command", "expected"), NOT_DONE, ids=lambda each: getattr(each, "__name__", None))
def test_undone_work_is_reported_and_fails(
    tmp_path: Path, prepare: Prepared, command: tuple[object, ...], expected: str
) -> None:
    result = run_on(prepare(tmp_path), *command)

    assert (result.exit_code, expected in result.err) == (1, True), result


@pytest.mark.parametrize("command", ["plan", "copy", "retain", "expire", "repair", "audit"])
def test_a_broker_that_holds_the_directory_fails_every_command_on_it(tmp_path: Path, command: str) -> None:
    files = past_limits(tmp_path)
    with DirectoryLock.acquire(files.log_directory):
        result = run_on(files, command)

    assert (result.exit_code, f"{files.log_directory} is in use" in result.err) == (1, True), result


NOTHING_TO_DO: list[tuple[Prepared, tuple[object, ...]]] = [
    *((sound, (command,)) for command in ("plan", "copy", "retain", "expire", "audit", "repair", "segments")),
    (sound, ("failed-deletions",)),
    (sound, ("delete-records", "orders", 0, "--before", 0)),
    (paused, ("copy",)),
    (without_rights, ("copy",)),
    (without_rights, ("retain",)),
    (without_rights, ("expire",)),
    (without_rights, ("plan", "--topics", "orders")),
]


@pytest.mark.parametrize(("prepared", "command"), NOTHING_TO_DO, ids=lambda each: getattr(each, "__name__", None))
def test_nothing_to_do_is_success(tmp_path: Path, prepared: Prepared, command: tuple[object, ...]) -> None:
    result = run_on(prepared(tmp_path), *command)

    assert (result.exit_code, "error" in result.err) == (0, False), result
