"""plan and allow-deletion say how much is past retention already, before anything is deleted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.command_line import mentions, run_on
from support.remote_logs import BATCH_BYTES, ENABLED, SEGMENT_BYTES, RemoteLogFiles, a_copied_remote_log, a_remote_log

ENABLED_ONLY = {"remote.storage.enable": True}
NONE = {
    f"{name}_{unit}": 0
    for name in ("local", "local_waiting", "remote", "never_copied")
    for unit in ("segments", "bytes")
}  # fmt: skip


def past(files: RemoteLogFiles, *arguments: object) -> dict[str, Any]:
    done = run_on(files, *arguments, "--json")
    assert done.exit_code == 0, done.err
    [found] = done.document["past_retention"]
    assert found.pop("topic") == "orders"
    found.pop("topic_id")
    return dict(found)


def amounts(local: int = 0, remote: int = 0, never_copied: int = 0, local_waiting: int = 0) -> dict[str, int]:
    counts = {"local": local, "local_waiting": local_waiting, "remote": remote, "never_copied": never_copied}
    return {
        key: value
        for name, count in counts.items()
        for key, value in ((f"{name}_segments", count), (f"{name}_bytes", count * SEGMENT_BYTES))
    }


@pytest.mark.parametrize("command", [("plan",), ("topics", "allow-deletion", "orders")])
def test_remote_segments_past_both_limits_count_in_each_tier(tmp_path: Path, command: tuple[str, ...]) -> None:
    limits = {"retention.bytes": 2 * SEGMENT_BYTES + BATCH_BYTES, "local.retention.bytes": SEGMENT_BYTES + BATCH_BYTES}
    files = a_copied_remote_log(tmp_path, topics={"orders": {**ENABLED_ONLY, "retention.ms": -1, **limits}})
    before = (files.local_starts(), len(files.objects()))

    assert past(files, *command) == amounts(local=2, remote=1)
    assert (files.local_starts(), len(files.objects())) == before


@pytest.mark.parametrize("command", [("plan",), ("topics", "allow-deletion", "orders")])
def test_segments_that_were_never_copied_are_counted_by_age(tmp_path: Path, command: tuple[str, ...]) -> None:
    files = a_remote_log(tmp_path, topics={"orders": {**ENABLED_ONLY, "retention.ms": 86_400_000}})
    files.clock.now += 2 * 86_400_000

    assert past(files, *command) == amounts(local=3, never_copied=3)
    said = run_on(files, *command).err
    size = f"{3 * SEGMENT_BYTES / 1000:.1f} kB"
    assert mentions(said, "orders: 3 local segments", f"({size})", "3 never copied", "0 remote ones (0 bytes)")


def test_the_warning_counts_what_the_next_run_deletes(tmp_path: Path) -> None:
    limits = {"retention.bytes": SEGMENT_BYTES + BATCH_BYTES, "local.retention.bytes": BATCH_BYTES}
    files = a_copied_remote_log(tmp_path, topics={"orders": {**ENABLED_ONLY, "retention.ms": -1, **limits}})

    warning = past(files, "topics", "allow-deletion", "orders")
    trimmed = sum(row["segments"] for row in run_on(files, "retain", "--dry-run", "--json").rows)
    expired = sum(row["segments"] for row in run_on(files, "expire", "--dry-run", "--json").rows)
    assert (warning["local_segments"], warning["remote_segments"]) == (trimmed, expired) == (3, 2)


def test_rights_are_reported_beside_it_and_nothing_is_said_where_nothing_is_past(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path, topics={"orders": {**ENABLED_ONLY, "retention.ms": -1}})
    assert past(files, "plan") == NONE
    assert "past local retention" not in run_on(files, "plan").err

    files.properties["topics"]["orders"]["local.retention.bytes"] = 0
    assert "local retention, deletion not allowed" in run_on(files, "plan").err
    said = run_on(files, "topics", "allow-deletion", "orders", "--only", "local").err
    assert "local retention, deletion allowed; " in said
    assert said.strip().endswith("total retention, deletion not allowed")


def test_segments_that_wait_for_a_grace_time_are_reported_without_a_failure(tmp_path: Path) -> None:
    limits = {"retention.ms": -1, "local.retention.bytes": BATCH_BYTES}
    files = a_copied_remote_log(
        tmp_path, topics={"orders": {**ENABLED, **limits}}, remote_log_deletion_grace_ms=3_600_000
    )
    assert run_on(files, "delete-records", "orders", 0, "--before", 10).exit_code == 0

    assert past(files, "plan") == amounts(local=3, local_waiting=3)
    assert mentions(run_on(files, "plan").err, "3 of them wait", "'tiered-storage retain --dry-run'")
    for arguments in (("retain", "--dry-run"), ("retain",)):
        retained = run_on(files, *arguments)
        assert mentions(retained.err, "note: orders-0: offsets 0 to 9", "log start")
        assert (retained.exit_code, files.local_starts()) == (0, [0, 10, 20, 30])
    files.clock.now += 3_600_000
    assert past(files, "plan") == amounts(local=3)
    assert run_on(files, "retain").exit_code == 0
    assert files.local_starts() == [30]


def test_a_partition_that_cannot_be_read_hides_no_other(tmp_path: Path) -> None:
    files = a_remote_log(
        tmp_path,
        {("orders", 0): 2, ("orders", 1): 2},
        topics={"orders": {**ENABLED_ONLY, "retention.ms": 86_400_000}},
    )
    (files.partition_directory("orders", 1) / "leader-epoch-checkpoint").write_text("broken")
    files.clock.now += 2 * 86_400_000

    warnings = run_on(files, "plan", "--json").document["past_retention"]
    assert [one["never_copied_segments"] for one in warnings] == [2]
