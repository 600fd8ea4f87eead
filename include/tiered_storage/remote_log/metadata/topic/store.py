"""The metadata store that has the segments in a topic of Kafka, and all else in a SQL database.

`remote.log.metadata.manager.class.name` names the class, or Kafka's TopicBasedRemoteLogMetadataManager, which stands
for it. `rlmm.config.url` is the SQL database. The topic is opened when segments or partitions are first asked for:
while its brokers are away, the stop of deletions works, and all that needs neither.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Self

from tiered_storage.clock import Clock
from tiered_storage.remote_log.metadata.metadata_store import ClockReading, MetadataStore, RenewedAt
from tiered_storage.remote_log.metadata.sql.clock_readings import SqlClockReadings
from tiered_storage.remote_log.metadata.sql.store import SqlMetadataStore, open_metadata_store
from tiered_storage.remote_log.metadata.topic.cluster.options import TopicOptions
from tiered_storage.remote_log.metadata.topic.segments import TopicRemoteLogMetadataManager
from tiered_storage.remote_log.metadata.topic.topic_state import TopicState


class TopicClockReadings:
    """See ClockReadings: as in SQL, with the newest time of the segments in the topic."""

    def __init__(self, sql: SqlClockReadings, state: TopicState) -> None:
        """Read nothing yet."""
        self._sql = sql
        self._state = state

    def read(self, boot_id: str) -> ClockReading | None:
        """As ClockReadings.read."""
        return self._sql.read(boot_id)

    def latest(self) -> ClockReading | None:
        """As ClockReadings.latest."""
        return self._sql.latest()

    def latest_or_newest(self, renewed_at: RenewedAt) -> ClockReading | None:
        """As ClockReadings.latest_or_newest."""
        return self._sql.latest_or_newest(lambda: self._newest(renewed_at))

    def begin(self, renewed_at: RenewedAt) -> None:
        """As ClockReadings.begin."""
        self._sql.begin(lambda: self._newest(renewed_at))

    def record(self, reading: ClockReading) -> None:
        """As ClockReadings.record."""
        self._sql.record(reading)

    def forget_later_than(self, wall: int) -> None:
        """As ClockReadings.forget_later_than."""
        self._sql.forget_later_than(wall)

    def _newest(self, renewed_at: RenewedAt) -> int | None:
        if self._state.recorded() is None:
            return renewed_at()
        self._state.catch_up()
        found = SqlClockReadings(self._state.cache.database).latest_or_newest(renewed_at)
        return None if found is None else found.wall


class TopicMetadataStore:
    """See MetadataStore."""

    def __init__(self, sql: SqlMetadataStore, state: TopicState) -> None:
        """Take over `sql` and `state`: close them by closing this."""
        self._sql = sql
        self.state = state
        sql.database.guard_writes(state.check_use)
        self.segments = TopicRemoteLogMetadataManager(state, sql)
        self.leases = sql.leases
        self.topics = sql.topics
        self.safety = sql.safety
        self.identity = sql.identity
        self.generation = sql.generation
        self.clock_readings = TopicClockReadings(sql.clock_readings, state)

    @property
    def sql(self) -> SqlMetadataStore:
        """The store of all that is not in the topic."""
        return self._sql

    @property
    def lacks_its_topic(self) -> bool:
        """Whether reading segments would create the topic."""
        return self.state.recorded() is None

    @staticmethod
    def open(
        url: str, clock: Clock, *, busy_timeout_ms: int, create: bool, configs: Mapping[str, str]
    ) -> TopicMetadataStore:
        """Open the SQL store at `url` as open_metadata_store, and read the topic's options in `configs`.

        Raises what open_metadata_store raises, and ConfigurationError for an invalid option.
        """
        options = TopicOptions.of(configs)
        sql = open_metadata_store(url, clock, busy_timeout_ms=busy_timeout_ms, create=create, beside_topic=True)
        return TopicMetadataStore(sql, TopicState(options, sql, busy_timeout_ms))

    @staticmethod
    def is_there(url: str, configs: Mapping[str, str]) -> bool:
        """Return whether the SQL store is there."""
        return SqlMetadataStore.is_there(url, configs)

    @staticmethod
    def location(url: str, configs: Mapping[str, str]) -> str:
        """Return the SQL database's place."""
        return SqlMetadataStore.location(url, configs)

    @staticmethod
    def local_file(url: str, configs: Mapping[str, str]) -> Path | None:
        """Return the SQL database's file."""
        return SqlMetadataStore.local_file(url, configs)

    def work_area_key(self) -> bytes:
        """As MetadataStore.work_area_key."""
        return self._sql.work_area_key()

    def check_integrity(self) -> None:
        """Read the whole SQL store. Damage to the cache is no loss: it is built again."""
        self._sql.check_integrity()

    def spend_reserve(self) -> None:
        """As MetadataStore.spend_reserve."""
        self._sql.spend_reserve()

    def copy_to(self, target: Path) -> None:
        """Write a copy of the SQL store; the topic's replicas are the copies of its records."""
        self._sql.copy_to(target)

    def close(self) -> None:
        """Close the topic's clients, its cache and the database."""
        self.state.close()
        self._sql.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def topic_store(store: MetadataStore) -> TopicMetadataStore | None:
    """Return `store` if its segments are in a metadata topic; None if it has them itself."""
    return store if isinstance(store, TopicMetadataStore) else None
