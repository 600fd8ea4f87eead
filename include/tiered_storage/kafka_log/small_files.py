"""Kafka's small files, as checkpoints and indexes: read whole but within a bound, and replaced all or nothing.

A file is replaced as a broker does it: a temporary file beside it (`{name}.tmp`), fsync, rename, fsync of the
directory. After a crash there is the old file or the new one, never a part of one.
"""

from __future__ import annotations

import os
from pathlib import Path

from tiered_storage.errors import CorruptIndexError


def read_small_file(path: Path, max_bytes: int) -> bytes:
    """Return all of `path`.

    Raises CorruptIndexError where it holds more than `max_bytes`: no such file of Kafka's does.
    """
    with path.open("rb") as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise CorruptIndexError(path, max_bytes, f"the file goes on past {max_bytes} bytes, the most that is read")
    return content


def replace_file(path: Path, content: bytes) -> None:
    """Make `content` the whole content of `path`, durably and all or nothing."""
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Make the names in `directory` durable: files that were created, renamed or removed there."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
