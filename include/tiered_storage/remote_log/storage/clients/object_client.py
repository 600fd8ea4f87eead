"""The border to one kind of object store: bytes under names, and only what the remote log needs."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from tiered_storage.errors import REPAIR_ADVICE, ConfigurationError, RemoteObjectCorruptError, RemoteStorageError
from tiered_storage.kafka_log.kernels.checksum import crc32c

PIECE_BYTES = 1 << 20
"""The size of a passed-on piece: it is still in the CPU's cache when it is written after its checksum."""
MAX_NAME_BYTES = 1024
"""The longest key that every object store accepts, minus the length of our root."""
TEMPORARY_SUFFIX = re.compile(r"\.[0-9a-f]{16}\.tmp")
"""The end of a name during its write."""


@dataclass(frozen=True, slots=True)
class WrittenObject:
    """A written object: `size` in bytes and `crc32c`, computed before the bytes were sent."""

    size: int
    crc32c: int


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object in a listing: its name below the root, bytes, and the ms of its last change."""

    name: str
    size: int
    last_modified: int


@dataclass(slots=True)
class StoreReserve:
    """Whether documents may use the room that a store in a directory reserves for deletions and for stopping them."""

    may_be_spent: bool = False


class ObjectClient(Protocol):
    """Objects under names relative to a root. Every method may be repeated, and called from several threads.

    All methods raise RemoteStorageError or one of its children, with the place of the object in the message, and
    ConfigurationError for a name that could lead out of the root.
    """

    @property
    def root(self) -> str:
        """Where the objects are, as a URL without secrets."""
        ...

    @property
    def longest_part(self) -> int:
        """The limit in bytes on one part of a name, between two slashes."""
        ...

    @property
    def has_own_clock(self) -> bool:
        """Whether the times in a listing are surely not by this machine's clock; False if that is unknown."""
        ...

    def put(
        self,
        name: str,
        size: int,
        chunks: Iterator[memoryview],
        *,
        more_follows: bool = False,
        at_most: bool = False,
    ) -> WrittenObject:
        """Write `chunks`, `size` bytes in all, durably and atomically, replacing any existing object.

        A chunk is valid until the next one is requested. Exceptions from `chunks` pass through; after any failure
        nothing is visible under `name`. With `more_follows`, the name may become durable only with the next put in the
        same folder. With `at_most`, there may be fewer bytes than `size`.
        """
        ...

    def create(self, name: str, content: bytes) -> bool:
        """Write a small object durably unless it exists; return whether it was written."""
        ...

    def move(self, name: str, target: str) -> None:
        """Rename an object to `target`, durably and atomically, replacing any existing one; the bytes stay in the
        store.

        After a failure it has one of the two names, or both. Raises RemoteObjectNotFoundError.
        """
        ...

    def get_range(self, name: str, start: int, length: int) -> bytes:
        """Return `length` bytes from `start`.

        Raises RemoteObjectNotFoundError, and RemoteObjectCorruptError if the object ends before that.
        """
        ...

    def size(self, name: str) -> int:
        """Return the object's size in bytes. Raises RemoteObjectNotFoundError."""
        ...

    def delete_many(self, names: Sequence[str]) -> Mapping[str, RemoteStorageError]:
        """Delete objects, many at the cost of a few; return those that may still exist, and why.

        A missing object counts as deleted. All that are not in the result are durably deleted. Raises
        ConfigurationError before anything is deleted.
        """
        ...

    def list(self, folder: str = "", after: str = "") -> Iterator[StoredObject]:
        """Stream all objects in `folder` (no slash at the end; "": all) and the folders below.

        They are in no order, but all objects of one folder and those below it follow one another.

        With `after`, only those whose whole names are greater, byte by byte.
        """
        ...

    def close(self) -> None:
        """Release all resources; repeated calls are harmless."""
        ...


@runtime_checkable
class HasTemporaryObjects(Protocol):
    """A second protocol, of an ObjectClient whose killed writers leave objects under temporary names."""

    def discard_unfinished_many(self, stems: Collection[str]) -> None:
        """Delete the temporary objects of those whose names begin with any of `stems`; raise as an ObjectClient."""
        ...


def discard_unfinished(client: ObjectClient, stems: Collection[str]) -> None:
    """Delete what killed writers left of objects whose names begin with any of `stems`, if the store leaves anything.

    Raises what the store raises.
    """
    if isinstance(client, HasTemporaryObjects):
        client.discard_unfinished_many(stems)


def delete_object(client: ObjectClient, name: str) -> None:
    """Delete one object; a missing one counts as deleted. Raises what the store raises."""
    for error in client.delete_many([name]).values():
        raise error


def data_range(client: ObjectClient, name: str, position: int, length: int) -> bytes:
    """Return `length` bytes of a segment's data object, as ObjectClient.get_range; its error says what to do."""
    try:
        return client.get_range(name, position, length)
    except RemoteObjectCorruptError as error:
        raise RemoteObjectCorruptError(f"{error}; {REPAIR_ADVICE}") from error


class CheckedChunks:
    """Passes chunks on in pieces, counts them, computes their CRC-32C and checks the announced size.

    With `at_most`, there may be fewer bytes than announced. `failure` is the exception of the source, to distinguish it
    from those of the store that consumes the pieces.
    """

    def __init__(self, name: str, size: int, chunks: Iterator[memoryview], *, at_most: bool = False) -> None:
        self._name = name
        self._announced = size
        self._may_end_early = at_most
        self._chunks = chunks
        self._unpassed = memoryview(b"")
        self.size = 0
        self.crc32c = 0
        self.failure: BaseException | None = None

    def __iter__(self) -> Iterator[memoryview]:
        return self

    def __next__(self) -> memoryview:
        try:
            return self._next()
        except StopIteration:
            raise
        except BaseException as error:
            self.failure = error
            raise

    def _next(self) -> memoryview:
        while not self._unpassed:
            chunk = next(self._chunks, None)
            if chunk is None:
                self._check_size(ended=True)
                raise StopIteration
            self._unpassed = chunk.cast("B")
        piece, self._unpassed = self._unpassed[:PIECE_BYTES], self._unpassed[PIECE_BYTES:]
        self.size += len(piece)
        self._check_size(ended=False)
        self.crc32c = crc32c(piece, self.crc32c)
        return piece

    def _check_size(self, *, ended: bool) -> None:
        is_short = ended and not self._may_end_early and self.size < self._announced
        if self.size > self._announced or is_short:
            raise RemoteObjectCorruptError(
                f"{self._name}: its source {'ended' if ended else 'continued'} after {self._announced} bytes were "
                f"announced and {self.size} came: has the file changed while it was copied?"
            )

    def written(self) -> WrittenObject:
        """What has been passed on so far."""
        return WrittenObject(self.size, self.crc32c)


def temporary_name(name: str, random_hex: str) -> str:
    """Return the name of the object `name` during its write; `random_hex` is 16 hex digits."""
    return f"{name}.{random_hex}.tmp"


def is_temporary_name(name: str) -> bool:
    """Return whether `name` is the temporary name of an object during its write."""
    return TEMPORARY_SUFFIX.fullmatch(name[-21:]) is not None


def check_object_name(name: str) -> None:
    """Raise ConfigurationError unless `name` stays below the root that it is joined to, on every kind of store."""
    parts = name.split("/")
    if any(part in {"", ".", ".."} for part in parts) or not name.isprintable() or "\\" in name:
        raise ConfigurationError(
            f"{name!r} is not a valid name for an object: it must be plain parts with single slashes between"
        )
    if len(name.encode()) > MAX_NAME_BYTES:
        raise ConfigurationError(f"{name[:80]!r}… is not a valid object name: over {MAX_NAME_BYTES} bytes")


def checked_names(names: Collection[str]) -> Collection[str]:
    """Return `names` after checking each of them. Raises ConfigurationError as check_object_name."""
    for name in names:
        check_object_name(name)
    return names
