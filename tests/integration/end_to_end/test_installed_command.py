"""`tiered-storage` in processes of its own: what it imports, and how it begins and ends."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.remote_logs import a_copied_remote_log, a_remote_log

WHAT_TAKES_LONG = {"airflow", "alembic", "awscrt", "confluent_kafka", "numba", "numpy", "obstore", "pyarrow"}
PROGRAM = Path(sys.executable).with_name("tiered-storage")


def imported_by(*arguments: object) -> set[str]:
    """Return the packages that the installed command imports for `arguments`."""
    program = (
        "import atexit, sys; from tiered_storage.cli.main import main\n"
        "atexit.register(lambda: print(*{name.partition('.')[0] for name in sys.modules}, file=sys.stderr))\n"
        f"sys.argv[1:] = {list(map(str, arguments))!r}; main()"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(ended.stderr.split())


@pytest.mark.parametrize("asked", ["--version", "--help"])
def test_commands_do_not_import_slow_modules_that_they_do_not_need(asked: str) -> None:
    imported = imported_by(asked)

    assert "typer" in imported
    assert imported & {*WHAT_TAKES_LONG, "pydantic", "sqlalchemy"} == set()


@pytest.mark.parametrize("command", ["segments", "failed-deletions", "topics list"])
def test_a_command_that_looks_into_no_log_imports_nothing_that_does(tmp_path: Path, command: str) -> None:
    imported = imported_by(*command.split(), "--config", a_copied_remote_log(tmp_path).config)

    assert "sqlalchemy" in imported
    assert imported & WHAT_TAKES_LONG == set()


def test_an_output_that_is_full_is_one_line(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)

    with Path("/dev/full").open("w") as full:
        command: list[str | Path] = [PROGRAM, "segments", "--config", files.config]
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)

    assert ended.returncode != 0
    assert os.strerror(errno.ENOSPC) in ended.stderr
    assert "Traceback" not in ended.stderr


def test_the_installed_command_runs_with_the_settings_that_the_environment_names(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)

    ended = subprocess.run(
        [PROGRAM, "copy", "--json"],
        env={**os.environ, "TIERED_STORAGE_CONFIG": str(files.config)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert (ended.returncode, ended.stderr) == (0, "")
    assert [row["start_offset"] for row in json.loads(ended.stdout)["rows"]] == [0, 10, 20]
