"""A topic's name that differs only in case, or in dot and underscore, is named wherever a topic is chosen."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.command_line import mentions, run_on
from support.remote_logs import ENABLED, RemoteLogFiles, a_remote_log, copy


@pytest.fixture
def files(tmp_path: Path) -> RemoteLogFiles:
    """A log directory with a topic that is tiered, one of nearly its name, and another one."""
    logs = {("orders.eu", 0): 1, ("Orders.eu", 0): 1, ("clicks", 0): 1}
    return a_remote_log(tmp_path, logs, topics={"orders.eu": ENABLED, "clicks": ENABLED})


@pytest.mark.parametrize(
    "command",
    [
        ("plan", "--topics", "orders_eu"),
        ("copy", "--topics", r"payments|orders\_eu"),
        ("audit", "--topics", "orders_eu"),
        ("retain", "--topics", "orders_eu", "--dry-run"),
        ("segments", "--topics", "orders_eu"),
        ("topics", "advise", "orders_eu"),
        ("topics", "enable", "orders_eu"),
        ("read", "orders_eu", 0),
        ("offsets", "orders_eu", 0),
        ("delete-records", "orders_eu", 0, "--before", 5),
    ],
    ids=lambda command: " ".join(map(str, command)),
)
def test_an_unknown_name_leads_to_those_that_are_nearly_the_same(
    files: RemoteLogFiles, command: tuple[object, ...]
) -> None:
    with files.open() as remote_log:
        assert copy(remote_log).is_whole
    refused = run_on(files, *command)

    assert refused.exit_code == 1
    assert mentions(refused.err, "Orders.eu, orders.eu", "exact name"), refused.err


def test_a_topic_to_delete_in_another_case_is_found(files: RemoteLogFiles) -> None:
    with files.open() as remote_log:
        assert copy(remote_log).is_whole
    refused = run_on(files, "delete-topic", "CLICKS")

    assert refused.exit_code == 1
    assert mentions(refused.err, "did you mean 'clicks'?")


def test_a_plan_names_what_is_nearly_the_same_until_a_topic_is_copied(files: RemoteLogFiles) -> None:
    planned, only_others = run_on(files, "plan", "--json"), run_on(files, "plan", "--topics", "clicks", "--json")
    copied, planned_later = run_on(files, "copy", "--json"), run_on(files, "plan", "--json")

    for first in (planned, copied):
        assert first.exit_code == 0, first.err
        [note] = [line for line in first.err.splitlines() if line.startswith("note: orders.eu: ")]
        assert mentions(note, "Orders.eu differs", "right topic")
    assert "Orders.eu" not in only_others.err
    assert "Orders.eu differs" not in planned_later.err


def test_a_plan_names_those_of_the_chosen_topics_that_are_not_there(files: RemoteLogFiles) -> None:
    planned = run_on(files, "plan", "--topics", "clicks|orders_eu|payments")

    assert planned.exit_code == 0
    notes = [line for line in planned.err.splitlines() if line.startswith("note: ")]
    assert [line.partition(": ")[2].partition(":")[0] for line in notes] == ["orders_eu"]
    assert mentions(notes[0], "Orders.eu, orders.eu")


@pytest.mark.parametrize(
    "change", [("pause",), ("allow-deletion",), ("set", "retention.ms=5"), ("enable",), ("disable",)]
)
def test_whoever_changes_a_topic_is_shown_what_is_nearly_the_same(
    files: RemoteLogFiles, change: tuple[str, ...]
) -> None:
    command, *values = change
    changed, other = (run_on(files, "topics", command, name, *values, "--json") for name in ("Orders.eu", "clicks"))

    assert (changed.exit_code, other.exit_code) == (0, 0)
    [note] = changed.document["notices"]
    assert mentions(note, "topic Orders.eu", "orders.eu differs")
    assert other.document["notices"] == []
