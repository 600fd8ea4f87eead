"""How many decisions about deleting were made, as the store knows it: a small object of its own for the newest.

    store.decisions/{number, 20 digits}.json

A JSON object: format_version (1), number, decision (in words) and said_at (ms). Metadata keep the number of the last
decision that they know. Where theirs is lower, they were restored from a backup that is older than a word which may
have taken a right back; so nothing may be deleted by them. A number is given once: of two who decide at the same time
each creates an object of its own.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Self

from tiered_storage.errors import RemoteObjectCorruptError, RemoteObjectNotFoundError, RemoteStorageError
from tiered_storage.remote_log.storage.json_document import MAX_DOCUMENT_BYTES, JsonDocument, encode_document
from tiered_storage.remote_log.storage.object_client import ObjectClient
from tiered_storage.remote_log.storage.object_names import (
    STORE_DECISIONS,
    is_temporary_name,
    parse_store_decision_name,
    store_decision_name,
)

FORMAT_VERSION = 1
UNREADABLE = "what cannot be read"
"""What stands for a decision whose object is broken."""


@dataclass(frozen=True, slots=True)
class StoreDecision:
    """The decision of `number`, what it was, in words, and when it was made (ms)."""

    number: int
    decision: str
    said_at: int

    @classmethod
    def parse(cls, raw: bytes, source: str) -> Self:
        """Read one. Raises RemoteObjectCorruptError for one that is broken, or of a later version."""
        document = JsonDocument(raw, source, FORMAT_VERSION)
        return cls(document.integer("number", minimum=1), document.text("decision"), document.integer("said_at"))

    def to_bytes(self) -> bytes:
        """Return its JSON."""
        fields = {"number": self.number, "decision": self.decision, "said_at": self.said_at}
        return encode_document(FORMAT_VERSION, fields)


@dataclass(frozen=True, slots=True)
class StoreDecisions:
    """The decisions that one store knows of. All methods raise what the store raises."""

    client: ObjectClient

    def newest_number(self) -> int:
        """Return the number of the newest; 0 where there is none. One short listing."""
        return max((number for number, _ in self._listed()), default=0)

    def newest(self) -> StoreDecision | None:
        """Return the newest; None where there is none. Raises RemoteObjectCorruptError."""
        number = self.newest_number()
        while number:
            name = store_decision_name(number)
            try:
                raw = self.client.get_range(name, 0, min(self.client.size(name), MAX_DOCUMENT_BYTES + 1))
            except RemoteObjectNotFoundError:
                # Somebody decided since it was listed, and removed it.
                earlier, number = number, self.newest_number()
                if number <= earlier:
                    raise
                continue
            return StoreDecision.parse(raw, f"{self.client.root}/{name}")
        return None

    def newest_after(self, known: int) -> StoreDecision | None:
        """Return the newest where its number is above `known`. One that is broken counts: its name has the number.

        One short listing where there is none.
        """
        number = self.newest_number()
        if number <= known:
            return None
        try:
            return self.newest()
        except RemoteObjectCorruptError as error:
            return StoreDecision(number, f"{UNREADABLE} ({error})", 0)

    def add(self, decision: StoreDecision) -> bool:
        """Write one durably, and then remove those before it; False where its number was given already.

        One that cannot be removed stays until the next: it is told all the same.
        """
        if not self.client.create(store_decision_name(decision.number), decision.to_bytes()):
            return False
        with suppress(RemoteStorageError):
            for number, name in self._listed():
                if number < decision.number:
                    self.client.delete(name)
        return True

    def _listed(self) -> list[tuple[int, str]]:
        """Return number and name of each; what killed writers left has number 0."""
        listed = []
        for found in self.client.list(STORE_DECISIONS):
            number = parse_store_decision_name(found.name)
            if number is not None or is_temporary_name(found.name):
                listed.append((number or 0, found.name))
        return listed
