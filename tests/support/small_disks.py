"""File systems of their own, so small that a test can fill them: a tmpfs each, which takes the right to mount."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

_FILLER = "filler"


@contextmanager
def small_disk(directory: Path, size: int = 16 << 20, options: str = "") -> Iterator[Path]:
    """Mount an empty file system of `size` bytes at `directory`, which is made; unmount it at the end."""
    directory.mkdir(parents=True, exist_ok=True)
    with _mounted(["-t", "tmpfs", "-o", f"size={size}{options}", "tmpfs"], directory):
        yield directory


@contextmanager
def bind_mount(real: Path, directory: Path) -> Iterator[None]:
    """Show the folder `real` at `directory` too, which is made."""
    directory.mkdir()
    with _mounted(["--bind", str(real)], directory):
        yield


def ensure_may_mount(tried: subprocess.CompletedProcess[str]) -> None:
    """Fail the test, and say how to run it, if a program that mounts was not allowed to."""
    if tried.returncode:
        pytest.fail(
            f"this test takes the right to mount ({tried.stderr.strip()}): run the tests as root, or under `unshare "
            "--map-root-user --mount`"
        )


@contextmanager
def _mounted(what: list[str], directory: Path) -> Iterator[None]:
    done = subprocess.run(["mount", *what, str(directory)], capture_output=True, text=True, check=False)
    ensure_may_mount(done)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)


def fill(directory: Path) -> None:
    """Take every byte that the file system of `directory` has left."""
    with (directory / _FILLER).open("ab", buffering=0) as file:
        for size in (1 << 20, 4096, 1):
            with suppress(OSError):
                while True:
                    file.write(bytes(size))
    assert free(directory) == 0


def make_room(directory: Path) -> None:
    """Give back what `fill` took."""
    (directory / _FILLER).unlink(missing_ok=True)


def free(directory: Path) -> int:
    """Return how many bytes are free."""
    room = os.statvfs(directory)
    return room.f_bavail * room.f_frsize
