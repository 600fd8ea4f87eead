"""A store of one's own: each object is a row of a SQLite file, of at most 1 GB. All else is as in Remote Log's stores.

remote.log.storage.manager.class.name: own_store.SqliteStorage
remote.log.storage.manager.class.path: /folder/of/this/file
rsm.config.url: sqlite:///srv/remote-log/objects.db
rsm.config.timeout.ms: 30000
"""

import sqlite3
from collections.abc import Collection, Iterator, Mapping, Sequence
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

    longest_part = 255
    has_own_clock = False

    def __init__(self, url: str, timeout_ms: int) -> None:
        self.root, self._seconds = url, timeout_ms / 1000
        self._rows("CREATE TABLE IF NOT EXISTS objects (name TEXT PRIMARY KEY, size, changed, content BLOB)")

    def put(self, name: str, size: int, chunks: Iterator[memoryview], **how: bool) -> object_client.WrittenObject:
        checked = object_client.CheckedChunks(name, size, chunks, at_most=how.get("at_most", False))
        content = b"".join(bytes(piece) for piece in checked)
        self._write("REPLACE INTO objects VALUES (:name, :size, :now, :content)", name, content=content)
        return checked.written()

    def create(self, name: str, content: bytes) -> bool:
        return self._write("INSERT OR IGNORE INTO objects VALUES (:name, :size, :now, :content)", name, content=content)

    def move(self, name: str, target: str) -> None:
        object_client.check_object_name(target)
        if not self._write("UPDATE OR REPLACE objects SET name = :target WHERE name = :name", name, target=target):
            raise RemoteObjectNotFoundError(f"{self.root}/{name}: no such object")

    def get_range(self, name: str, start: int, length: int) -> bytes:
        content: bytes = self._value(
            "coalesce(substr(content, :start + 1, :length), x'')", name, start=start, length=length
        )
        if len(content) < length:
            raise RemoteObjectCorruptError(f"{self.root}/{name}: ends before byte {start + length}")
        return content

    def size(self, name: str) -> int:
        return int(self._value("size", name))

    def delete_many(self, names: Sequence[str]) -> Mapping[str, RemoteStorageError]:
        for name in names:
            object_client.check_object_name(name)
        for name in names:
            self._write("DELETE FROM objects WHERE name = :name", name)
        return {}

    def discard_unfinished_many(self, stems: Collection[str]) -> None:
        """Nothing is unfinished: each write is one transaction."""

    def list(self, folder: str = "", after: str = "") -> Iterator[object_client.StoredObject]:
        listed = "SELECT name, size, changed FROM objects WHERE name > :after ORDER BY name"
        found = (object_client.StoredObject(*row) for row in self._rows(listed, after=after))
        return (each for each in found if not folder or each.name.startswith(f"{folder}/"))

    def close(self) -> None:
        """Nothing stays open."""

    def _value(self, expression: str, name: str, **values: object) -> Any:
        object_client.check_object_name(name)
        statement = f"SELECT {expression} FROM objects WHERE name = :name"  # noqa: S608 -- our own expressions
        for (found,) in self._rows(statement, name=name, **values):
            return found
        raise RemoteObjectNotFoundError(f"{self.root}/{name}: no such object")

    def _write(self, statement: str, name: str, content: bytes = b"", **values: object) -> bool:
        object_client.check_object_name(name)
        given = {"name": name, "size": len(content), "now": wall_clock(), "content": content, **values}
        return bool(self._rows(f"{statement} RETURNING 1", **given))

    def _rows(self, statement: str, **values: object) -> Sequence[Any]:
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
