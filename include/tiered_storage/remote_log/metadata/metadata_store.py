"""The border to the metadata store: the protocol of an open one.

Segments, leases and topics are in remote_log_metadata_manager.py, safety in safety.py. The rest is here: the identity
of the metadata, their generation, the last reading of the clock, and the store that has all of these. All methods raise
MetadataUnavailableError (retriable) and MetadataCorruptError, or what they name. MetadataStoreFactory opens a store.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self, TypeAlias, runtime_checkable

from tiered_storage.clock import BootTime, Clock
from tiered_storage.own_classes import call_own, load_class
from tiered_storage.redaction import SecretUrl
from tiered_storage.remote_log.metadata.remote_log_metadata_manager import Leases, RemoteLogMetadataManager, Topics
from tiered_storage.remote_log.metadata.safety import Safety
from tiered_storage.settings.own_managers import (
    KAFKAS_METADATA_MANAGER,
    METADATA_MANAGER,
    TOPIC_METADATA_MANAGER,
)


class MetadataIdentity(Protocol):
    """The metadata store's UUID, assigned when it was created, and that of the object store it is bound to."""

    @property
    def metadata_uuid(self) -> str:
        """This metadata store's own UUID."""
        ...

    def bound_store_uuid(self) -> str | None:
        """Return the UUID of the object store that these metadata describe; None if none was bound yet."""
        ...

    def bind_store(self, uuid: str) -> None:
        """Bind these metadata to the object store `uuid`; binding the same again does nothing.

        Raises StoreMismatchError if another one is bound.
        """
        ...


@dataclass(frozen=True, slots=True)
class Generation:
    """The metadata's generation, and whether their location and their decisions belong to it.

    `number` 0: none was published yet. `next_token` is that of `number` + 1, written here before it is published.
    """

    number: int
    token: str
    next_token: str | None = None
    is_own_place: bool = True
    has_own_decisions: bool = True


class MetadataGeneration(Protocol):
    """The generation that the metadata share with their object store; see generation.py."""

    @property
    def where(self) -> str:
        """The metadata store's place, for messages."""
        ...

    def read(self) -> Generation:
        """Return the generation in the metadata."""
        ...

    def pending(self) -> tuple[str | None, bool]:
        """Return the pending token (None if there is none), and whether another generation must follow it."""
        ...

    def renew(self) -> None:
        """Write a token for the next generation, to be published in the store and then confirmed here."""
        ...

    def confirm(self, published: Generation) -> None:
        """Record that the store carries `published`; do nothing if another process recorded it first."""
        ...

    def claim(self, newest_number: int) -> None:
        """Follow a store that is at `newest_number` with any token, at the user's request.

        The location of the metadata and their decisions belong to this generation from now on.
        """
        ...

    def backed_up_at(self) -> int | None:
        """Return the time of the last backup (ms); None if there was none."""
        ...

    def record_backup(self, now: int) -> None:
        """Record that a backup was made at `now` (ms)."""
        ...


@dataclass(frozen=True, slots=True)
class ClockReading:
    """The clock and the machine's uptime at the last check; times are ms.

    `trusted_since` is when, by this clock, it began to run without a jump or a restart.
    """

    boot_time: BootTime
    wall: int
    trusted_since: int

    @classmethod
    def of_newest_time(cls, newest: int) -> Self:
        """Return a substitute for the first reading: `newest` is the newest time in metadata and store."""
        return cls(BootTime("", 0), newest, trusted_since=newest)

    @property
    def is_taken(self) -> bool:
        """Whether a clock was read; otherwise only the newest known time is recorded."""
        return bool(self.boot_time.boot_id)


RenewedAt: TypeAlias = Callable[[], int | None]
"""Returns the start of the store's generation (ms); None if the store does not show it."""


class ClockReadings(Protocol):
    """The last clock reading that a run checked, for each start of each machine."""

    def read(self, boot_id: str) -> ClockReading | None:
        """Return the reading of a machine that runs since the start `boot_id`; None before its first."""
        ...

    def latest(self) -> ClockReading | None:
        """Return the reading with the latest time, of whichever machine; None before the first."""
        ...

    def latest_or_newest(self, renewed_at: RenewedAt) -> ClockReading | None:
        """Return the latest reading, else what `begin` would record; None if metadata and store have no time."""
        ...

    def begin(self, renewed_at: RenewedAt) -> None:
        """Record the newest known time if nothing is recorded: before anything is written by an unchecked clock."""
        ...

    def record(self, reading: ClockReading) -> None:
        """Replace the reading of that start of the machine, after checking the clock against the earlier one."""
        ...

    def forget_later_than(self, wall: int) -> None:
        """Delete the readings of clocks that showed more than `wall` (ms): they were ahead."""
        ...


class MetadataStore(Protocol):
    """An open metadata store, which threads may share; it closes at the end of a `with`, or by `close`."""

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
        """Stops, audit results and failed deletions."""
        ...

    @property
    def identity(self) -> MetadataIdentity:
        """The identity of these metadata."""
        ...

    @property
    def generation(self) -> MetadataGeneration:
        """The generation that they share with their object store."""
        ...

    @property
    def clock_readings(self) -> ClockReadings:
        """The last reading of the clock."""
        ...

    def work_area_key(self) -> bytes:
        """Return the key that signs the messages in the work area; it never leaves this process."""
        ...

    def check_integrity(self) -> None:
        """Read the whole store; raises MetadataCorruptError if its structure is broken."""
        ...

    def spend_reserve(self) -> None:
        """Let further writes use the room that is reserved for deletions and for stopping them."""
        ...

    def copy_to(self, target: Path) -> None:
        """Write a copy of the committed content to the new file `target`."""
        ...

    def close(self) -> None:
        """Close the connections; repeated calls are harmless."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


@runtime_checkable
class StoreBesideTopic(Protocol):
    """A MetadataStore whose segments are in a metadata topic; `sql` has the rest."""

    @property
    def sql(self) -> MetadataStore: ...


def beside_topic(store: MetadataStore) -> RemoteLogMetadataManager:
    """Return what knows the partitions of `store`, though not all segments, without the brokers of a metadata topic.

    SQL records a partition before its first segment is in the topic. Only a SQL database that was restored from a
    backup may lack one.
    """
    return (store.sql if isinstance(store, StoreBesideTopic) else store).segments


_OPENING = ("open", "is_there")
_METHODS = ("work_area_key", "check_integrity", "spend_reserve", "copy_to", "close", "__enter__", "__exit__")
_PARTS = ("segments", "leases", "topics", "safety", "identity", "generation", "clock_readings")


@dataclass(frozen=True, slots=True)
class MetadataStoreFactory:
    """Opens MetadataStores of one class. Beside the protocol, the class has two class methods:

    `open(url, clock, *, busy_timeout_ms, create, configs)` opens the store at `url`, and makes what is missing if
    `create`; `is_there(url, configs)` returns whether the store, or a remainder of one, exists. `configs` are the
    options that the settings hand over. Both raise what metadata.sql.store.open_metadata_store raises.

    Two more are optional: `location(url, configs)` returns the store's place for messages, without secrets, and
    `local_file(url, configs)` the file on this machine that the metadata are in, None if there is none.
    """

    name: str
    found: Any

    @classmethod
    def load(cls, class_name: str, class_path: Sequence[Path]) -> Self:
        """Load `class_name`, `package.module.Class`; Kafka's own name stands for ours. Raises as load_class."""
        methods = (*_OPENING, *_METHODS)
        class_name = TOPIC_METADATA_MANAGER if class_name == KAFKAS_METADATA_MANAGER else class_name
        return cls(class_name, load_class(METADATA_MANAGER.name, class_name, class_path, MetadataStore, methods))

    def open(
        self, url: str, clock: Clock, *, busy_timeout_ms: int, create: bool, configs: Mapping[str, str]
    ) -> MetadataStore:
        """Open the store. Raises ConfigurationError as call_own."""

        def opens() -> Any:
            return self.found.open(url, clock, busy_timeout_ms=busy_timeout_ms, create=create, configs=configs)

        store: MetadataStore = call_own(METADATA_MANAGER.name, self.name, opens, parts=(*_PARTS, *_METHODS))
        return store

    def is_there(self, url: str, configs: Mapping[str, str]) -> bool:
        """Return whether the store, or a remainder of one, exists. Raises as `open`."""
        return bool(call_own(METADATA_MANAGER.name, self.name, lambda: self.found.is_there(url, configs)))

    def location(self, url: str, configs: Mapping[str, str]) -> str:
        """Return the store's place for messages, without secrets: by default the URL. Raises as `open`."""
        return str(self._optional("location", url, configs) or SecretUrl(url).without_secrets())

    def local_file(self, url: str, configs: Mapping[str, str]) -> Path | None:
        """Return the file on this machine that the metadata are in; None by default. Raises as `open`."""
        found = self._optional("local_file", url, configs)
        return None if found is None else Path(found)

    def _optional(self, method: str, url: str, configs: Mapping[str, str]) -> Any:
        """Return what the class's `method` returns; None if it has none."""
        called = getattr(self.found, method, None)
        return None if called is None else call_own(METADATA_MANAGER.name, self.name, lambda: called(url, configs))
