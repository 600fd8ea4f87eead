from __future__ import annotations

from pathlib import Path

import pytest

from support.command_line import mentions, run_on
from support.remote_logs import ENABLED, RemoteLogFiles, a_copied_remote_log, topic_id

DISABLED = {"orders": {**ENABLED, "remote.storage.enable": False}}


@pytest.fixture
def files(tmp_path: Path) -> RemoteLogFiles:
    return a_copied_remote_log(tmp_path)


def test_records_are_deleted_as_the_dry_run_showed(files: RemoteLogFiles) -> None:
    dry = run_on(files, "delete-records", "orders", 0, "--before", 20, "--dry-run", "--json")
    assert dry.exit_code == 0
    assert run_on(files, "read", "orders", 0, "--max-records", 1, "--json").document["offset"] == 0

    done = run_on(files, "delete-records", "orders", 0, "--before", 20, "--json")
    assert done.exit_code == 0
    assert done.rows == dry.rows
    assert [(row["partition"], row["new_log_start"], row["segments"]) for row in done.rows] == [("orders-0", 20, 2)]
    assert run_on(files, "read", "orders", 0, "--max-records", 1, "--json").document["offset"] == 20
    assert run_on(files, "expire", "--json").document["deleted"] == 2
    again = run_on(files, "delete-records", "orders", 0, "--before", 20, "--json")
    assert (again.exit_code, again.rows) == (0, [])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("orders", 0, "--before", 36), "it has offsets 0 to 35"),
        (("orders", 0, "--before", -2), "give one from 0 to 35"),
        (("orders", 7, "--before", 1), "orders-7 is neither in log.dirs nor"),
        (("nothing", 0, "--before", 1), "nothing-0 is neither in log.dirs nor"),
    ],
)
def test_an_offset_outside_the_partition_is_refused(
    files: RemoteLogFiles, arguments: tuple[object, ...], message: str
) -> None:
    result = run_on(files, "delete-records", *arguments, "--json")

    assert result.exit_code == 1
    assert message in result.document["message"]
    assert run_on(files, "read", "orders", 0, "--max-records", 1, "--json").document["offset"] == 0


def test_records_stay_where_their_deletion_is_not_allowed(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path, topics={"orders": {**ENABLED, "remote.deletion.allowed": False}})

    for dry_run in [["--dry-run"], []]:
        result = run_on(files, "delete-records", "orders", 0, "--before", 20, "--json", *dry_run)
        assert result.exit_code == 1
        assert mentions(result.document["message"], "orders-0", "topics allow-deletion")
    assert run_on(files, "read", "orders", 0, "--max-records", 1, "--json").document["offset"] == 0


def test_a_topic_is_marked_and_then_deleted_in_the_background(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path, {("orders", 0): 1, ("orders", 1): 2, ("clicks", 0): 1})
    files.properties["topics"] = {**DISABLED, "clicks": ENABLED}

    dry = run_on(files, "delete-topic", "orders", "--dry-run", "--json")
    assert [(row["partition"], row["segments"], row["state"]) for row in dry.rows] == [
        ("orders-0", 1, None),
        ("orders-1", 2, None),
    ]
    assert run_on(files, "expire", "--json").document["deleted"] == 0

    marked = run_on(files, "delete-topic", "orders", "--json")
    assert marked.exit_code == 0
    assert {row["state"] for row in marked.rows} == {"MARKED"}
    assert len(files.objects(".log")) == 4
    assert run_on(files, "expire", "--json").document["deleted"] == 3
    assert [path.parts[-3] for path in files.objects(".log")] == [f"clicks-{topic_id('clicks')}"]
    again = run_on(files, "delete-topic", "orders", "--json")
    assert {row["state"] for row in again.rows} == {"FINISHED"}
    assert run_on(files, "audit", "--json").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("oders",), "did you mean 'orders'?"),
        (("nothing like it",), "'tiered-storage topics list'"),
        ((".*",), "no topic is called '.*'"),
        (("orders", "--topic-id", "no such id"), f"the nearest one is '{topic_id('orders')}'"),
    ],
)
def test_names_and_ids_that_do_not_exist_are_reported_with_the_nearest(
    tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    files = a_copied_remote_log(tmp_path, topics=DISABLED)

    result = run_on(files, "delete-topic", *arguments, "--json")
    assert result.exit_code == 1
    assert message in result.document["message"]
    assert run_on(files, "expire", "--json").document["deleted"] == 0
    assert len(files.objects()) == 9


def test_a_topic_that_is_tiered_here_is_not_deleted(files: RemoteLogFiles) -> None:
    result = run_on(files, "delete-topic", "orders", "--json")

    assert result.exit_code == 1
    assert "topics disable orders" in result.document["message"]


def test_a_topic_that_may_not_be_deleted_remotely_stays(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path, topics={})

    result = run_on(files, "delete-topic", "orders", "--json")
    assert (result.exit_code, result.document["error"]) == (1, "DeletionRefusedError")
    assert run_on(files, "expire", "--json").document["deleted"] == 0
