"""Moves and comparisons of metadata that kill their process; importable, so that a new process finds them."""

from __future__ import annotations

import itertools
import os
import signal
from unittest import mock

from sqlalchemy import Engine, event

from support.command_line import run
from tiered_storage.clock import wall_clock
from tiered_storage.remote_log.metadata.sql.database import moving


def move_until(step: str, source: str, target: str) -> None:
    """Move metadata from `source` to `target`; kill this process, before it can do anything else, at `step`."""
    setattr(moving, step, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    moving.move_metadata(source, target, wall_clock, 1000, lambda _: None)


def run_until_compared(module: str, *arguments: str) -> None:
    """Run a command; kill this process when `module` begins to compare the rows that it has copied."""
    with mock.patch(f"{module}.ensure_same_rows", lambda *_: os.kill(os.getpid(), signal.SIGKILL)):
        raise AssertionError(f"compared nothing: {run(*arguments)}")


def move_until_point(number: int, source: str, target: str) -> None:
    """Move metadata from `source` to `target`; kill this process at the point of that number, from 1.

    Points are before and after each commit in either database, and before every tenth statement.
    """
    statements, points = itertools.count(), itertools.count(1)
    has_committed = False

    def pass_point() -> None:
        if next(points) == number:
            os.kill(os.getpid(), signal.SIGKILL)

    def note_commit(*_: object) -> None:
        nonlocal has_committed
        pass_point()
        has_committed = True

    def note_statement(*_: object) -> None:
        nonlocal has_committed
        if next(statements) % 10 == 0 or has_committed:
            pass_point()
        has_committed = False

    event.listen(Engine, "commit", note_commit)
    event.listen(Engine, "before_cursor_execute", note_statement)
    moving.move_metadata(source, target, wall_clock, 10_000, lambda _: None)
