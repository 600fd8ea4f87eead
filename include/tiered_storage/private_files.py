"""Folders and files that only their owner can read: all local state holds records, keys or metadata.

A missing folder is created for this user alone. In an existing folder, nothing gets wider rights than the folder has:
everything in a private folder is private, and a folder that a site shares on purpose, such as a mounted file system,
keeps the rights that its admin gave it.
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
"""The default names of our files in the state folder."""

_OF_OTHERS = 0o007
_OF_GROUP_AND_OTHERS = 0o077


def make_private_folder(folder: Path) -> None:
    """Create `folder`, and missing folders above it, for this user alone; leave existing ones alone. Raises OSError."""
    if folder.is_dir():
        return
    make_private_folder(folder.parent)
    folder.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)


def mode_in(folder: Path) -> int:
    """Return the rights for a folder created in `folder`: at most those of `folder`. Raises OSError.

    A file gets the same, without the right to execute.
    """
    return folder.stat().st_mode & 0o777


def open_private(path: Path) -> IO[bytes]:
    """Create or empty `path`, readable by this user alone, and open it for writing. Raises OSError."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, PRIVATE_FILE)
    os.fchmod(descriptor, PRIVATE_FILE)
    return os.fdopen(descriptor, "wb")


def narrow(state: Path) -> None:
    """Remove all rights of others to the state folder, and to our files directly in it.

    A folder that others cannot use stays as it is: a group that an admin let in keeps its rights. So does a folder that
    also holds other files, such as /srv, and whatever this user may not change; `doctor` reports those.
    """
    with suppress(OSError):
        holds_only_ours = all(_OURS.fullmatch(each.name) for each in state.iterdir())
        for path in list(wide(state)):
            if holds_only_ours if path == state else _OURS.fullmatch(path.name):
                path.chmod(stat.S_IMODE(path.stat().st_mode) & ~_OF_GROUP_AND_OTHERS)


def wide(folder: Path) -> Iterator[Path]:
    """Yield the entries of `folder`, and then the folder itself, that others on this machine can use.

    Nothing if the folder is missing or closed to others: then everything in it is closed to them.
    """
    with suppress(OSError):
        if not folder.stat().st_mode & _OF_OTHERS:
            return
        # The rights of a link have no meaning, and its target is foreign.
        yield from (each for each in sorted(folder.iterdir()) if not each.is_symlink() and _is_wide(each))
        yield folder


def _is_wide(path: Path) -> bool:
    with suppress(FileNotFoundError):
        return bool(path.stat().st_mode & _OF_OTHERS)
    return False
