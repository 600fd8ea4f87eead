"""A store of one's own: each object is a row of a SQLite file, of at most 1 GB. All else is as in Remote Log's stores.

remote.log.storage.manager.class.name: own_store.SqliteStorage
remote.log.storage.manager.class.path: /folder/of/this/file
rsm.config.url: sqlite:///srv/remote-log/objects.db
rsm.config.timeout.ms: 30000
"""

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any
from urllib.parse import unquote, urlsplit

from tiered_storage.clock import wall_clock
from tiered_storage.errors import RemoteObjectCorruptError, RemoteObjectNotFoundError, RemoteStorageError
from tiered_storage.remote_log.storage.clients import object_client
from tiered_storage.remote_log.storage.clients.options import ObjectStoreOptions
from tiered_storage.remote_log.storage.segment_objects import ObjectRemoteStorageManager


class SqliteObjects:
    """An ObjectClient, whose docstrings say what each method does. Each call has a connection of its own."""

    longest_part, has_own_clock = 255, False

    def __init__(self, url: str, timeout_ms: int) -> None:
        self.root, self._seconds = url, timeout_ms / 1000
        self._rows("CREATE TABLE IF NOT EXISTS objects (name TEXT PRIMARY KEY, size, changed, content BLOB)")

    def put(self, name: str, size: int, chunks: Iterator[memoryview], **how: bool) -> object_client.WrittenObject:
        checked = object_client.CheckedChunks(name, size, chunks, at_most=how.get("at_most", False))
        self._insert("REPLACE", name, b"".join(map(bytes, checked)))
        return checked.written()

    def create(self, name: str, content: bytes) -> bool:
        return self._insert("INSERT OR IGNORE", name, content)

    def move(self, name: str, target: str) -> None:
        self._one("UPDATE OR REPLACE objects SET name = :target WHERE name = :name RETURNING 1", name, target=target)

    def get_range(self, name: str, start: int, length: int) -> bytes:
        part = "SELECT coalesce(substr(content, :start + 1, :length), x'') FROM objects WHERE name = :name"
        content: bytes = self._one(part, name, start=start, length=length)
        if len(content) < length:
            raise RemoteObjectCorruptError(f"{self.root}/{name}: ends before byte {start + length}")
        return content

    def size(self, name: str) -> int:
        return int(self._one("SELECT size FROM objects WHERE name = :name", name))

    def delete_many(self, names: Sequence[str]) -> Mapping[str, RemoteStorageError]:
        for name in names:
            object_client.check_object_name(name)
        for name in names:
            self._rows("DELETE FROM objects WHERE name = :name", name=name)
        return {}

    def list(self, folder: str = "", after: str = "") -> Iterator[object_client.StoredObject]:
        listed = "SELECT name, size, changed FROM objects WHERE name > :after ORDER BY name"
        found = (object_client.StoredObject(*row) for row in self._rows(listed, after=after))
        return (each for each in found if not folder or each.name.startswith(f"{folder}/"))

    def close(self) -> None:
        """Nothing stays open."""

    def _insert(self, verb: str, name: str, content: bytes) -> bool:
        statement = f"{verb} INTO objects VALUES (:name, :size, :now, :content) RETURNING 1"
        return bool(self._rows(statement, name=name, size=len(content), now=wall_clock(), content=content))

    def _one(self, statement: str, name: str, **values: object) -> Any:
        for (found,) in self._rows(statement, name=name, **values):
            return found
        raise RemoteObjectNotFoundError(f"{self.root}/{name}: no such object")

    def _rows(self, statement: str, **values: Any) -> Sequence[Any]:
        for name in values.keys() & {"name", "target"}:
            object_client.check_object_name(values[name])
        try:
            with closing(sqlite3.connect(unquote(urlsplit(self.root).path), timeout=self._seconds)) as opened, opened:
                return opened.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            raise RemoteStorageError(f"{self.root}: {error}") from error


class SqliteStorage(ObjectRemoteStorageManager):
    """The class that the settings name; `options.configs` are the settings that begin with rsm.config."""

    @classmethod
    def open(cls, url: str, options: ObjectStoreOptions) -> "SqliteStorage":
        timeout_ms = int(options.configs.get("timeout.ms", "30000"))
        return cls(SqliteObjects(url, timeout_ms), key_ring=options.key_ring)
