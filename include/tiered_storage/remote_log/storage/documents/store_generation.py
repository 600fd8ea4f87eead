"""The store's copy of the metadata's generation: a small object that each renewal replaces.

    store.generation/{number, 20 digits}.json

A JSON object: format_version (1), number, token (random), reason (in words), renewed_at (ms) and, for people, holder:
the host and the file of the metadata. The one with the highest number holds. A renewal creates the object of the next
number, which fails if another process did so first: that is a compare-and-swap on every store that can create an object
exclusively. Afterwards it deletes the earlier ones, and checks whether its own is still the newest.

Metadata keep number and token too (metadata/sql/generation.py). If theirs differ from the store's, they are a restored
backup or a copy, and may change nothing.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Self

from pydantic import Field

from tiered_storage.errors import RemoteObjectCorruptError, RemoteObjectNotFoundError, RemoteStorageError
from tiered_storage.remote_log.storage.clients.object_client import (
    ObjectClient,
    StoredObject,
    delete_object,
    is_temporary_name,
    temporary_name,
)
from tiered_storage.remote_log.storage.documents.json_document import (
    MAX_DOCUMENT_BYTES,
    JsonDocument,
    Natural,
    Text,
    encode_document,
)
from tiered_storage.remote_log.storage.documents.object_names import (
    HIGHEST_NUMBER,
    STORE_DECISIONS,
    STORE_GENERATION,
    parse_store_decision_name,
    parse_store_generation_name,
    store_generation_name,
)

FORMAT_VERSION = 1
UNKNOWN_HOLDER = "an unknown place"
_TEMPORARY = temporary_name("", "0" * 16)


@dataclass(frozen=True, slots=True)
class StoredGeneration:
    """Generation `number` with its `token`; its reason in words, its start (ms), and where its metadata are."""

    number: Annotated[int, Field(strict=True, ge=1, le=HIGHEST_NUMBER)]
    token: Text
    reason: Text
    renewed_at: Natural
    holder: Text = UNKNOWN_HOLDER

    @classmethod
    def parse(cls, raw: bytes, source: str) -> Self:
        """Read one. Raises RemoteObjectCorruptError if it is corrupt, and LaterVersionError."""
        return JsonDocument(raw, source, FORMAT_VERSION).read(cls)

    def to_bytes(self) -> bytes:
        """Return its JSON."""
        return encode_document(FORMAT_VERSION, self)


class StoreGenerations:
    """The generations in one store. All methods raise what the store raises."""

    def __init__(self, client: ObjectClient) -> None:
        """Read and write them by `client`."""
        self.client = client
        self._seen: tuple[StoredObject, StoredGeneration] | None = None

    @property
    def place(self) -> str:
        """Where the generations are, for messages."""
        return f"{self.client.root}/{STORE_GENERATION}"

    def newest_number(self) -> int:
        """Return the number of the newest generation; 0 if there is none. One short listing."""
        found = self._newest_object()
        return 0 if found is None else _number(found.name)

    def newest(self) -> StoredGeneration | None:
        """Return the newest generation; None if there is none. Takes a short listing, and one read of each new object.

        Raises RemoteObjectCorruptError, with the way out, and LaterVersionError.
        """
        found = self._newest_object()
        while found is not None:
            number = _number(found.name)
            # Only a store without conditional writes replaces an object created under a number.
            if self._seen is not None and self._seen[0] == found:
                return self._seen[1]
            try:
                raw = self.client.get_range(found.name, 0, min(found.size, MAX_DOCUMENT_BYTES + 1))
            except RemoteObjectNotFoundError:
                # A renewal since the listing deleted it.
                found = self._newest_object()
                if found is None or _number(found.name) <= number:
                    raise
                continue
            generation = _parsed(raw, number, f"{self.client.root}/{found.name}")
            self._seen = found, generation
            return generation
        return None

    def renewed_at(self) -> int | None:
        """Return the start of the newest generation (ms); None if there is none, or it cannot be read."""
        with suppress(RemoteStorageError):
            if (newest := self.newest()) is not None:
                return newest.renewed_at
        return None

    def _newest_object(self) -> StoredObject | None:
        numbered = (found for found in self.client.list(STORE_GENERATION) if _number(found.name))
        return max(numbered, key=lambda found: _number(found.name), default=None)

    def publish(self, generation: StoredGeneration) -> None:
        """Create `generation` durably, unless its number is taken, and then delete earlier ones.

        The caller reads `newest` to see whether it won. The next renewal deletes what cannot be deleted now. Raises
        RemoteObjectCorruptError if no number is left.
        """
        if generation.number > HIGHEST_NUMBER:
            raise RemoteObjectCorruptError(
                f"{self.client.root}/{store_generation_name(generation.number - 1)}: this is the highest possible "
                "generation, and no run of Remote Log got that far: remove the object, then run 'tiered-storage "
                "metadata take-over' with the metadata of this store"
            )
        try:
            if not self.client.create(store_generation_name(generation.number), generation.to_bytes()):
                return
        except RemoteStorageError:
            # A process that renewed twice meanwhile took ours for an orphan.
            if self.newest_number() < generation.number:
                raise
            return
        with suppress(RemoteStorageError):
            for found in self.client.list(STORE_GENERATION):
                # Never a temporary object of this number or a later one: another process is writing it.
                written = found.name[: -len(_TEMPORARY)] if is_temporary_name(found.name) else found.name
                if 0 < _number(written) < generation.number:
                    delete_object(self.client, found.name)
            for found in self.client.list(STORE_DECISIONS):
                delete_object(self.client, found.name)

    def newest_decision(self) -> int:
        """Return the number of the newest decision that an earlier release recorded; 0 if there is none."""
        numbers = (parse_store_decision_name(found.name) for found in self.client.list(STORE_DECISIONS))
        return max((number for number in numbers if number is not None), default=0)


def _number(name: str) -> int:
    """Return the number of the generation with the object `name`; 0 if it is not a generation's."""
    return parse_store_generation_name(name) or 0


def _parsed(raw: bytes, number: int, source: str) -> StoredGeneration:
    why = f"{source}: is the object of another generation"
    try:
        found = StoredGeneration.parse(raw, source)
        if found.number == number:
            return found
    except RemoteObjectCorruptError as error:
        why = str(error)
    raise RemoteObjectCorruptError(f"{why}; run 'tiered-storage metadata take-over' with the metadata of this store")
