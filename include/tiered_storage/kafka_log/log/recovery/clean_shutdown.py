"""`.kafka_cleanshutdown`: the mark that a broker leaves in a log directory when it stops in order.

    {"version":0,"brokerEpoch":164}

It writes the file when every log is on the disk, and removes it when it starts: with it, nothing needs recovery. Before
release 3.7 the file was empty. The broker epoch is the one of its registration with the controller, -1 where unknown.

Here it is removed when everything is open, and nothing has been written yet: a log that was refused because of damage
is refused the next time, too, and does not pass for one that a crash has torn. Only where a log has to be cut or
emptied to be opened it goes right before: whoever is killed then must not leave one that is untrue.

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
    """Return the broker epoch that the mark `path` holds, UNKNOWN_BROKER_EPOCH for an empty one.

    Raises CorruptIndexError if the file is anything else, or of another version.
    """
    content = read_small_file(path, MAX_BYTES)
    if not content:
        return UNKNOWN_BROKER_EPOCH
    try:
        mark = json.loads(content)
    except (ValueError, RecursionError) as error:
        position = error.pos if isinstance(error, json.JSONDecodeError) else 0
        raise CorruptIndexError(path, position, "this is no JSON document") from error
    version = mark.get("version") if isinstance(mark, dict) else None
    if version != VERSION:
        shown = f"version {version}" if type(version) is int else "its version"
        raise CorruptIndexError(path, 0, f"{shown} is unknown: {VERSION} was expected")
    broker_epoch = mark.get("brokerEpoch", UNKNOWN_BROKER_EPOCH)
    if type(broker_epoch) is not int:
        raise CorruptIndexError(path, 0, "brokerEpoch is no number")
    return broker_epoch


def remove_clean_shutdown(log_directory: Path) -> None:
    """Take the mark away before anything is written: should this process be killed then, the next one must recover."""
    if (log_directory / CLEAN_SHUTDOWN).is_file():
        (log_directory / CLEAN_SHUTDOWN).unlink()
        sync_directory(log_directory)


@contextmanager
def locked_for_writing(log_directory: Path, held: DirectoryLock | None) -> Iterator[DirectoryLock | None]:
    """Take the lock of `log_directory`, unless it is `held` already, and give it back where the block fails."""
    own = DirectoryLock.acquire(log_directory) if held is None else None
    try:
        yield own
    except BaseException:
        if own is not None:
            own.release()
        raise
