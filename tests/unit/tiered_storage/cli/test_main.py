from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest
from typer.core import TyperGroup
from typer.main import get_command

from support.command_line import run, run_on
from support.remote_logs import BATCH_BYTES, ENABLED, SEGMENT_BYTES, a_copied_remote_log, a_remote_log
from tiered_storage import __version__
from tiered_storage.cli import main as cli
from tiered_storage.kafka_log.files.directory_lock import DirectoryLock

COMMANDS = ["plan", "copy", "retain", "expire", "segments", "read", "audit", "dump", "topics", "version"]


def test_help_names_every_command() -> None:
    result = run("--help")

    assert result.exit_code == 0
    assert [command for command in COMMANDS if command not in result.out] == []


@pytest.mark.parametrize("command", [*COMMANDS, "topics list", "topics enable", "topics set"])
def test_every_command_explains_itself(command: str) -> None:
    result = run(*command.split(), "--help")

    assert result.exit_code == 0
    assert "Usage: " in result.out


def test_the_help_of_all_commands_says_of_each_what_its_own_help_begins_with() -> None:
    group = get_command(cli.app)
    assert isinstance(group, TyperGroup)
    lazy = [command for command in group.commands.values() if isinstance(command, cli.LazyCommand)]

    assert len(lazy) >= 18
    for command in lazy:
        first_paragraph = (command.loaded.help or "").split("\n\n", maxsplit=1)[0]
        assert command.help == " ".join(first_paragraph.split()), command.name


@pytest.mark.parametrize("asked", ["version", "--version"])
def test_the_version_is_shown(asked: str) -> None:
    assert run(asked).out == f"{__version__}\n"


@pytest.mark.parametrize("command", ["", "plan", "topics", "topics enable"])
def test_help_has_a_short_name_everywhere(command: str) -> None:
    short, whole = run(*command.split(), "-h"), run(*command.split(), "--help")

    assert (short.exit_code, short.out) == (0, whole.out)
    assert "Usage: " in short.out


def test_an_unknown_option_is_refused() -> None:
    result = run("plan", "--frobnicate")

    assert result.exit_code == 2
    assert "--frobnicate" in result.err


def test_an_error_is_one_line_on_standard_error(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)
    with DirectoryLock.acquire(files.log_directory):
        result = run_on(files, "plan")

    assert result.exit_code == 1
    assert result.out == ""
    assert result.err.startswith(f"error: {files.log_directory} is in use")
    assert result.err.count("\n") == 1
    assert "Traceback" not in result.err


def test_for_machines_it_is_a_document_on_standard_output_too(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)
    with DirectoryLock.acquire(files.log_directory):
        result = run_on(files, "plan", "--json")

    assert result.exit_code == 1
    assert result.document == {
        "error": "LogDirectoryLockedError",
        "message": result.err.removeprefix("error: ").removesuffix("\n"),
        "retriable": True,
    }


def test_an_operating_system_error_is_one_line_that_names_the_file(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    backup = tmp_path / "backup.db"
    assert run_on(files, "metadata", "backup", backup).exit_code == 0
    (tmp_path / "file").touch()
    files.properties["rlmm.config.url"] = f"sqlite:///{tmp_path}/file/metadata.db"

    result = run_on(files, "metadata", "restore", backup, "--json")

    assert result.exit_code == 1
    assert result.err.startswith(f"error: {tmp_path}/file: ")
    assert result.err.count("\n") == 1
    assert result.document["message"] in result.err


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (
            OSError(errno.ENOSPC, "No space left on device"),
            "the system does not name: No space left on device (ENOSPC)",
        ),
        (PermissionError(errno.EACCES, "Permission denied", b"/logs/\xff"), "/logs/\udcff: Permission denied (EACCES)"),
        (OSError(errno.EIO, "Input/output error", "/a", None, "/b"), "/a to /b: Input/output error (EIO)"),
        (TimeoutError("timed\nout"), "timed out (TimeoutError)"),
    ],
)
def test_system_errors_are_reported_with_both_file_names_or_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError, expected: str
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("tiered_storage.cli.metadata.restore_metadata", fail)

    result = run_on(a_remote_log(tmp_path), "metadata", "restore", tmp_path / "backup.db")

    assert (result.exit_code, result.out) == (1, "")
    assert expected in result.err
    assert result.err.count("\n") == 1


@pytest.mark.parametrize(
    ("content", "expected"),
    [("log.dirz: /logs\n", "log.dirz"), ("log.dirs: [\n", "line"), (None, "No such file")],
)
def test_settings_that_cannot_be_used_are_an_error(tmp_path: Path, content: str | None, expected: str) -> None:
    path = tmp_path / "settings.yaml"
    if content is not None:
        path.write_text(content)

    result = run("plan", "--config", path)

    assert result.exit_code == 1
    assert str(path) in result.err
    assert expected in result.err


def test_a_regular_expression_that_is_invalid_is_an_error(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    for command in ("plan", "copy", "retain", "expire", "segments", "audit"):
        result = run_on(files, command, "--topics", "(")
        assert (result.exit_code, "not a regular expression" in result.err) == (1, True), command


def test_notices_about_settings_go_to_standard_error(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    files.properties["remote.log.retention.minutes"] = 5
    files.properties["log.retention.ms"] = 604_800_000

    result = run_on(files, "segments", "--json")

    assert result.exit_code == 0
    assert "note: " in result.err
    assert "remote.log.retention.minutes" in result.err
    assert len(result.rows) == 3


def test_a_log_is_copied_trimmed_expired_and_read_by_commands(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)
    files.properties["topics"] = {
        "orders": {**ENABLED, "local.retention.bytes": 0, "retention.bytes": 2 * SEGMENT_BYTES + BATCH_BYTES}
    }

    for command in ("plan", "copy", "retain", "expire", "segments", "audit"):
        assert run_on(files, command).exit_code == 0, command
    lines = run_on(files, "read", "orders", 0, "--max-records", 100, "--json").out.splitlines()

    assert files.local_starts() == [30]
    assert [json.loads(line)["offset"] for line in lines] == list(range(10, 35))
