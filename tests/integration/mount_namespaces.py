"""Processes that see another folder at a path than this process does, as on another host."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from support.small_disks import ensure_may_mount


def elsewhere(command: Sequence[str | Path], shown: Path, directory: Path) -> list[str]:
    """Return `command` for a mount namespace of its own, where `directory` shows the folder `shown`."""
    mounted = 'mount --bind "$0" "$1" && shift && exec "$@"'
    found = ["unshare", "--mount", "sh", "-c", mounted, *map(str, (shown, directory))]
    ensure_may_mount(subprocess.run([*found, "true"], capture_output=True, text=True, check=False))
    return [*found, *map(str, command)]


def python_elsewhere(program: Path, shown: Path, directory: Path, python: Path = Path(sys.executable)) -> Path:
    """Write `program`: `python` in a mount namespace of its own, where `directory` shows the folder `shown`."""
    program.write_text(f'#!/bin/sh\nexec {shlex.join(elsewhere([python], shown, directory))} "$@"\n')
    program.chmod(0o755)
    return program
