"""A database forgets commits that it acknowledged: nothing is lost, whatever it forgets, and nothing is there twice.

It forgets the last commits first, as after a crash that lost its write-ahead log, or a switch to a standby that lagged.
What runs had done meanwhile in the store and to the local log stays done.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import pytest
from sqlalchemy import Connection

from support.command_line import CommandResult, run_on
from support.metadata_files import database_of, put_back, remove_metadata
from support.remote_logs import (
    ENABLED,
    ORDERS_0,
    RemoteLogFiles,
    a_copied_remote_log,
    assert_clean,
    begin,
    carry_out,
    copy,
    unsynced,
)
from tiered_storage.remote_log.copy.tasks import CopyOutcome
from tiered_storage.remote_log.metadata.sql.database.sqlite_database import SqliteDatabase
from tiered_storage.remote_log.retention.local.plan import LocalRetentionPlan
from tiered_storage.remote_log.selection import EVERYTHING

TRIMMED = {**ENABLED, "local.retention.bytes": 0}
RUNS = ("copy", "retain", "expire")
OUTDATED = "older than the store"


@dataclass
class Life:
    """What a remote log does, one step after the other, and what its database had committed after each commit."""

    files: RemoteLogFiles
    commits: list[bytes] = field(default_factory=list)
    zombie: list[CopyOutcome] = field(default_factory=list)
    plans: list[LocalRetentionPlan] = field(default_factory=list)

    def append(self) -> None:
        self.files.append(4)

    def copy(self) -> None:
        with self.files.open() as remote_log:
            assert copy(remote_log).is_whole

    def copy_without_commit(self) -> None:
        with self.files.open() as remote_log:
            self.zombie = carry_out(remote_log, begin(remote_log, "late"), "runs/late/1")

    def commit(self) -> None:
        with self.files.open() as remote_log:
            assert remote_log.commit_copy(self.zombie).committed

    def plan(self) -> None:
        with self.files.open() as remote_log:
            self.plans, _ = remote_log.deletions.plan_local_retention(EVERYTHING, self.files.clock.now)

    def trim(self) -> None:
        """Trim as planned, maybe before another step."""
        with self.files.open() as remote_log:
            assert remote_log.deletions.enforce_local_retention(self.plans).failures == ()

    def clear_up(self) -> None:
        assert run_on(self.files, "expire").exit_code == 0


STEPS: tuple[Callable[[Life], None], ...] = (
    Life.append,
    Life.copy,
    Life.plan,
    Life.append,
    Life.copy_without_commit,
    Life.trim,
    Life.plan,
    Life.commit,
    Life.trim,
    Life.plan,
    Life.trim,
    Life.clear_up,
)
"""A trim before a commit, with a plan from before one, and after one."""


@contextmanager
def remembered(files: RemoteLogFiles, commits: list[bytes]) -> Iterator[None]:
    """Add to `commits` what the database holds after each commit within the block."""
    writing = SqliteDatabase.writing

    @contextmanager
    def seen(self: SqliteDatabase) -> Iterator[Connection]:
        with writing(self) as connection:
            yield connection
        with closing(sqlite3.connect(database_of(files))) as reader:
            commits.append(reader.serialize())

    with mock.patch.object(SqliteDatabase, "writing", seen):
        yield


def lived(root: Path, steps: int) -> Life:
    """Return a life of so many steps."""
    life = Life(a_copied_remote_log(root, topics={"orders": TRIMMED}))
    with unsynced(), remembered(life.files, life.commits):
        for step in STEPS[:steps]:
            step(life)
    return life


def pass_time(files: RemoteLogFiles) -> None:
    """Let leases and the grace time of what died end."""
    settings = files.settings()
    files.clock.now += settings.lease_duration_ms + settings.remote_log_orphan_grace_ms + 1


def proceed(files: RemoteLogFiles) -> list[CommandResult]:
    """Run what the schedule runs, after the leases of what died and after its grace time; return how each ended."""
    done = []
    for _ in range(2):
        pass_time(files)
        for command in RUNS:
            result = run_on(files, command)
            if "trust-clock" in result.err:
                # The readings of the clock were forgotten too: a person confirms it.
                assert run_on(files, "metadata", "trust-clock", "--yes").exit_code == 0
                result = run_on(files, command)
            done.append(result)
    return done


def rebuild(files: RemoteLogFiles) -> None:
    """Do what the messages ask for."""
    remove_metadata(files)
    for command in (("rebuild-metadata", "--yes"), ("topics", "allow-deletion", "orders")):
        result = run_on(files, *command)
        assert result.exit_code == 0, result


@pytest.mark.parametrize(
    ("steps", "every"),
    [(len(STEPS), 7), *(pytest.param(steps, 1, marks=pytest.mark.nightly) for steps in range(2, len(STEPS) + 1))],
)
def test_whatever_a_database_forgets_no_record_is_lost(tmp_path: Path, steps: int, every: int) -> None:
    life = lived(tmp_path / "lived", steps)
    outdated = 0
    for number, metadata in enumerate(life.commits[-1::-every]):
        files = RemoteLogFiles(tmp_path / str(number), properties=life.files.properties)
        shutil.copytree(life.files.root, files.root)
        with unsynced():
            put_back(files, metadata)
            results = proceed(files)
            if any(OUTDATED in result.err for result in results):
                outdated += 1
                rebuild(files)
                results = proceed(files)
            assert {result.exit_code for result in results} == {0}, results
            with files.open() as remote_log:
                assert remote_log.context.segments.log_start_offset(ORDERS_0) == 0
                assert_clean(remote_log)
    assert outdated
