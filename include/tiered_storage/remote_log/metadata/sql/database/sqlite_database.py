"""The embedded database: one SQLite file, on a local disk, for the processes of one host.

It is in WAL mode: readers never wait. A write transaction begins with BEGIN IMMEDIATE, so that it waits for its turn
(the busy timeout) instead of failing halfway, and its commit is durable on return (synchronous=FULL).

A new file is built aside and linked to its name, so that of two processes one wins, and none sees an incomplete store.
An existing file is never replaced, whatever is wrong with it.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import sqlite3
import struct
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import Connection, Engine, Executable, Row, create_engine, event, exc
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.pool import ConnectionPoolEntry, QueuePool

from tiered_storage.disk_space import DiskReserve, disk_of
from tiered_storage.errors import (
    ConfigurationError,
    MetadataCorruptError,
    MetadataUnavailableError,
    RemoteMetadataError,
)
from tiered_storage.private_files import PRIVATE_FILE, make_private_folder
from tiered_storage.remote_log.metadata.sql.database.engine import Database
from tiered_storage.remote_log.metadata.sql.database.schema_migrations import migrated_since

RESTORE = (
    "restore the file from its backup; if there is none, 'tiered-storage rebuild-metadata' rebuilds it from the "
    "object store, so do not change that"
)

# statx(2): Python's os.stat does not return a file's time of birth.
_AT_FDCWD, _STATX_BTIME, _STATX_BYTES = -100, 0x800, 256

MACHINE_ID = Path("/etc/machine-id")
"""The file with the machine's id (machine-id(5)); many containers have none."""

_ON_MACHINE = " on machine "

SMALLEST_STORE = 4096
"""The minimum size in bytes: even an empty store has more, in its many tables."""

SYNCHRONOUS = "FULL"
"""A commit returns once it is on the disk. Tests that lose no machine need not wait for theirs."""

_ADVICE: dict[int, tuple[type[RemoteMetadataError], str]] = {
    sqlite3.SQLITE_BUSY: (
        MetadataUnavailableError,
        "another process held its lock for {waited} ms: try again; if it stays locked, look for a run that hangs",
    ),
    sqlite3.SQLITE_CANTOPEN: (MetadataUnavailableError, "look whether the file is there and this user may write it"),
    sqlite3.SQLITE_IOERR: (MetadataUnavailableError, "{disk}; free space on it or repair it, then try again"),
    sqlite3.SQLITE_FULL: (
        MetadataUnavailableError,
        "nothing was written: {disk}; free some space on it, then try again ('Full disks' in docs/operations.md)",
    ),
    sqlite3.SQLITE_READONLY: (RemoteMetadataError, "let this user write the file and its directory"),
    sqlite3.SQLITE_CORRUPT: (MetadataCorruptError, RESTORE),
    sqlite3.SQLITE_NOTADB: (MetadataCorruptError, RESTORE),
}

_SHARED_MEMORY = 32 << 10
"""Bytes: what SQLite writes beside the file before the first read, if no process has it open."""


class _NothingWritten(Exception):  # noqa: N818 -- no error: it rolls a transaction back
    """Rolls back a trial transaction that succeeded."""


class SqliteDatabase(Database):
    """The SQLite file at `path`, which must exist. A write waits `busy_timeout_ms` for its turn."""

    BEGIN_TO_WRITE = "BEGIN IMMEDIATE"

    def __init__(self, path: Path, busy_timeout_ms: int) -> None:
        self._reserve = DiskReserve(path.with_name(f"{path.name}-reserve"))
        self._may_spend = False
        super().__init__(_engine(path, busy_timeout_ms, self._reserve), str(path))
        self._path = path
        self._file = _file_number(path)
        self._busy_timeout_ms = busy_timeout_ms

    def prepare(self) -> None:
        """Put the file into WAL mode: a restored backup may have lost it. Reserve room beside it."""
        self.use_write_ahead_log()
        self._reserve.make()

    def use_write_ahead_log(self) -> None:
        """Put the file into WAL mode for good, unless it is in it already."""
        with self._explained(), self._engine.connect() as connection:
            connection.exec_driver_sql("PRAGMA journal_mode=WAL")

    def spend_reserve(self) -> None:
        """Do as Database.spend_reserve. The reserve is allocated again when the database closes."""
        self._may_spend = True

    def first(self, statement: Executable, values: Mapping[str, Any]) -> Row[Any] | None:
        """As Database.first; without a transaction, which would take half as long again."""
        self.check_place()
        with self._explained(), self._engine.connect() as connection:
            return connection.execute(statement, values).first()

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """As Database.writing."""
        if self._may_spend:
            self._reserve.spend_where_full(self._reserve.size)
        with super().writing() as connection:
            yield connection

    def close(self) -> None:
        """As Database.close."""
        super().close()
        self._reserve.take_back()

    def check_integrity(self) -> None:
        """Let SQLite check every page; takes about half a second for 100,000 segments."""
        with self.reading() as connection:
            findings = connection.exec_driver_sql("PRAGMA integrity_check(3)").scalars().all()
        if findings != ["ok"]:
            raise MetadataCorruptError(f"{self.where}: is damaged ({'; '.join(map(str, findings))}): {RESTORE}")

    def check_writable(self) -> None:
        """Raise what a write would raise for missing rights or a lock; wait for other writers, and write nothing."""
        with suppress(_NothingWritten), self.writing() as connection:
            connection.exec_driver_sql("CREATE TABLE written_by_nobody (number INTEGER)")
            raise _NothingWritten

    def keep_copy(self, suffix: str) -> str:
        """Write the file `{name}.{suffix}`, with the rights of the store's own; see Database.keep_copy."""
        target = self._path.with_name(f"{self._path.name}.{suffix}")
        self._copy(target, lambda copied: copied.replace(target))
        return str(target)

    def copy_to(self, target: Path) -> None:
        """Write the file `target`, with the rights of the store's own; see Database.copy_to."""
        self._copy(target, target.hardlink_to)

    def _copy(self, target: Path, give_name: Callable[[Path], object]) -> None:
        with writing_copy(target), tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as folder:
            copied = Path(folder, target.name)
            # Not compared with the source: others write it meanwhile, and only VACUUM sees the state that it copies.
            with self._explained(), self._engine.connect() as connection:
                connection.exec_driver_sql("VACUUM INTO ?", (str(copied),))
            copied.chmod(self._path.stat().st_mode & 0o777)
            _sync(copied)
            give_name(copied)
            _sync(target.parent)

    def keep_transaction(self, connection: Connection) -> None:
        """Do nothing: a file's transaction has no time limit."""

    def check_place(self) -> None:
        """Raise MetadataUnavailableError if the path no longer leads to the file that was opened.

        SQLite would continue writing into the old file, and all of that would be lost.
        """
        if self._file != _file_number(self._path):
            raise MetadataUnavailableError(
                f"{self.where}: was removed or replaced while this process had it open: start the process again; next "
                "time end all processes first"
            )

    def place(self) -> str:
        """Return the file's identity, and the machine's if it has one: a copied disk has the same files.

        See file_identity. Only a digest of the machine's id is used, as machine-id(5) requires.
        """
        machine = _machine()
        return file_identity(self._path) + (f"{_ON_MACHINE}{machine}" if machine else "")

    def is_at(self, place: str | None) -> bool:
        """Do as Database.is_at. If one of the two has no machine id, as in a container, the file alone decides."""
        file, _, machine = (place or "").partition(_ON_MACHINE)
        here, _, this_machine = self.place().partition(_ON_MACHINE)
        return file == here and (machine == this_machine or not (machine and this_machine))

    def explain(self, error: exc.DBAPIError) -> RemoteMetadataError:
        """Translate SQLite's result codes (sqlite.org/rescode.html)."""
        code = getattr(error.orig, "sqlite_errorcode", None)
        if code is None and isinstance(error.orig, sqlite3.OperationalError):
            # The driver itself could not read a value: text that is not UTF-8.
            code = sqlite3.SQLITE_CORRUPT
        code = (code or sqlite3.SQLITE_ERROR) & 0xFF
        if code == sqlite3.SQLITE_ERROR and (migrated := migrated_since(self._engine, self.where)):
            return migrated
        kind, advice = _ADVICE.get(code, (RemoteMetadataError, RESTORE))
        if self._may_spend and code in {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR}:
            self._reserve.spend()  # a quota, which the free space on the disk does not show
        advice = advice.format(waited=self._busy_timeout_ms, disk=disk_of(self._path))
        return kind(f"{self.where}: {error.orig}: {advice}")


def open_sqlite(path: Path, busy_timeout_ms: int, fill: Callable[[Database], None]) -> SqliteDatabase:
    """Open the file at `path`; if there is none, create one with the tables that `fill` writes.

    Missing directories are created. Raises ConfigurationError if no file can be created at the path, and
    MetadataCorruptError for a file that is too small or is missing beside its write-ahead log. Only SQLite opens the
    file: closing it elsewhere would release SQLite's locks of this process.
    """
    try:
        _create_if_missing(path, busy_timeout_ms, fill)
    except OSError as error:
        raise ConfigurationError(
            f"{path}: cannot create the metadata store there ({error.strerror}): set another path or change its rights"
        ) from error
    return open_existing(path, busy_timeout_ms)


def open_existing(path: Path, busy_timeout_ms: int) -> SqliteDatabase:
    """Open the file at `path`, which must exist; otherwise as open_sqlite."""
    log = path.with_name(f"{path.name}-wal")
    if not path.exists() and log.exists():
        raise _without_file(path, log)
    if not path.is_file():
        raise ConfigurationError(f"{path}: is not a file: set the path of a file for the metadata store")
    # SQLite takes a tiny file for an empty database, and would write into it.
    if path.stat().st_size < SMALLEST_STORE:
        raise MetadataCorruptError(f"{path}: is too small for a metadata store: {RESTORE}")
    return SqliteDatabase(path, busy_timeout_ms)


def _create_if_missing(path: Path, busy_timeout_ms: int, fill: Callable[[Database], None]) -> None:
    log = path.with_name(f"{path.name}-wal")
    # In this order: another process that is creating the store creates the file before its log.
    orphaned = _has_bytes(log)
    if path.exists():
        return
    if orphaned:
        raise _without_file(path, log)
    make_private_folder(path.parent)
    with suppress(FileExistsError):
        write_new_file(path, busy_timeout_ms, fill)


def _has_bytes(path: Path) -> bool:
    # A single call: another process may remove the file at any moment.
    try:
        return path.stat().st_size > 0
    except FileNotFoundError:
        return False


def write_new_file(path: Path, busy_timeout_ms: int, fill: Callable[[Database], None]) -> None:
    """Create the file `path` with what `fill` writes, durably. Raises FileExistsError, and OSError."""
    with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as directory:
        built = Path(directory, path.name)
        built.touch(mode=PRIVATE_FILE)
        with SqliteDatabase(built, busy_timeout_ms) as database:
            database.use_write_ahead_log()
            fill(database)
        path.hardlink_to(built)
    _sync(path.parent)


@contextmanager
def writing_copy(target: Path) -> Iterator[None]:
    """Raise ConfigurationError if the new file `target` exists, and RemoteMetadataError if it cannot be written."""
    try:
        yield
    except FileExistsError:
        raise ConfigurationError(f"{target}: exists already: name a new file for the backup") from None
    except OSError as error:
        raise RemoteMetadataError(
            f"{target}: the copy of the metadata store cannot be made there ({error.strerror}; "
            f"{disk_of(target.parent)}): free some space, or let this user write the directory; nothing was changed"
        ) from error


def _without_file(path: Path, log: Path) -> MetadataCorruptError:
    return MetadataCorruptError(f"{path}: is missing, but {log.name} is there, with the last commits: {RESTORE}")


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _engine(path: Path, busy_timeout_ms: int, reserve: DiskReserve) -> Engine:
    # mode=rw: connecting must never create a file.
    uri = f"file:{quote(str(path))}?mode=rw"

    def connect() -> sqlite3.Connection:
        # Even a read takes some room, unless another process has the file open.
        if not path.with_name(f"{path.name}-shm").exists():
            reserve.spend_where_full(_SHARED_MEMORY, _SHARED_MEMORY)
        # isolation_level=None: the driver starts no transactions of its own.
        return sqlite3.connect(
            uri, uri=True, timeout=busy_timeout_ms / 1000, isolation_level=None, check_same_thread=False
        )

    engine = create_engine("sqlite://", creator=connect, poolclass=QueuePool)

    @event.listens_for(engine, "connect")
    def set_up(connection: DBAPIConnection, _entry: ConnectionPoolEntry) -> None:
        cursor = connection.cursor()
        cursor.execute(f"PRAGMA synchronous={SYNCHRONOUS}")
        cursor.execute("PRAGMA cell_size_check=ON")
        cursor.close()

    return engine


def file_identity(path: Path) -> str:
    """Return the inode of `path` and its time of birth; only a copy of the whole disk has the same.

    The device number is left out: it may change when the machine restarts. On a file system without a time of birth,
    the inode alone remains.
    """
    found = ctypes.create_string_buffer(_STATX_BYTES)
    statx = getattr(ctypes.CDLL(None), "statx", None)
    if statx is None or statx(_AT_FDCWD, os.fsencode(path), 0, _STATX_BTIME, found) != 0:
        return f"inode {path.stat().st_ino}"
    mask, inode, seconds, nanoseconds = struct.unpack_from("=I28xQ40xqI", found)
    return f"inode {inode}" + (f" born {seconds}.{nanoseconds:09}" if mask & _STATX_BTIME else "")


def _machine() -> str:
    """Return a digest of this machine's id; empty if it has none."""
    try:
        found = MACHINE_ID.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""
    if re.fullmatch("[0-9a-f]{32}", found) is None:
        return ""
    return hashlib.sha256(f"Remote Log metadata on {found}".encode()).hexdigest()[:32]


def _file_number(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino
