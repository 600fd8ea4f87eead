"""A store of one's own: each object is a row of a SQLite file, of at most 1 GB. Its settings are in docs/stores.md."""

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

from tiered_storage.clock import wall_clock
from tiered_storage.errors import RemoteObjectCorruptError, RemoteObjectNotFoundError, RemoteStorageError
from tiered_storage.remote_log.storage.clients import object_client
from tiered_storage.remote_log.storage.clients.options import ObjectStoreOptions
from tiered_storage.remote_log.storage.segment_objects import ObjectRemoteStorageManager


class SqliteObjects:
    """An ObjectClient, whose docstrings say what each method does. Each call has a connection of its own."""

    longest_part, has_own_clock = 255, False

    def __init__(self, url: str, timeout_ms: int) -> None:
        self.root, self._file, self._seconds = url, url.replace("sqlite:", "file:", 1), timeout_ms / 1000
        self._rows("CREATE TABLE IF NOT EXISTS objects (name TEXT PRIMARY KEY, changed, content BLOB)")

    def put(self, name: str, size: int, chunks: Iterator[memoryview], **how: bool) -> object_client.WrittenObject:
        checked = object_client.CheckedChunks(name, size, chunks, at_most=how.get("at_most", False))
        replace = "REPLACE INTO objects VALUES (:name, :now, :content)"
        self._rows(replace, name=name, content=b"".join(map(bytes, checked)))
        return checked.written()

    def create(self, name: str, content: bytes) -> bool:
        insert = "INSERT OR IGNORE INTO objects VALUES (:name, :now, :content) RETURNING 1"
        return bool(self._rows(insert, name=name, content=content))

    def move(self, name: str, target: str) -> None:
        self._one("UPDATE OR REPLACE objects SET name = :target WHERE name = :name RETURNING 1", name, target=target)

    def get_range(self, name: str, start: int, length: int) -> bytes:
        part = "SELECT coalesce(substr(content, :start + 1, :length), x'') FROM objects WHERE name = :name"
        content: bytes = self._one(part, name, start=start, length=length)
        if len(content) < length:
            raise RemoteObjectCorruptError(f"{self.root}/{name}: ends before byte {start + length}")
        return content

    def size(self, name: str) -> int:
        return int(self._one("SELECT length(content) FROM objects WHERE name = :name", name))

    def delete_many(self, names: Sequence[str]) -> Mapping[str, RemoteStorageError]:
        for name in object_client.checked_names(names):
            self._rows("DELETE FROM objects WHERE name = :name", name=name)
        return {}

    def list(self, folder: str = "", after: str = "") -> Iterator[object_client.StoredObject]:
        listed = "SELECT name, length(content), changed FROM objects WHERE instr(name, :within) = 1 AND name > :after"
        found = self._rows(f"{listed} ORDER BY name", within=folder and f"{folder}/", after=after)
        return (object_client.StoredObject(*row) for row in found)

    def close(self) -> None:
        """Nothing stays open."""

    def _one(self, statement: str, name: str, **values: object) -> Any:
        for (found,) in self._rows(statement, name=name, **values):
            return found
        raise RemoteObjectNotFoundError(f"{self.root}/{name}: no such object")

    def _rows(self, statement: str, **values: Any) -> Sequence[Any]:
        object_client.checked_names([values[each] for each in values.keys() & {"name", "target"}])
        try:
            with closing(sqlite3.connect(self._file, timeout=self._seconds, uri=True)) as opened, opened:
                return opened.execute(statement, {"now": wall_clock(), **values}).fetchall()
        except sqlite3.Error as error:
            raise RemoteStorageError(f"{self.root}: {error}") from error


class SqliteStorage(ObjectRemoteStorageManager):
    """The class that the settings name; `options.configs` are the settings that begin with rsm.config."""

    @classmethod
    def open(cls, url: str, options: ObjectStoreOptions) -> "SqliteStorage":
        return cls(SqliteObjects(url, int(options.configs.get("timeout.ms", "30000"))), key_ring=options.key_ring)
