"""The border to the metadata store: what opening it gives.

Segments, leases and topics stand in remote_log_metadata_manager.py, safety in safety.py. Here are the rest: whom the
metadata belong to, their generation, the last reading of the clock, and the store that has all of these. All methods
raise MetadataUnavailableError (retriable) and MetadataCorruptError, or what they name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self, TypeAlias

from tiered_storage.clock import BootTime
from tiered_storage.remote_log.metadata.remote_log_metadata_manager import Leases, RemoteLogMetadataManager, Topics
from tiered_storage.remote_log.metadata.safety import Safety


class MetadataIdentity(Protocol):
    """The metadata store's UUID, given when it was made, and that of the object store it is bound to, for good."""

    @property
    def metadata_uuid(self) -> str:
        """This metadata store's own UUID."""
        ...

    def bound_store_uuid(self) -> str | None:
        """Return the UUID of the object store that this metadata describes; None if none was bound yet."""
        ...

    def bind_store(self, uuid: str) -> None:
        """Belong to the object store `uuid` from now on; binding the same again does nothing.

        Raises StoreMismatchError if another one is bound.
        """
        ...


@dataclass(frozen=True, slots=True)
class Generation:
    """What the metadata know of their generation, and whether the place they are in and their decisions belong to it.

    `number` 0: none was published yet. `next_token` is that of `number` + 1, written here before it is published.
    """

    number: int
    token: str
    next_token: str | None = None
    is_own_place: bool = True
    has_own_decisions: bool = True


class MetadataGeneration(Protocol):
    """Which generation the metadata share with their object store; see generation.py."""

    @property
    def where(self) -> str:
        """The metadata store's place, for messages."""
        ...

    def read(self) -> Generation:
        """Return the generation as the metadata know it."""
        ...

    def pending(self) -> tuple[str | None, bool]:
        """Return the next token (None if none is under way), and whether another generation must follow that one."""
        ...

    def renew(self) -> None:
        """Write a token for the next generation, to be published in the store and then confirmed here."""
        ...

    def confirm(self, published: Generation) -> None:
        """Record that the store carries `published` by now; does nothing if another process recorded it first."""
        ...

    def claim(self, newest_number: int) -> None:
        """Follow a store that is at `newest_number` under whatever token, by a person's word.

        The place of the metadata and the decisions in them count as this generation's own from now on.
        """
        ...

    def backed_up_at(self) -> int | None:
        """Return when the last backup was made (ms); None if none was."""
        ...

    def record_backup(self, now: int) -> None:
        """Record that a backup was made at `now` (ms)."""
        ...


@dataclass(frozen=True, slots=True)
class ClockReading:
    """What the clock showed when it was last checked, and how long the machine had been running then; times are ms.

    `trusted_since` is when, by this clock, it began to run without a jump or a restart.
    """

    boot_time: BootTime
    wall: int
    trusted_since: int

    @classmethod
    def of_newest_time(cls, newest: int) -> Self:
        """Return what stands for the first reading: `newest` is the newest time that metadata and store know."""
        return cls(BootTime("", 0), newest, trusted_since=newest)

    @property
    def is_taken(self) -> bool:
        """Whether a clock was read, and not only the newest time known is recorded."""
        return bool(self.boot_time.boot_id)


RenewedAt: TypeAlias = Callable[[], int | None]
"""Returns when the store's generation was begun (ms); None if the store cannot tell."""


class ClockReadings(Protocol):
    """The last reading of the clock that a run checked."""

    def read(self) -> ClockReading | None:
        """Return what is recorded; None before the first."""
        ...

    def read_or_newest(self, renewed_at: RenewedAt) -> ClockReading | None:
        """Return what is recorded, else what `begin` would record; None if neither metadata nor store know a time."""
        ...

    def begin(self, renewed_at: RenewedAt) -> None:
        """Record the newest time known, if nothing is recorded: before anything is written by an unchecked clock."""
        ...

    def record(self, reading: ClockReading) -> None:
        """Replace the reading; whoever calls it checked the clock against the earlier one."""
        ...


class MetadataStore(Protocol):
    """An open metadata store. Threads may share it; it closes at the end of a `with`, or by `close`."""

    @property
    def segments(self) -> RemoteLogMetadataManager:
        """Segments and partitions."""
        ...

    @property
    def leases(self) -> Leases:
        """Who may change a partition."""
        ...

    @property
    def topics(self) -> Topics:
        """The decisions for each topic."""
        ...

    @property
    def safety(self) -> Safety:
        """What makes deleting safe."""
        ...

    @property
    def identity(self) -> MetadataIdentity:
        """Whose metadata these are."""
        ...

    @property
    def generation(self) -> MetadataGeneration:
        """The generation that they share with their object store."""
        ...

    @property
    def clock_reading(self) -> ClockReadings:
        """The last reading of the clock."""
        ...

    def work_area_key(self) -> bytes:
        """Return the key that signs the messages in the work area; it never leaves this process."""
        ...

    def check_integrity(self) -> None:
        """Read the whole store; raises MetadataCorruptError if its structure is broken."""
        ...

    def spend_reserve(self) -> None:
        """Let what is written from now on use the room that is kept for deletions and for stopping them."""
        ...

    def copy_to(self, target: Path) -> None:
        """Write a copy of what is committed to the new file `target`."""
        ...

    def close(self) -> None:
        """Close the connections; a second call does nothing."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...
