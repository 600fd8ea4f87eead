from __future__ import annotations

import getpass
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from unittest import mock

import pytest

from support.command_line import mentions, run_on
from support.remote_logs import ENABLED, a_copied_remote_log, a_remote_log
from tiered_storage.errors import RemoteStorageError
from tiered_storage.remote_log.selection import EVERYTHING
from tiered_storage.remote_log.storage.clients.local_directory import LocalDirectory

WANTED = {"orders": {**ENABLED, "local.retention.bytes": 0}}


def test_deletions_are_stopped_until_that_is_lifted(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path, topics=WANTED)

    stopped = run_on(files, "stop-deletions", "--reason", "a wrong mount", "--json")
    [row] = stopped.rows
    assert (stopped.exit_code, row["stopped"], row["reason"]) == (0, True, "a wrong mount")
    assert row["said_by"].endswith(f" on {socket.gethostname()}")
    shown = run_on(files, "retain", "--dry-run", "--json")
    assert (shown.exit_code, shown.rows[0]["new_local_start"]) == (0, 30)
    assert mentions(shown.err, "note: ", "a wrong mount", "stop-deletions --lift")
    assert "a wrong mount" in shown.err
    for command in ("expire", "delete-records orders 0 --before 20"):
        assert "a wrong mount" in run_on(files, *command.split(), "--dry-run").err
    refused = run_on(files, "retain", "--json")
    assert (refused.exit_code, refused.document["error"]) == (1, "DeletionRefusedError")
    assert row["said_by"] in refused.document["message"]
    assert "a wrong mount" in refused.document["message"]
    assert "tiered-storage stop-deletions --lift" in refused.document["message"]
    assert files.local_starts() == [0, 10, 20, 30]

    lifted = run_on(files, "stop-deletions", "--lift", "--json")
    assert lifted.rows == [{"stopped": False, "said_by": None, "said_at": None, "reason": None}]
    assert run_on(files, "retain").exit_code == 0
    assert files.local_starts() == [30]


@pytest.mark.parametrize(
    "wrong",
    [
        {"topics": {"typo": {"retention.ms": 0}}},
        {"no.such.setting": 1},
        {"remote.log.storage.manager.class.name": "no_such_package.Manager"},
        {"rsm.config.url": "ftp://nowhere"},
    ],
)
def test_deletions_are_stopped_whatever_else_is_wrong(tmp_path: Path, wrong: dict[str, object]) -> None:
    files = a_copied_remote_log(tmp_path, topics=WANTED)
    sound = files.properties
    files.properties = {**sound, **wrong}

    stopped = run_on(files, "stop-deletions", "--reason", "look first", "--json")

    assert (stopped.exit_code, stopped.rows[0]["stopped"]) == (0, True)
    assert "the metadata alone" in stopped.err
    files.properties = sound
    assert "look first" in run_on(files, "retain").err
    with files.open() as remote_log:
        assert remote_log.context.store.generation.read().next_token is None
    files.properties = {**sound, **wrong}
    assert run_on(files, "stop-deletions", "--lift").exit_code == 1


def test_a_stop_that_finds_no_metadata_fails(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path, topics=WANTED, no_such_setting=1)
    (files.root / "state").rename(files.root / "moved")
    (files.root / "state").write_text("no directory")

    assert run_on(files, "stop-deletions").exit_code == 1


def test_a_reason_to_lift_is_refused(tmp_path: Path) -> None:
    result = run_on(a_remote_log(tmp_path), "stop-deletions", "--lift", "--reason", "all is well")

    assert result.exit_code == 1
    assert "leave it out" in result.err


def test_a_person_without_a_name_may_stop_deletions_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nameless() -> str:
        raise OSError("No username set in the environment")

    monkeypatch.setattr(getpass, "getuser", nameless)
    [row] = run_on(a_remote_log(tmp_path), "stop-deletions", "--json").rows

    assert row["said_by"] == f"somebody on {socket.gethostname()}"


def test_failed_deletions_are_shown_until_they_are_made_good(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path, topics={"orders": {**ENABLED, "retention.bytes": 1}})
    assert run_on(files, "failed-deletions", "--json").rows == []
    with files.open() as remote_log:
        plans, _ = remote_log.deletions.plan_expiry(EVERYTHING, files.clock.now)
        assert remote_log.deletions.mark_expired(plans, "expire")[1] == ()
    [marker, *_] = files.objects(".commit")
    delete_many = LocalDirectory.delete_many

    def refused(client: LocalDirectory, names: Sequence[str]) -> Mapping[str, RemoteStorageError]:
        held = {name: RemoteStorageError(f"{name}: is held") for name in names if name.endswith(marker.name)}
        return {**delete_many(client, [name for name in names if name not in held]), **held}

    with mock.patch.object(LocalDirectory, "delete_many", refused):
        expired = run_on(files, "expire", "--json")
    assert (expired.exit_code, expired.document["deleted"]) == (1, 2)
    shown = run_on(files, "failed-deletions", "--json")
    [row] = shown.rows
    assert (shown.exit_code, row["partition"], row["attempts"]) == (1, "orders-0", 1)
    assert row["first_failed_at"] == row["last_failed_at"]
    assert marker.name in row["error"]
    assert run_on(files, "failed-deletions", "--partitions", "1-9", "--json").exit_code == 1

    assert run_on(files, "expire").exit_code == 0
    assert run_on(files, "failed-deletions").exit_code == 0
