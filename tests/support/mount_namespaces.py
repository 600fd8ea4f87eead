"""Processes that see another folder at a path than this process does, as on another host."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest


def python_elsewhere(program: Path, shown: Path, directory: Path, python: Path = Path(sys.executable)) -> Path:
    """Write `program`: `python` in a mount namespace of its own, where `directory` shows the folder `shown`."""
    inside = (
        f'mount --bind {shlex.quote(str(shown))} {shlex.quote(str(directory))} && exec {shlex.quote(str(python))} "$@"'
    )
    program.write_text(f'#!/bin/sh\nexec unshare --mount sh -c {shlex.quote(inside)} sh "$@"\n')
    program.chmod(0o755)
    done = subprocess.run([program, "-c", ""], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.fail(
            f"this test takes the right to mount ({done.stderr.strip()}): run the tests as root, or under `unshare "
            "--map-root-user --mount`"
        )
    return program
