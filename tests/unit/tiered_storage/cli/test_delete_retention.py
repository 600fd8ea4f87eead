"""The commands that delete what is past retention: retain and expire."""

from __future__ import annotations

import os
import pty
import sys
from pathlib import Path
from typing import Any

import pytest

from support.command_line import mentions, run_on
from support.remote_logs import (
    BATCH_BYTES,
    ENABLED,
    ORDERS_0,
    SEGMENT_BYTES,
    a_copied_remote_log,
    a_remote_log,
    begin,
    held_by,
)
from tiered_storage.remote_log.selection import EVERYTHING


def limited(**limits: Any) -> dict[str, Any]:
    return {"orders": {**ENABLED, **{name.replace("_", "."): value for name, value in limits.items()}}}


def test_retention_shows_what_went_locally(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path, topics=limited(local_retention_bytes=SEGMENT_BYTES))

    dry = run_on(files, "retain", "--dry-run", "--json")
    assert files.local_starts() == [0, 10, 20, 30]
    done = run_on(files, "retain", "--json")
    again = run_on(files, "retain")

    assert (dry.exit_code, done.exit_code, again.exit_code) == (0, 0, 0)
    assert dry.document == done.document
    assert done.rows == [
        {"partition": "orders-0", "new_local_start": 20, "segments": 2, "bytes": 2 * SEGMENT_BYTES, "held_back": None}
    ]
    assert files.local_starts() == [20, 30]


def test_retention_takes_no_more_than_was_asked_for(tmp_path: Path) -> None:
    partitions = {("orders", 0): 2, ("orders", 1): 2}
    files = a_copied_remote_log(tmp_path, partitions, topics=limited(local_retention_bytes=0))

    dry = run_on(files, "retain", "--max-segments", 3, "--dry-run", "--json")
    done = run_on(files, "retain", "--max-segments", 3, "--json")
    rest = run_on(files, "retain", "--json")

    assert [(row["new_local_start"], row["segments"]) for row in dry.rows] == [(20, 2), (10, 1)]
    assert done.rows == dry.rows
    assert [(row["new_local_start"], row["segments"]) for row in rest.rows] == [(20, 0), (20, 1)]


def test_retention_takes_no_more_than_the_settings_say(tmp_path: Path) -> None:
    partitions = {("orders", 0): 2, ("orders", 1): 2}
    files = a_copied_remote_log(
        tmp_path, partitions, topics=limited(local_retention_bytes=0), local_retention_max_segments_per_run=3
    )

    done = run_on(files, "retain", "--json")
    rest = run_on(files, "retain", "--json")

    assert [(row["new_local_start"], row["segments"]) for row in done.rows] == [(20, 2), (10, 1)]
    [notice] = done.document["notices"]
    assert notice["partition"] == "orders-1"
    assert "local.retention.max.segments.per.run" in notice["message"]
    assert [(row["new_local_start"], row["segments"]) for row in rest.rows] == [(20, 0), (20, 1)]
    assert (done.exit_code, rest.exit_code, rest.document["notices"]) == (0, 0, [])


def test_retention_says_why_something_is_held_back(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path, topics=limited(local_retention_bytes=0))

    result = run_on(files, "retain", "--json")

    assert result.exit_code == 1
    [row] = result.rows
    assert row["segments"] == 0
    assert mentions(row["held_back"], "offsets 0 to 9", "local retention", "not yet remote")


def test_retention_that_fails_for_a_partition_continues_with_the_others_and_fails(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path, {("orders", 0): 1, ("orders", 1): 1}, topics=limited(local_retention_bytes=0))
    files.objects(".log")[0].unlink()

    result = run_on(files, "retain", "--json")

    assert result.exit_code == 1
    assert [row["partition"] for row in result.rows] == ["orders-1"]
    assert [trouble["partition"] for trouble in result.document["troubles"]] == ["orders-0"]
    assert result.err.startswith("error: orders-0")


def test_expiry_shows_what_ended(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path, topics=limited(retention_bytes=SEGMENT_BYTES + BATCH_BYTES))

    dry = run_on(files, "expire", "--dry-run", "--json")
    assert len(files.objects()) == 9
    done = run_on(files, "expire", "--json")
    again = run_on(files, "expire", "--json")

    row = {"partition": "orders-0", "new_log_start": 20, "segments": 2, "bytes": 2 * SEGMENT_BYTES}
    row |= {"never_copied_segments": 0, "never_copied_bytes": 0}
    assert dry.document == {"rows": [row], "deleted": 0, "due": [], "waiting": [], "troubles": [], "notices": []}
    assert done.document == {"rows": [row], "deleted": 2, "due": [], "waiting": [], "troubles": [], "notices": []}
    assert again.document == {"rows": [], "deleted": 0, "due": [], "waiting": [], "troubles": [], "notices": []}
    assert (dry.exit_code, done.exit_code, again.exit_code) == (0, 0, 0)
    assert len(files.objects()) == 3
    assert "Expired" in run_on(files, "expire").out


def test_expiry_ends_no_more_than_was_asked_for(tmp_path: Path) -> None:
    partitions = {("orders", 0): 2, ("orders", 1): 2}
    files = a_copied_remote_log(tmp_path, partitions, topics=limited(retention_bytes=1))

    dry = run_on(files, "expire", "--max-segments", 3, "--dry-run", "--json")
    done = run_on(files, "expire", "--max-segments", 3, "--json")
    rest = run_on(files, "expire", "--json")

    assert [(row["new_log_start"], row["segments"]) for row in dry.rows] == [(20, 2), (10, 1)]
    assert (done.rows, done.document["deleted"]) == (dry.rows, 3)
    assert [(row["new_log_start"], row["segments"]) for row in rest.rows] == [(20, 1)]
    assert files.objects() == []


def test_expiry_leaves_what_is_held_and_does_not_show_it_as_ended(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path, topics=limited(retention_bytes=1))
    with files.open() as remote_log:
        remote_log.context.leases.acquire(ORDERS_0, "a copy run", 10**12)

    result = run_on(files, "expire", "--json")

    assert result.exit_code == 1
    assert result.rows == []
    assert [trouble["partition"] for trouble in result.document["troubles"]] == ["orders-0"]
    assert mentions(result.err, "a copy run", "leases end")
    assert len(files.objects()) == 9


def test_expiry_cleans_up_only_in_the_topics_that_were_asked_for(tmp_path: Path) -> None:
    partitions = {("clicks", 0): 0, ("orders", 0): 3}
    files = a_copied_remote_log(tmp_path, partitions, topics=limited(retention_bytes=1))
    with files.open() as remote_log:
        remote_log.deletions.mark_expired(remote_log.deletions.plan_expiry(EVERYTHING, 0)[0], "expire")

    assert run_on(files, "expire", "--topics", "clicks", "--json").document["deleted"] == 0
    assert run_on(files, "expire", "--topics", "orders", "--json").document["deleted"] == 3


def test_expiry_beside_a_copy_under_way_is_no_trouble(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)
    with files.open() as remote_log:
        remote_log.context.leases.acquire(ORDERS_0, "copy", 10**12)
        begin(remote_log)
        lease = held_by(remote_log, "copy")
        remote_log.context.leases.heartbeat(lease, 10**12)

    result = run_on(files, "expire", "--json")

    assert result.exit_code == 0
    assert result.document == {"rows": [], "deleted": 0, "due": [], "waiting": [], "troubles": [], "notices": []}


@pytest.mark.parametrize(
    ("typed", "options", "starts"),
    [("n\n", (), [0, 10, 20, 30]), ("y\n", (), [30]), ("", ("--yes",), [30])],
    ids=["refused", "confirmed", "not asked"],
)
def test_at_a_terminal_retain_shows_its_plan_and_asks_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: str, options: tuple[str, ...], starts: list[int]
) -> None:
    files = a_copied_remote_log(tmp_path, topics={"orders": {**ENABLED, "local.retention.bytes": 0}})
    terminal, ours = pty.openpty()
    with os.fdopen(terminal, "w") as person, os.fdopen(ours) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        person.write(typed)
        person.flush()

        ended = run_on(files, "retain", *options)

    assert ended.exit_code == (0 if starts == [30] else 1), ended.err
    asked = "Would be removed locally" in ended.out, "locally? [y/N]" in ended.err
    assert asked == (not options, not options)
    assert files.local_starts() == starts
