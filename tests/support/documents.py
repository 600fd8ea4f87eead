"""What the documentation says to type, and a place where it can be typed."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

from support.command_line import CommandResult, run
from support.remote_logs import unsynced

PROJECT = Path(__file__).parents[2]
_SHELL = re.compile(r"^ *```sh\n(?P<lines>.*?)^ *```", re.DOTALL | re.MULTILINE)
_COMMENT = re.compile(r"\s+#\s.*$|^#.*$")
NOT_HERE = ("make", "kafka-", "git", "export", "cp -a /var/lib/kafka/data")
"""What begins so is not typed by tests: other tests run it, or it needs another machine."""


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
    places: Mapping[str, Path]
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
