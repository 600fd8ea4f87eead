"""What every command shares: its options, and a remote log that is open while it runs."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from tiered_storage.cli_output import Output
from tiered_storage.clock import wall_clock
from tiered_storage.remote_log.remote_log_manager import RemoteLogManager
from tiered_storage.remote_log.remote_log_parts import store_options
from tiered_storage.remote_log.selection import Selection, parse_partitions
from tiered_storage.settings import load_settings

ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", help="The settings file; else TIERED_STORAGE_CONFIG, else include/tiered_storage.yaml."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Write one JSON document instead of a table.")]
TopicsOption = Annotated[str, typer.Option("--topics", help="A regular expression over whole topic names.")]
PartitionsOption = Annotated[
    str | None,
    typer.Option("--partitions", help="Numbers of partitions, such as 0,2-4; left out: all.", show_default=False),
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Only show what would be done.")]


@contextmanager
def opened(config: Path | None, output: Output) -> Iterator[RemoteLogManager]:
    """Open the remote log that the settings describe; what they want to be noticed goes to standard error."""
    settings = load_settings(config)
    for notice in settings.notices:
        output.say(f"note: {notice}")
    with RemoteLogManager.open(settings, wall_clock, store_options(settings)) as remote_log:
        yield remote_log


def selected(topics: str, partitions: str | None) -> Selection:
    """Return what TopicsOption and PartitionsOption mean together. Raises ConfigurationError."""
    return Selection(topics, parse_partitions(partitions))


def lease_owner(command: str) -> str:
    """Return the name under which this process holds leases."""
    return f"tiered-storage {command} {socket.gethostname()}/{os.getpid()}"


def say_stop(remote_log: RemoteLogManager, output: Output) -> None:
    """Say beside a dry run that all deletions are stopped, where they are."""
    stopped = remote_log.deletions.gate.why_stopped()
    if stopped is not None:
        output.say(f"note: nothing of this goes for now: {stopped}")
