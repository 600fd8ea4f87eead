"""`.kafka_cleanshutdown`: the mark that a broker leaves in a log directory when it stops cleanly.

    {"version":0,"brokerEpoch":164}

A broker writes the file once every log is on disk, and removes it when it starts: with it, no log needs recovery.
Before release 3.7 the file was empty. The broker epoch is that of its registration with the controller, -1 if unknown.

Here it is removed once everything is open and before anything is written: a log that was refused because of damage is
refused the next time too, and does not pass for one torn by a crash. If a log must be truncated or emptied to be
opened, it is removed just before that: a process killed then must not leave a false mark.

Source: KIP-966; released Kafka.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tiered_storage.errors import CorruptIndexError
from tiered_storage.kafka_log.files.directory_lock import DirectoryLock
from tiered_storage.kafka_log.files.small_files import read_small_file, sync_directory

CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
VERSION = 0
UNKNOWN_BROKER_EPOCH = -1
MAX_BYTES = 4096


def read_clean_shutdown(path: Path) -> int:
    """Return the broker epoch in the mark `path`, UNKNOWN_BROKER_EPOCH for an empty file.

    Raises CorruptIndexError if the file is anything else, or of another version.
    """
    content = read_small_file(path, MAX_BYTES)
    if not content:
        return UNKNOWN_BROKER_EPOCH
    try:
        mark = json.loads(content)
    except (ValueError, RecursionError) as error:
        position = error.pos if isinstance(error, json.JSONDecodeError) else 0
        raise CorruptIndexError(path, position, "this is not a JSON document") from error
    version = mark.get("version") if isinstance(mark, dict) else None
    if version != VERSION:
        shown = f"version {version}" if type(version) is int else "its version"
        raise CorruptIndexError(path, 0, f"{shown} is unknown: {VERSION} was expected")
    broker_epoch = mark.get("brokerEpoch", UNKNOWN_BROKER_EPOCH)
    if type(broker_epoch) is not int:
        raise CorruptIndexError(path, 0, "brokerEpoch is not a number")
    return broker_epoch


def remove_clean_shutdown(log_directory: Path) -> None:
    """Remove the mark before anything is written: if this process is killed then, the next one must recover."""
    if (log_directory / CLEAN_SHUTDOWN).is_file():
        (log_directory / CLEAN_SHUTDOWN).unlink()
        sync_directory(log_directory)


@contextmanager
def locked_for_writing(log_directory: Path, held: DirectoryLock | None) -> Iterator[DirectoryLock | None]:
    """Lock `log_directory`, unless it is `held` already, and release the lock if the block fails."""
    own = DirectoryLock.acquire(log_directory) if held is None else None
    try:
        yield own
    except BaseException:
        if own is not None:
            own.release()
        raise
