"""A store in this process's memory, as an example of an ObjectClient."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from tiered_storage.clock import wall_clock
from tiered_storage.errors import RemoteObjectCorruptError, RemoteObjectNotFoundError, RemoteStorageError
from tiered_storage.remote_log.storage.clients.object_client import (
    CheckedChunks,
    StoredObject,
    StoreReserve,
    WrittenObject,
    check_object_name,
)
from tiered_storage.remote_log.storage.clients.options import ObjectStoreOptions

_STORES: dict[str, dict[str, tuple[bytes, int]]] = {}
"""What each URL holds: name to bytes and the ms of the last change."""


class MemoryObjects:
    """The objects at `url`."""

    longest_part = 1024

    def __init__(self, url: str) -> None:
        self.root = url
        self._held = _STORES.setdefault(url, {})

    def put(
        self,
        name: str,
        size: int,
        chunks: Iterator[memoryview],
        *,
        more_follows: bool = False,  # noqa: ARG002 -- nothing outlasts the process anyway
        at_most: bool = False,
    ) -> WrittenObject:
        check_object_name(name)
        checked = CheckedChunks(name, size, chunks, at_most=at_most)
        content = b"".join(bytes(piece) for piece in checked)
        self._held[name] = content, wall_clock()
        return checked.written()

    def create(self, name: str, content: bytes) -> bool:
        check_object_name(name)
        written = content, wall_clock()
        return self._held.setdefault(name, written) is written

    def move(self, name: str, target: str) -> None:
        self._held[target] = self._content(name), wall_clock()
        del self._held[name]

    def get_range(self, name: str, start: int, length: int) -> bytes:
        found = self._content(name)[start : start + length]
        if len(found) < length:
            raise RemoteObjectCorruptError(f"{self.root}/{name}: ends before byte {start + length}")
        return found

    def size(self, name: str) -> int:
        return len(self._content(name))

    def delete_many(self, names: Sequence[str]) -> Mapping[str, RemoteStorageError]:
        for name in names:
            check_object_name(name)
        for name in names:
            self._held.pop(name, None)
        return {}

    def discard_unfinished_many(self, stems: Collection[str]) -> None:
        """Nothing is unfinished: a put is one assignment."""

    def list(self, folder: str = "", after: str = "") -> Iterator[StoredObject]:
        for name, (content, changed) in sorted(self._held.items()):
            if name.startswith(f"{folder}/" if folder else "") and name > after:
                yield StoredObject(name, len(content), changed)

    def close(self) -> None:
        """Nothing is open."""

    def _content(self, name: str) -> bytes:
        check_object_name(name)
        if name not in self._held:
            raise RemoteObjectNotFoundError(f"{self.root}/{name}: no such object")
        return self._held[name][0]


def open_memory(url: str, _options: ObjectStoreOptions, _reserve: StoreReserve | None) -> MemoryObjects:
    """Open the store at `url`, memory://name."""
    return MemoryObjects(url)
