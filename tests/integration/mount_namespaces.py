"""Processes that see another folder at a path than this process does, as on another host."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from support.small_disks import ensure_may_mount


def elsewhere(command: Sequence[str | Path], shown: Path, directory: Path, *, is_read_only: bool = False) -> list[str]:
    """Return `command` for a mount namespace of its own, where `directory` shows the folder `shown`."""
    mounted = f'mount --bind{" -o ro" if is_read_only else ""} "$0" "$1" && shift && exec "$@"'
    found = ["unshare", "--mount", "sh", "-c", mounted, *map(str, (shown, directory))]
    ensure_may_mount(subprocess.run([*found, "true"], capture_output=True, text=True, check=False))
    return [*found, *map(str, command)]


def python_elsewhere(
    program: Path,
    shown: Path,
    directory: Path,
    python: Path = Path(sys.executable),
    *,
    is_read_only: bool = False,
) -> Path:
    """Write `program`: `python` in a mount namespace of its own, where `directory` shows the folder `shown`."""
    command = elsewhere([python], shown, directory, is_read_only=is_read_only)
    program.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
    program.chmod(0o755)
    return program
