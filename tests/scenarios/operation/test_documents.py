"""Run the commands of the pages that are step-by-step instructions, word by word.

The audits that end a scenario are among the pages' own commands.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from unittest import mock

import pytest

from golden.earlier_versions import copy_generation
from servers.postgres import the_server
from support.command_line import CommandResult, mentions, run
from support.remote_logs import a_remote_log, unsynced
from tiered_storage.clock import wall_clock
from tiered_storage.kafka_log.files.log_directory import read_log_directory
from tiered_storage.remote_log.metadata.sql.store import open_metadata_store
from tiered_storage.settings.settings import load_settings

PROJECT = Path(__file__).parents[3]
_SHELL = re.compile(r"^ *```sh\n(?P<lines>.*?)^ *```", re.DOTALL | re.MULTILINE)
_COMMENT = re.compile(r"\s+#\s.*$|^#.*$")
NOT_HERE = ("make", "kafka-", "git", "export", "cp -a /var/lib/kafka/data")
"""Beginnings of commands that are not run here: other tests run them, or they need another machine."""


def commands_of(document: str) -> Iterator[str]:
    """Yield the lines of the shell scripts in docs/`document`, in order, without comments."""
    text = (PROJECT / "docs" / document).read_text("utf-8")
    for script in _SHELL.finditer(text):
        for line in script["lines"].splitlines():
            if command := _COMMENT.sub("", line).strip():
                yield command


@dataclass
class Shell:
    """A folder in which commands of the documentation run; each of `places` in them becomes a path of this test."""

    folder: Path
    places: Mapping[str, Path | str]
    ran: list[str] = field(default_factory=list)

    def type(self, command: str) -> CommandResult | None:
        """Run one command, and return how it ended; None for what is NOT_HERE."""
        if command.startswith(NOT_HERE):
            return None
        for place, path in self.places.items():
            command = command.replace(place, str(path))
        self.ran.append(command)
        words = shlex.split(command)
        if words[0] == ".venv/bin/tiered-storage":
            here = mock.patch.dict(os.environ, TIERED_STORAGE_CONFIG=str(self.config))
            with here, contextlib.chdir(self.folder), unsynced():
                return run(*words[1:])
        if words[0] == ".venv/bin/python":
            command = shlex.join([sys.executable, *words[1:]])
        done = subprocess.run(["bash", "-c", command], cwd=self.folder, capture_output=True, text=True, check=False)
        return CommandResult(done.returncode, done.stdout, done.stderr)

    def type_all(self, document: str) -> list[CommandResult]:
        """Run all commands of a document, each of which must succeed."""
        results = []
        for command in commands_of(document):
            result = self.type(command)
            if result is not None:
                assert result.exit_code == 0, f"{command}: {result.err}{result.out}"
                results.append(result)
        return results

    @property
    def config(self) -> Path:
        """The settings file, where the documentation has it."""
        return self.folder / "include" / "tiered_storage.yaml"


TWO = {("orders", 0): 3, ("orders", 1): 2}


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """A folder like the project's after `make setup`, with the settings of first-run.md."""
    shutil.move(a_remote_log(tmp_path / "site", TWO).log_directory, tmp_path / "copy")
    places = {
        "/srv/kafka-copy": tmp_path / "copy",
        "/srv/remote": tmp_path / "remote",
        "/srv/restored": tmp_path / "restored",
        "/srv/archive": tmp_path / "archive",
    }
    shell = Shell(tmp_path / "project", places)
    shell.config.parent.mkdir(parents=True)
    [text] = re.findall(r"```yaml\n(.*?)```", (PROJECT / "docs" / "first-run.md").read_text(), re.DOTALL)
    for place, path in places.items():
        text = text.replace(place, str(path))
    shell.config.write_text(text)
    return shell


def test_the_first_run_copies_a_segment_and_deletes_nothing(shell: Shell, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in (tmp_path / "copy").rglob("*") if path.is_file()}

    results = shell.type_all("first-run.md")

    assert "COPY_SEGMENT_FINISHED" in results[shell.ran.index(".venv/bin/tiered-storage segments")].out
    assert len(list((tmp_path / "remote").rglob("*.commit"))) == 1
    assert {path: path.read_bytes() for path in (tmp_path / "copy").rglob("*") if path.is_file()} == before
    # Nothing is in the default place, next to the settings: the page names another.
    assert load_settings(shell.config, environ={}).state_directory == shell.folder / ".state"


def test_leaving_keeps_all_copied_records(shell: Shell, tmp_path: Path) -> None:
    for command in ("topics enable orders", "copy"):
        assert shell.type(f".venv/bin/tiered-storage {command}").exit_code == 0  # type: ignore[union-attr]

    shell.type_all("leaving.md")

    restored = read_log_directory(tmp_path / "restored")
    assert [(each.topic, each.partition) for each in restored.partitions] == [("orders", 0), ("orders", 1)]
    [script] = re.findall(r"```python\n(.*?)```", (PROJECT / "docs" / "leaving.md").read_text(), re.DOTALL)
    words = [sys.executable, "-c", script, str(tmp_path / "remote"), str(tmp_path / "segments")]
    subprocess.run(words, check=True, capture_output=True)
    brought = sorted(path for path in (tmp_path / "segments").rglob("*") if path.is_file())
    assert len(brought) == 5
    for path in brought:
        assert path.read_bytes() == (tmp_path / "copy" / path.relative_to(tmp_path / "segments")).read_bytes()
    again = subprocess.run(words, check=False, capture_output=True, text=True)
    assert mentions(again.stderr, "another segment", "offset")


def test_metadata_move_to_a_server_as_the_page_says(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    statements, _ = re.findall(r"```sql\n(.*?)```", (PROJECT / "docs" / "metadata.md").read_text(), re.DOTALL)
    names = {"remote_log": "remote_log_of_the_page", "metadata": "metadata_of_the_page", "…": "hush"}
    for statement in filter(str.strip, statements.split(";")):
        the_server().execute(re.sub(r"\b(remote_log|metadata)\b|…", lambda found: names[found[0]], statement))
    url = f"postgresql://remote_log_of_the_page@127.0.0.1:{the_server().port}/metadata_of_the_page"
    monkeypatch.setenv("PGPASSWORD", "hush")
    for command in ("topics enable orders", "copy"):
        assert shell.type(f".venv/bin/tiered-storage {command}").exit_code == 0  # type: ignore[union-attr]

    page = replace(shell, places={**shell.places, "postgresql://remote_log@db.example.com:5432/metadata": url})
    page.type_all("metadata.md")

    with shell.config.open("a") as file:
        file.write(f"rlmm.config.url: {url}\n")
    assert shell.type(".venv/bin/tiered-storage segments").exit_code == 0  # type: ignore[union-attr]


def test_an_upgrade_keeps_a_backup_and_leads_back(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    # The site is of 2023: only NTP, or a person, can prove how long it stood still.
    monkeypatch.setattr("tiered_storage.clock.is_synchronised_by_ntp", lambda: True)
    root = copy_generation(1, shell.folder / "site")
    shutil.move(root / "state", shell.folder / ".state")
    shutil.copytree(root / "logs", shell.folder / "logs")
    settings = (root / "settings.yaml").read_text()
    shell.config.write_text(settings.replace("state.directory: state", "state.directory: .state"))

    backup = shell.folder / "metadata-backup.db"
    ran = shell.type_all("upgrading.md")

    assert len(ran) > 5
    assert (shell.folder / ".state" / "later" / "remote_log_metadata.db").exists()
    for path in (backup, shell.folder / ".state" / "remote_log_metadata.db"):
        with open_metadata_store(f"sqlite:///{path}", wall_clock) as store:
            assert len(list(store.segments.list_partitions())) == 3


@pytest.mark.parametrize("document", ["../README.md", "operations.md"])
def test_the_short_forms_of_commands_work(shell: Shell, document: str) -> None:
    assert len(shell.type_all(document)) >= 2
