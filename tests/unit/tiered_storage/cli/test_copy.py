from __future__ import annotations

import os
import pty
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from support.command_line import mentions, run_on
from support.counted_limits import counted_limits
from support.remote_logs import (
    BATCH_BYTES,
    ENABLED,
    ORDERS_0,
    SEGMENT_BYTES,
    RemoteLogFiles,
    a_copied_remote_log,
    a_remote_log,
    begin,
    flip_bit,
    held_by,
    offsets_read,
    states_of,
)
from tiered_storage.remote_log.copy.job import CopyJob
from tiered_storage.remote_log.selection import EVERYTHING
from tiered_storage.remote_log.storage.clients.opening import open_object_client
from tiered_storage.remote_log.storage.clients.options import ObjectStoreOptions

COMPACTED = {**ENABLED, "cleanup.policy": "compact"}


def limited(**limits: Any) -> dict[str, Any]:
    return {"orders": {**ENABLED, **{name.replace("_", "."): value for name, value in limits.items()}}}


def with_a_broken_partition(tmp_path: Path) -> RemoteLogFiles:
    """Two partitions, of which clicks-0 has a segment that cannot be copied."""
    files = a_remote_log(tmp_path, {("clicks", 0): 2, ("orders", 0): 1})
    flip_bit(files.local_segments("clicks")[0].log_path, BATCH_BYTES - 1)
    return files


# -------------------------------------------------------------------------------------------------------------- plan


def test_a_plan_shows_what_is_due_and_changes_nothing(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)

    shown, result = run_on(files, "plan"), run_on(files, "plan", "--json")

    assert (shown.exit_code, shown.err) == (0, "")
    assert "Due: 3 segments, 2.8 kB" in shown.out
    assert [line.split()[0] for line in shown.out.splitlines() if line.startswith(" orders")] == ["orders-0"] * 3
    assert result.rows[1] == {
        "partition": "orders-0",
        "start_offset": 10,
        "end_offset": 19,
        "bytes": SEGMENT_BYTES,
        "file": str(files.local_segments()[1].log_path),
    }
    assert (result.document["refused"], result.document["unreadable"], result.document["notices"]) == ([], [], [])
    assert not files.store.exists()


def test_a_plan_names_the_topics_that_it_leaves_out_since_they_are_not_enabled(tmp_path: Path) -> None:
    partitions = {(f"clicks{number:02}", 0): 1 for number in range(12)} | {("orders", 0): 1}
    files = a_remote_log(tmp_path, partitions, topics={"orders": ENABLED})

    shown, one, document = (run_on(files, "plan", *more) for more in ((), ("--topics", "clicks00"), ("--json",)))

    assert mentions(shown.err, "note: ", "'tiered-storage topics enable TOPIC'", ": clicks00, ")
    assert shown.err.endswith("clicks09 and 2 more\n")
    assert (one.exit_code, one.err.endswith(": clicks00\n")) == (0, True)
    assert document.document["not_enabled"] == sorted({topic for topic, _ in partitions} - {"orders"})


@pytest.mark.parametrize("command", ["plan", "copy --dry-run", "topics list"])
def test_a_command_that_only_looks_makes_no_metadata(tmp_path: Path, command: str) -> None:
    files = a_remote_log(tmp_path)
    shutil.rmtree(tmp_path / "state", ignore_errors=True)

    for _ in range(2):
        result = run_on(files, *command.split())
        assert (result.exit_code, "orders" in result.out) == (0, True), result
        assert sorted(path.name for path in tmp_path.iterdir()) == ["logs", "settings.yaml"]


def test_a_plan_beside_a_store_that_lost_its_metadata_is_an_error(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    for path in (tmp_path / "state").glob("*.db*"):
        path.unlink()

    result = run_on(files, "plan")

    assert (result.exit_code, "rebuild-metadata" in result.err) == (1, True)
    assert list((tmp_path / "state").glob("*.db*")) == []


def test_a_plan_names_the_topics_that_it_leaves_out_since_they_are_paused(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)
    assert run_on(files, "topics", "pause", "orders").exit_code == 0

    shown, document = run_on(files, "plan"), run_on(files, "plan", "--json").document

    assert shown.exit_code == 0 and mentions(shown.err, "paused", "topics resume", "orders\n")
    assert (document["rows"], document["paused"], document["not_enabled"]) == ([], ["orders"], [])


def test_a_plan_may_be_limited(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path, {("clicks", 0): 2, ("orders", 0): 2})

    result = run_on(files, "plan", "--topics", "orders", "--max-segments", 1, "--json")

    assert [row["partition"] for row in result.rows] == ["orders-0"]
    assert "1 more segments are due" in result.document["notices"][0]["message"]


def test_a_plan_that_leaves_out_what_was_asked_for_says_what_and_fails(tmp_path: Path) -> None:
    files = a_remote_log(
        tmp_path, {("clicks", 0): 1, ("orders", 0): 1, ("views", 0): 1},
        topics={"clicks": COMPACTED, "orders": ENABLED, "views": ENABLED},
    )  # fmt: skip
    (files.partition_directory("views") / "leader-epoch-checkpoint").write_text("1\n0\n")

    shown, result = run_on(files, "plan"), run_on(files, "plan", "--json")

    assert shown.exit_code == result.exit_code == 1
    assert mentions(shown.err, "refused", "clicks", "cleanup.policy=compact")
    assert "unreadable: views-0" in shown.err
    assert [row["partition"] for row in result.rows] == ["orders-0"]
    assert [finding["partition"] for finding in result.document["refused"]] == ["clicks"]
    assert [finding["partition"] for finding in result.document["unreadable"]] == ["views-0"]


# -------------------------------------------------------------------------------------------------------------- copy


def test_a_copy_shows_what_it_moved(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path, {("clicks", 0): 1, ("orders", 0): 2})

    result = run_on(files, "copy", "--json", "--workers", 3)

    assert (result.exit_code, result.err) == (0, "")
    assert result.document["troubles"] == []
    assert sorted((row["partition"], row["start_offset"]) for row in result.rows) == [
        ("clicks-0", 0), ("orders-0", 0), ("orders-0", 10),
    ]  # fmt: skip
    with files.open() as remote_log:
        assert offsets_read(remote_log, 0) == list(range(25))

    again = run_on(files, "copy")
    assert again.exit_code == 0
    assert "orders-0" not in again.out


def test_a_copy_keeps_the_limit_of_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = a_remote_log(tmp_path, {("orders", 0): 2}, remote_log_manager_copy_max_bytes_per_second=65_536)
    passed = counted_limits(monkeypatch)

    result = run_on(files, "copy", "--json", "--workers", 2)

    [(limit, size)] = passed.items()
    assert limit.bytes_per_second == 65_536
    assert size >= sum(row["bytes"] for row in result.rows) > 0


def test_a_dry_run_only_shows_the_plan(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)

    result = run_on(files, "copy", "--dry-run")

    assert result.exit_code == 0
    assert "Due: 3 segments" in result.out
    assert not files.store.exists()


def test_neighbours_are_copied_and_the_run_fails(tmp_path: Path) -> None:
    files = with_a_broken_partition(tmp_path)

    result = run_on(files, "copy", "--json")

    assert result.exit_code == 1
    assert [row["partition"] for row in result.rows] == ["orders-0"]
    [trouble] = result.document["troubles"]
    assert trouble["partition"] == "clicks-0"
    assert "CRC-32C" in trouble["message"]
    assert f"error: clicks-0: {trouble['message']}" in result.err


def test_damage_beside_the_log_is_copied_and_the_run_fails(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)
    flip_bit(files.local_segments()[0].offset_index_path, 7)
    (files.partition_directory() / "00000000000000000020.snapshot").unlink()

    result = run_on(files, "copy")

    assert result.exit_code == 1
    assert result.out.count("orders-0") == 3
    assert "error: orders-0" in result.err
    assert "00000000000000000000.index" in result.err
    assert "note: orders-0" in result.err
    assert "00000000000000000020.snapshot is missing" in result.err


def test_a_copy_leaves_a_partition_that_another_run_holds_and_exits_with_1(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path, {("clicks", 0): 1, ("orders", 0): 1})
    with files.open() as remote_log:
        remote_log.context.leases.acquire(ORDERS_0, "another run", 10**12)

    result = run_on(files, "copy", "--json")

    assert result.exit_code == 1
    assert [row["partition"] for row in result.rows] == ["clicks-0"]
    [trouble] = result.document["troubles"]
    assert trouble["partition"] == "orders-0"
    assert mentions(trouble["message"], "another run", "leases end")


def test_a_copy_reaches_its_work_area_by_the_settings_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = a_remote_log(tmp_path)
    files.properties |= {"rsm.config.endpoint": "https://store.example", "rsm.config.region": "eu-central-1"}
    used: list[ObjectStoreOptions] = []

    def open_client(url: str, options: ObjectStoreOptions, **others: Any) -> object:
        used.append(options)
        return open_object_client(url, options, **others)

    for module in ("context", "storage.segment_objects", "jobs.worker"):
        monkeypatch.setattr(f"tiered_storage.remote_log.{module}.open_object_client", open_client)

    assert run_on(files, "copy").exit_code == 0
    assert {(options.endpoint, options.region) for options in used} == {("https://store.example", "eu-central-1")}


def test_switched_off_nothing_is_copied_and_that_is_said(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path, remote_log_storage_system_enable=False)

    result = run_on(files, "copy")

    assert result.exit_code == 0
    assert "remote.log.storage.system.enable is false" in result.err
    assert files.objects() == []


def test_a_worker_that_breaks_down_ends_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = a_remote_log(tmp_path)

    def break_down(*_: object) -> int:
        raise ZeroDivisionError

    monkeypatch.setattr(CopyJob, "run_group", break_down)

    with pytest.raises(ZeroDivisionError):
        run_on(files, "copy")
    with files.open() as remote_log:
        assert {state for _, state in states_of(remote_log)} == {"COPY_SEGMENT_STARTED"}


def test_notes_of_a_copy_are_in_its_document(tmp_path: Path) -> None:
    result = run_on(a_remote_log(tmp_path), "copy", "--max-segments", 2, "--json")

    assert (result.exit_code, len(result.rows)) == (0, 2)
    [notice] = result.document["notices"]
    assert "1 more segments are due" in notice["message"]


# ------------------------------------------------------------------------------------------------------------ retain


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


# ------------------------------------------------------------------------------------------------------------ expire


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


@pytest.mark.parametrize("command", ["plan", "copy", "retain", "expire", "segments", "audit"])
def test_every_command_on_partitions_takes_their_numbers(tmp_path: Path, command: str) -> None:
    files = a_copied_remote_log(
        tmp_path,
        {("orders", number): 1 for number in range(3)},
        topics={"orders": {**ENABLED, "retention.bytes": 1, "local.retention.bytes": 0}},
    )
    if command in {"plan", "copy"}:
        files.append(2, number=0)
        files.append(2, number=2)

    result = run_on(files, command, "--partitions", "1-2", "--json")
    shown = {row["partition"] for row in result.rows}

    assert result.exit_code == 0, result.err
    assert shown == {"plan": {"orders-2"}, "copy": {"orders-2"}, "audit": set()}.get(command, {"orders-1", "orders-2"})
    refused = run_on(files, command, "--partitions", "two", "--json")
    assert (refused.exit_code, refused.document["error"]) == (1, "ConfigurationError")


@pytest.mark.parametrize(("option", "text"), [("--partitions", ""), ("--partitions", " "), ("--topics", "(")])
def test_a_selection_that_cannot_be_read_is_refused(tmp_path: Path, option: str, text: str) -> None:
    refused = run_on(a_copied_remote_log(tmp_path), "plan", option, text, "--json")

    assert (refused.exit_code, refused.document["error"]) == (1, "ConfigurationError")


@pytest.mark.parametrize("command", ["plan", "copy", "retain", "expire", "audit"])
def test_a_selection_that_matches_nothing_is_reported(tmp_path: Path, command: str) -> None:
    files = a_copied_remote_log(tmp_path, {("orders", 0): 1})

    for chosen in (("--topics", "order"), ("--partitions", "1")):
        result = run_on(files, command, *chosen, "--json")
        assert (result.exit_code, result.document["error"]) == (1, "ConfigurationError")
        assert "topics list" in result.err

    everything, only_orders = run_on(files, command), run_on(files, command, "--topics", "orders")
    assert (everything.exit_code, everything.err) == (only_orders.exit_code, only_orders.err) == (0, "")


@pytest.mark.parametrize("command", ["plan", "audit"])
def test_a_partition_that_is_only_local_or_cannot_be_read_is_known(tmp_path: Path, command: str) -> None:
    files = a_remote_log(tmp_path, {("clicks", 0): 1, ("orders", 0): 1}, topics={})
    (files.partition_directory("clicks") / "leader-epoch-checkpoint").write_text("0\nmany\n")

    for topic in ("clicks", "orders"):
        result = run_on(files, command, "--topics", topic)
        assert (result.exit_code, "no partition" in result.err) == (0, False)


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
