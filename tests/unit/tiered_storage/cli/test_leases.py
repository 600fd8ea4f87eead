from __future__ import annotations

import io
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest

from support.command_line import mentions, run_on
from support.remote_logs import ORDERS_0, RemoteLogFiles, a_copied_remote_log, held_by
from tiered_storage.clock import wall_clock
from tiered_storage.errors import LeaseLostError
from tiered_storage.remote_log.model import Lease

YEARS_MS = 5 * 365 * 86_400_000


@pytest.fixture
def files(tmp_path: Path) -> RemoteLogFiles:
    return a_copied_remote_log(tmp_path)


def taken_by_a_clock_that_was_ahead(files: RemoteLogFiles) -> Lease:
    files.clock.now = wall_clock() + YEARS_MS
    with files.open() as remote_log:
        return held_by(remote_log, "copy_segments/ahead")


def test_the_lease_of_a_clock_that_was_ahead_is_seen_and_ended(files: RemoteLogFiles) -> None:
    ahead = taken_by_a_clock_that_was_ahead(files)
    files.append(4)
    blocked = run_on(files, "copy", "--json")
    assert (blocked.exit_code, "tiered-storage leases end" in blocked.err) == (1, True)
    [row] = run_on(files, "leases", "list", "--json").rows
    assert (row["partition"], row["owner"]) == ("orders-0", "copy_segments/ahead")

    ended = run_on(files, "leases", "end", "orders", "0", "--yes", "--json")
    assert (ended.exit_code, ended.rows) == (0, [row])

    assert run_on(files, "leases", "list", "--json").rows == []
    assert run_on(files, "copy").exit_code == 0
    with files.open() as remote_log, pytest.raises(LeaseLostError):
        remote_log.context.leases.check(ahead)


@pytest.mark.parametrize("command", ["copy", "doctor"])
def test_a_lease_until_the_end_of_all_time_is_an_error_like_another(files: RemoteLogFiles, command: str) -> None:
    taken_by_a_clock_that_was_ahead(files)
    files.append(4)
    with closing(sqlite3.connect(files.root / "state" / "remote_log_metadata.db")) as database, database:
        database.execute("UPDATE leases SET expires_at = ?", (2**63 - 1,))

    result = run_on(files, command, "--json")

    assert result.exit_code == 1
    assert f"until {2**63 - 1} ms" in result.err + result.out
    assert run_on(files, "leases", "end", "orders", "0", "--yes").exit_code == 0


def test_leases_end_asks_first_and_a_no_leaves_the_lease(
    files: RemoteLogFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken_by_a_clock_that_was_ahead(files)
    for answer, left in (("n\n", 1), ("", 1), ("y\n", 0)):
        monkeypatch.setattr(sys, "stdin", io.StringIO(answer))
        asked = run_on(files, "leases", "end", "orders", "0")
        assert "which copy_segments/ahead holds until 20" in asked.err
        assert (asked.exit_code == 0) is (left == 0)
        assert len(run_on(files, "leases", "list", "--json").rows) == left


def test_a_partition_that_nobody_holds_is_named_with_those_that_are_held(files: RemoteLogFiles) -> None:
    assert "held are: none" in run_on(files, "leases", "end", "orders", "0", "--yes").err
    taken_by_a_clock_that_was_ahead(files)
    refused = run_on(files, "leases", "end", "orders", "1", "--yes")
    assert (refused.exit_code, mentions(refused.err, "orders-1", "held are: orders-0")) == (1, True)
    assert run_on(files, "leases", "end", ORDERS_0.topic_id, "0", "--yes").exit_code == 0
