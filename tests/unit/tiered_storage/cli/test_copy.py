from __future__ import annotations

import shutil
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
    flip_bit,
    offsets_read,
    states_of,
)
from tiered_storage.remote_log.copy.job import CopyJob
from tiered_storage.remote_log.storage.clients.opening import open_object_client
from tiered_storage.remote_log.storage.clients.options import ObjectStoreOptions

COMPACTED = {**ENABLED, "cleanup.policy": "compact"}


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


# ------------------------------------------------------------------------------------------------------------ expire


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
