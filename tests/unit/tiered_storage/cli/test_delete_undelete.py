"""The grace time of deletions on the command line: when objects are deleted, and what brings them back."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.command_line import mentions, run_on
from support.remote_logs import ENABLED, SEGMENT_BYTES, RemoteLogFiles, a_copied_remote_log

GRACE = 3_600_000
DATE = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d{3})? UTC"


@pytest.fixture
def files(tmp_path: Path) -> RemoteLogFiles:
    topics = {"orders": {**ENABLED, "retention.bytes": SEGMENT_BYTES + 1}}
    return a_copied_remote_log(tmp_path, topics=topics, remote_log_deletion_grace_ms=GRACE)


def test_expire_reports_what_waits_and_until_when(files: RemoteLogFiles) -> None:
    shown = run_on(files, "expire", "--dry-run")
    assert re.search(rf"expire after {DATE}.*remote\.log\.deletion\.grace\.ms.*undelete TOPIC", shown.err)
    done = run_on(files, "expire")
    assert done.exit_code == 0
    assert re.search(rf"orders-0 +2 +1\.8 kB +{DATE}", done.out)
    document = run_on(files, "expire", "--json").document
    [waiting] = document["waiting"]
    assert (waiting["partition"], waiting["segments"], document["due"]) == ("orders-0", 2, [])
    assert waiting["deleted_after"] > GRACE


def test_without_a_grace_time_nothing_of_it_is_said(files: RemoteLogFiles) -> None:
    files.properties["remote.log.deletion.grace.ms"] = 0
    done = run_on(files, "expire", "--json")
    assert (done.document["deleted"], done.document["waiting"], done.err) == (2, [], "")


def test_undelete_restores_expired_segments_and_warns_that_they_expire_again(files: RemoteLogFiles) -> None:
    assert run_on(files, "expire").exit_code == 0
    assert run_on(files, "read", "orders", "0", "--offset", "0", "--max-records", "1").exit_code == 1

    shown = run_on(files, "undelete", "orders", "--dry-run", "--json").document["rows"]
    done = run_on(files, "undelete", "orders", "--json")
    assert done.document["rows"] == shown
    [row] = shown
    assert (row["partition"], row["log_start"], row["segments"], row["second_copies"]) == ("orders-0", 0, 2, 0)
    assert mentions(done.err, "expire", "2 segments")
    assert run_on(files, "read", "orders", "0", "--offset", "0", "--max-records", "1").exit_code == 0
    assert run_on(files, "audit").exit_code == 0


@pytest.mark.parametrize(
    "command", [("delete-records", "orders", "0", "--before", "20"), ("delete-topic", "orders"), None]
)
def test_segments_that_a_person_deleted_are_undeleted(files: RemoteLogFiles, command: tuple[str, ...] | None) -> None:
    files.properties["topics"]["orders"]["retention.bytes"] = -1
    if command is None:
        assert run_on(files, "topics", "disable", "orders", "--delete-remote").exit_code == 0
    else:
        if command[0] == "delete-topic":
            assert run_on(files, "topics", "disable", "orders").exit_code == 0
        done = run_on(files, *command)
        assert done.exit_code == 0
        assert "'tiered-storage undelete orders'" in done.err
    assert run_on(files, "expire").exit_code == 0
    assert len(files.objects()) == 9
    assert run_on(files, "undelete", "orders").exit_code == 0
    segments = run_on(files, "segments", "--topics", "orders", "--json").document["rows"]
    assert {segment["state"] for segment in segments} == {"COPY_SEGMENT_FINISHED"}


def test_partitions_that_are_named_alone_are_brought_back(files: RemoteLogFiles) -> None:
    assert run_on(files, "expire").exit_code == 0
    none = run_on(files, "undelete", "orders", "--partitions", "1")
    assert none.exit_code == 1
    assert "nothing was brought back" in none.err
    assert run_on(files, "undelete", "orders", "--partitions", "0").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("orders",), "topic orders: no marked segment"),
        (("no-such",), "topic no-such: no marked segment"),
        (("orders", "--partitions", "x"), "partitions: 'x'"),
        (("orders", "--topic-id", "x"), "nothing was brought back"),
    ],
)
def test_undelete_refuses_arguments_without_a_meaning(
    files: RemoteLogFiles, arguments: tuple[str, ...], said: str
) -> None:
    refused = run_on(files, "undelete", *arguments)
    assert refused.exit_code == 1
    assert said in refused.err


def test_an_object_that_is_gone_is_an_error(files: RemoteLogFiles) -> None:
    assert run_on(files, "expire").exit_code == 0
    files.objects(".log")[0].unlink()
    done = run_on(files, "undelete", "orders", "--json")
    assert done.exit_code == 1
    assert [row["segments"] for row in done.document["rows"]] == [1]
    message = done.document["troubles"][0]["message"]
    assert mentions(message, "offsets 0 to 9", f"{SEGMENT_BYTES} bytes")
