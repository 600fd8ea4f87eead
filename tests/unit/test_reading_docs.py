"""The examples of docs/reading.md print the page's output, on the small remote log of the tests."""

from __future__ import annotations

import re
import runpy
import shlex
import sys
from pathlib import Path

import pytest

from support.command_line import run
from support.remote_logs import ORDERS_0, RemoteLogFiles, a_copied_remote_log, local_log
from tiered_storage.remote_log.source.log_directory_trim import LogDirectoryTrim

PAGE = (Path(__file__).parents[2] / "docs" / "reading.md").read_text("utf-8")
COMMANDS = re.findall(r"^```\n\$ tiered-storage (.*)\n((?:.*\n)*?)```", PAGE, re.MULTILINE)
SCRIPTS = re.findall(
    r"^```python\n((?:.*\n)*?)```\n\n```\n\$ \.venv/bin/python (\S+) \S+\n((?:.*\n)*?)```", PAGE, re.MULTILINE
)


@pytest.fixture
def files(tmp_path: Path) -> RemoteLogFiles:
    """orders-0 with offsets 0 to 34, of which 0 to 29 are remote, and 20 and above local."""
    files = a_copied_remote_log(tmp_path)
    with files.open() as remote_log:
        LogDirectoryTrim().trim(ORDERS_0, local_log(remote_log).segments[:2], 20)
    return files


def lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.splitlines() if line.strip()]


def test_there_are_examples() -> None:
    assert (len(COMMANDS), len(SCRIPTS)) == (2, 2)


@pytest.mark.parametrize(("command", "printed"), COMMANDS, ids=lambda each: each.split(" ")[0][:10])
def test_commands_print_what_is_said(files: RemoteLogFiles, command: str, printed: str) -> None:
    result = run(*shlex.split(command), "--config", files.config)

    assert (result.exit_code, result.err) == (0, "")
    assert lines(result.out) == lines(printed)


@pytest.mark.parametrize(("script", "name", "printed"), SCRIPTS, ids=lambda each: each[:15])
def test_scripts_print_what_is_said(
    files: RemoteLogFiles,
    script: str,
    name: str,
    printed: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = files.root / name
    path.write_text(script)
    monkeypatch.setattr(sys, "argv", [name, str(files.config)])

    runpy.run_path(str(path), run_name="__main__")

    assert lines(capsys.readouterr().out) == lines(printed)
