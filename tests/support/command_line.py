"""Commands, run in this process."""

from __future__ import annotations

import io
import json
import re
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache
from typing import Any
from unittest import mock

import typer.main

from support.clocks import put_at
from support.remote_logs import RemoteLogFiles
from tiered_storage import clock
from tiered_storage.cli import main as cli
from tiered_storage.remote_log.storage.clients.local_directory import LocalDirectory

_built_once = cache(typer.main.get_command)
"""A process of its own builds all of its commands, from their signatures, for the one that it runs."""


@dataclass(frozen=True)
class CommandResult:
    """How a command ended, and what it wrote to its two outputs."""

    exit_code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """The one JSON document on its standard output."""
        return json.loads(self.out)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows of that document."""
        rows: list[dict[str, Any]] = self.document["rows"]
        return rows


def run(*arguments: object) -> CommandResult:
    """Run `tiered-storage` with these arguments."""
    out, err = io.StringIO(), io.StringIO()
    argv = ["tiered-storage", *map(str, arguments)]
    with (
        mock.patch.object(sys, "argv", argv),
        mock.patch.object(typer.main, "get_command", _built_once),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        try:
            cli.main()
        except SystemExit as ended:
            code = ended.code
        else:
            code = 0
    return CommandResult(code if isinstance(code, int) else int(code is not None), out.getvalue(), err.getvalue())


def run_on(files: RemoteLogFiles, *arguments: object) -> CommandResult:
    """Run it with the settings of `files`, by their clock."""
    with (
        mock.patch.object(clock, "time", files.clock.time_module()),
        mock.patch.object(clock, "is_synchronised_by_ntp", lambda: files.clock.is_synchronised),
        mock.patch.object(LocalDirectory, "put", put_at(files.clock)),
    ):
        return run(*arguments, "--config", files.config)


def mentions(message: str | None, *words: object) -> bool:
    """Whether a message has all of `words` (names, numbers, commands), in any sentence.

    An int is no part of a longer number.
    """
    return message is not None and all(
        re.search(rf"(?<!\d){word}(?!\d)", message) if isinstance(word, int) else str(word) in message for word in words
    )
