from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.command_line import run_on
from support.remote_logs import ENABLED, ORDERS_0, SEGMENT_BYTES, RemoteLogFiles, a_copied_remote_log, segments_of
from tiered_storage.cli.common.plans import read_plan, save_plan
from tiered_storage.remote_log.retention.expiry import ExpiryPlan

DELETABLE = {**ENABLED, "retention.bytes": 2 * SEGMENT_BYTES, "local.retention.bytes": SEGMENT_BYTES}


@pytest.fixture
def files(tmp_path: Path) -> RemoteLogFiles:
    return a_copied_remote_log(tmp_path, {("clicks", 0): 3, ("orders", 0): 3}, topics={"orders": DELETABLE})


@pytest.mark.parametrize("command", ["retain", "expire"])
def test_a_later_run_does_what_a_dry_run_saved(files: RemoteLogFiles, tmp_path: Path, command: str) -> None:
    plan = tmp_path / "plan.jsonl"

    shown = run_on(files, command, "--dry-run", "--save-plan", plan, "--json")
    assert files.local_starts() == [0, 10, 20, 30]
    assert len(files.objects(".log")) == 6
    # What became due since is not in the plan.
    files.properties["topics"] = {topic: {**DELETABLE, "local.retention.bytes": 0} for topic in ("clicks", "orders")}
    done = run_on(files, command, "--plan", plan, "--json")

    assert (shown.exit_code, done.exit_code) == (0, 0), done.err
    assert done.rows == shown.rows
    assert [row["partition"] for row in done.rows] == ["orders-0"]
    assert files.local_starts("clicks") == [0, 10, 20, 30]
    assert files.local_starts() == ([20, 30] if command == "retain" else [0, 10, 20, 30])
    assert len(files.objects(".log")) == (6 if command == "retain" else 5)
    again = run_on(files, command, "--plan", plan, "--json")
    assert again.exit_code == 0


def test_a_saved_plan_of_an_earlier_release_is_read_with_its_names(files: RemoteLogFiles, tmp_path: Path) -> None:
    with files.open() as remote_log:
        [holder, *_] = segments_of(remote_log, ORDERS_0)
    plan = ExpiryPlan(ORDERS_0, 10, 0, (), held_by=(holder,))
    saved = tmp_path / "plan.jsonl"
    save_plan(saved, [plan], ExpiryPlan)
    assert read_plan(saved, ExpiryPlan) == [plan]

    saved.write_bytes(saved.read_bytes().replace(b'"held_by"', b'"read_instead"'))

    assert read_plan(saved, ExpiryPlan) == [plan]


@pytest.mark.parametrize("command", ["retain", "expire"])
def test_a_saved_plan_takes_nothing_that_would_be_kept_by_now(
    files: RemoteLogFiles, tmp_path: Path, command: str
) -> None:
    plan = tmp_path / "plan.jsonl"
    assert run_on(files, command, "--dry-run", "--save-plan", plan).exit_code == 0
    files.properties["topics"] = {"orders": ENABLED}

    assert run_on(files, command, "--plan", plan).exit_code == 0
    assert files.local_starts() == [0, 10, 20, 30]
    assert len(files.objects(".log")) == 6


@pytest.mark.parametrize("command", ["retain", "expire"])
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--save-plan", "plan.jsonl"), "give both"),
        (("--plan", "plan.jsonl", "--dry-run"), "leave --dry-run"),
        (("--plan", "plan.jsonl", "--topics", "orders"), "leave --dry-run, --topics"),
        (("--plan", "/no/such/plan"), "/no/such/plan: "),
        (("--dry-run", "--save-plan", "/no/such/folder/plan"), "/no/such/folder/plan: "),
    ],
)
def test_options_that_contradict_each_other_do_nothing(
    files: RemoteLogFiles, command: str, arguments: tuple[str, ...], words: str
) -> None:
    result = run_on(files, command, *arguments, "--json")

    assert (result.exit_code, result.document["error"]) == (1, "ConfigurationError")
    assert words in result.document["message"]
    assert files.local_starts() == [0, 10, 20, 30]


@pytest.mark.parametrize("content", [b"a key without a newline", b'{"nothing": 1}\n', b"\xff\x00" * 1000])
@pytest.mark.parametrize("command", ["retain", "expire"])
def test_a_plan_is_never_saved_over_a_file_of_something_else(
    files: RemoteLogFiles, tmp_path: Path, command: str, content: bytes
) -> None:
    key = tmp_path / "key"
    key.write_bytes(content)

    result = run_on(files, command, "--dry-run", "--save-plan", key, "--json")

    assert (result.exit_code, result.document["error"]) == (1, "ConfigurationError")
    assert "not an earlier plan" in result.document["message"]
    assert key.read_bytes() == content
    for _ in range(2):
        assert run_on(files, command, "--dry-run", "--save-plan", tmp_path / "plan.jsonl").exit_code == 0


@pytest.mark.parametrize("command", ["retain", "expire"])
def test_a_saved_plan_with_nothing_due_is_carried_out(tmp_path: Path, command: str) -> None:
    files = a_copied_remote_log(tmp_path, topics={"orders": {"remote.storage.enable": True}})
    plan = tmp_path / "plan.jsonl"

    for _ in range(2):
        assert run_on(files, command, "--dry-run", "--save-plan", plan).exit_code == 0
    done = run_on(files, command, "--plan", plan, "--json")

    assert (done.exit_code, done.rows) == (0, []), done.err


@pytest.mark.parametrize("command", ["retain", "expire"])
def test_a_plan_of_an_earlier_release_is_carried_out(files: RemoteLogFiles, tmp_path: Path, command: str) -> None:
    plan = tmp_path / "plan.jsonl"
    shown = run_on(files, command, "--dry-run", "--save-plan", plan, "--json")
    head, _, lines = plan.read_text().partition("\n")
    plan.write_text(lines)

    done = run_on(files, command, "--plan", plan, "--json")

    assert "plan" in head
    assert (done.exit_code, done.rows) == (0, shown.rows), done.err


@pytest.mark.parametrize("command", ["retain", "expire"])
def test_an_empty_file_is_no_plan(files: RemoteLogFiles, tmp_path: Path, command: str) -> None:
    (tmp_path / "empty").touch()

    refused = run_on(files, command, "--plan", tmp_path / "empty")

    assert (refused.exit_code, f"{tmp_path / 'empty'} is empty" in refused.err) == (1, True)


def test_a_file_that_is_no_plan_is_named_with_its_line(files: RemoteLogFiles, tmp_path: Path) -> None:
    plan = tmp_path / "plan.jsonl"
    plan.write_text('{"nothing": 1}\n')

    result = run_on(files, "retain", "--plan", plan, "--json")
    assert (result.exit_code, result.document["error"]) == (1, "ConfigurationError")
    assert "line 1 is not a LocalRetentionPlan" in result.document["message"]


def test_expire_takes_no_plan_that_deletes_records_by_a_persons_word(files: RemoteLogFiles, tmp_path: Path) -> None:
    plan = tmp_path / "plan.jsonl"
    assert run_on(files, "expire", "--dry-run", "--save-plan", plan).exit_code == 0
    head, _, line = plan.read_text().partition("\n")
    forged = {**json.loads(line), "reason": "records", "new_log_start": 30}
    plan.write_text(f"{head}\n{json.dumps(forged)}\n")

    result = run_on(files, "expire", "--plan", plan, "--json")

    assert (result.exit_code, result.document["error"]) == (1, "ConfigurationError")
    assert f"{plan}: " in result.document["message"]
    assert "orders-0" in result.document["message"]
    assert "'tiered-storage delete-records'" in result.document["message"]
    assert len(files.objects(".log")) == 6
    with files.open() as remote_log:
        assert not remote_log.context.segments.log_start_offset(ORDERS_0)
