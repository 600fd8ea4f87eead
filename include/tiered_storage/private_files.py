"""Folders and files that only their owner reads: all of our own state, which holds records, keys and metadata.

A folder that was missing is made for this user alone. Below one that is there nothing is made wider than the folder it
lies in: so below a private folder all is private, and a folder that a site shares on purpose, as one of a mounted file
system, keeps the rights that its admin gave it.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO

PRIVATE_FOLDER = 0o700
PRIVATE_FILE = 0o600

_OURS = re.compile(r"remote|work|exports|restores|chunk-cache|airflow|java|demo|setup\.lock|remote_log_metadata\.db.*")
"""The names of what we put into the folder of our state, unless settings say otherwise."""

_OF_OTHERS = 0o007
_OF_GROUP_AND_OTHERS = 0o077


def make_private_folder(folder: Path) -> None:
    """Make `folder`, and what lies above it, for this user alone. What is there stays as it is. Raises OSError."""
    if folder.is_dir():
        return
    make_private_folder(folder.parent)
    folder.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)


def mode_in(folder: Path) -> int:
    """Return the rights of a folder that is made in `folder`: none that `folder` does not give. Raises OSError.

    A file is made with the same, but that nobody may execute it.
    """
    return folder.stat().st_mode & 0o777


def open_private(path: Path) -> IO[bytes]:
    """Make `path` empty, and for this user alone, and open it to be written. Raises OSError."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, PRIVATE_FILE)
    os.fchmod(descriptor, PRIVATE_FILE)
    return os.fdopen(descriptor, "wb")


def narrow(state: Path) -> None:
    """Take from others all rights to the folder of our state, and to what of ours lies in it directly.

    A folder that others may not use stays as it is: a group that an admin let in keeps its rights. So does a folder in
    which anything lies that is not ours, as /srv, and what this user may not change; `doctor` names those.
    """
    with suppress(OSError):
        holds_only_ours = all(_OURS.fullmatch(each.name) for each in state.iterdir())
        for path in list(wide(state)):
            if holds_only_ours if path == state else _OURS.fullmatch(path.name):
                path.chmod(stat.S_IMODE(path.stat().st_mode) & ~_OF_GROUP_AND_OTHERS)


def wide(folder: Path) -> Iterator[Path]:
    """Yield what lies in `folder` directly, and then itself, as far as anybody on this machine may use it.

    Nothing where the folder is closed to others, or missing: then all in it is out of their reach.
    """
    with suppress(OSError):
        if not folder.stat().st_mode & _OF_OTHERS:
            return
        # The rights of a link mean nothing, and what it leads to is somebody else's to narrow.
        yield from (each for each in sorted(folder.iterdir()) if not each.is_symlink() and _is_wide(each))
        yield folder


def _is_wide(path: Path) -> bool:
    with suppress(FileNotFoundError):
        return bool(path.stat().st_mode & _OF_OTHERS)
    return False
