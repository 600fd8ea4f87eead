"""The file of a remote log's metadata, for tests that lose it, or put an older one in its place."""

from __future__ import annotations

from pathlib import Path

from support.remote_logs import RemoteLogFiles, be_the_original


def database_of(files: RemoteLogFiles) -> Path:
    """Return where the metadata are."""
    return files.root / "state" / "remote_log_metadata.db"


def remove_metadata(files: RemoteLogFiles) -> None:
    """Remove them, with their write-ahead log and their reserve."""
    for path in database_of(files).parent.glob("remote_log_metadata.db*"):
        path.unlink()


def put_back(files: RemoteLogFiles, metadata: bytes) -> None:
    """Restore an old database as a snapshot of a disk does: it counts as the original."""
    remove_metadata(files)
    database_of(files).write_bytes(metadata)
    be_the_original(database_of(files))
