"""The metadata store in a SQL database: opening it, and its parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Self

from sqlalchemy import Connection, select, update

from tiered_storage.clock import Clock
from tiered_storage.errors import MetadataCorruptError, MetadataMissingError, StoreMismatchError
from tiered_storage.kafka_log.files.kafka_uuid import random_uuid
from tiered_storage.remote_log.metadata.sql.clock_readings import SqlClockReadings
from tiered_storage.remote_log.metadata.sql.database.database_kinds import database_kind, local_file, no_metadata
from tiered_storage.remote_log.metadata.sql.database.engine import Database, insert_missing
from tiered_storage.remote_log.metadata.sql.database.schema import store_identity, work_area_key
from tiered_storage.remote_log.metadata.sql.database.schema_migrations import bring_up_to_date, schema_version, upgrade
from tiered_storage.remote_log.metadata.sql.generation import SqlGeneration
from tiered_storage.remote_log.metadata.sql.leases import SqlLeases
from tiered_storage.remote_log.metadata.sql.safety import SqlSafety
from tiered_storage.remote_log.metadata.sql.segments import SqlRemoteLogMetadataManager
from tiered_storage.remote_log.metadata.sql.topics import SqlTopics
from tiered_storage.settings.own_managers import TOPIC_METADATA_MANAGER


class SqlIdentity:
    """See MetadataIdentity."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @property
    def metadata_uuid(self) -> str:
        """As MetadataIdentity.metadata_uuid."""
        with self._database.reading() as connection:
            return self._read(connection)[0]

    def bound_store_uuid(self) -> str | None:
        """As MetadataIdentity.bound_store_uuid."""
        with self._database.reading() as connection:
            return self._read(connection)[1]

    def bind_store(self, uuid: str) -> None:
        """As MetadataIdentity.bind_store."""
        with self._database.writing() as connection:
            own, bound = self._read(connection)
            if bound == uuid:
                return
            if bound is not None:
                raise StoreMismatchError(
                    f"{self._database.where}: metadata store {own} belongs to object store {bound}, not to {uuid}: "
                    "correct rsm.config.url or rlmm.config.url so that they belong together; nothing is deleted until "
                    "they match"
                )
            connection.execute(update(store_identity).values(bound_store_uuid=uuid))

    def _read(self, connection: Connection) -> tuple[str, str | None]:
        row = connection.execute(select(store_identity)).one_or_none()
        if row is None:
            raise MetadataCorruptError(
                f"{self._database.where}: the metadata store's own UUID is missing: restore the store from its backup"
            )
        return row.metadata_uuid, row.bound_store_uuid


_MARKS = select(store_identity.c.moved_to, store_identity.c.arrives_from, store_identity.c.metadata_topic)


def give_identity(connection: Connection, metadata_uuid: str) -> None:
    """Give a new metadata store its UUID; an existing one stays."""
    insert_missing(connection, store_identity, [{"id": 1, "metadata_uuid": metadata_uuid, "bound_store_uuid": None}])


class SqlMetadataStore:
    """See MetadataStore."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self.segments = SqlRemoteLogMetadataManager(database)
        self.leases = SqlLeases(database, clock)
        self.topics = SqlTopics(database)
        self.safety = SqlSafety(database, clock)
        self.identity = SqlIdentity(database)
        self.generation = SqlGeneration(database)
        self.clock_readings = SqlClockReadings(database)

    @property
    def database(self) -> Database:
        """The open database."""
        return self._database

    @staticmethod
    def open(
        url: str, clock: Clock, *, busy_timeout_ms: int, create: bool, configs: Mapping[str, str]
    ) -> SqlMetadataStore:
        """As open_metadata_store; all its options are settings of their own, so there are no `configs`."""
        del configs
        return open_metadata_store(url, clock, busy_timeout_ms=busy_timeout_ms, create=create)

    @staticmethod
    def is_there(url: str, configs: Mapping[str, str]) -> bool:
        """See the function is_there."""
        del configs
        return is_there(url)

    @staticmethod
    def location(url: str, configs: Mapping[str, str]) -> str:
        """Return the database's place for messages, without secrets. Raises ConfigurationError."""
        del configs
        return database_kind(url).where(url)

    @staticmethod
    def local_file(url: str, configs: Mapping[str, str]) -> Path | None:
        """Return the file of a SQLite database; None for one on a server. Raises ConfigurationError."""
        del configs
        return local_file(url)

    def work_area_key(self) -> bytes:
        """Return the key that signs the messages in the work area; it never leaves this process."""
        with self._database.reading() as connection:
            key: bytes | None = connection.scalars(select(work_area_key.c.key)).one_or_none()
        if key is None:
            raise MetadataCorruptError(
                f"{self._database.where}: the key that signs the work area's messages is missing: restore the metadata "
                "from their backup"
            )
        return key

    def check_integrity(self) -> None:
        """Read the whole store; raises MetadataCorruptError if the database's structure is broken."""
        self._database.check_integrity()

    def spend_reserve(self) -> None:
        """Let further writes use the room reserved for deletions and for stopping them."""
        self._database.spend_reserve()

    def copy_to(self, target: Path) -> None:
        """Write a copy of the committed content to the new file `target`; see Database.copy_to."""
        self._database.copy_to(target)

    def close(self) -> None:
        """Close the connections to the database."""
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_metadata_store(
    url: str,
    clock: Clock,
    *,
    busy_timeout_ms: int = 30_000,
    create: bool = True,
    new_uuid: Callable[[], str] = random_uuid,
    beside_topic: bool = False,
) -> SqlMetadataStore:
    """Open the metadata store at `url` (sqlite:///path/of/a/file, postgresql://user@host/database), at this version's
    schema.

    With `create`, create what is missing: directories, the file, its tables. An older schema is migrated; two processes
    may do either at once. A write waits `busy_timeout_ms` for other processes, and for a server that is away.
    `beside_topic`: the caller has the segments in a metadata topic.

    Raises MetadataMissingError without `create` if the store is missing, if it moved elsewhere, and, unless
    `beside_topic`, if its segments are in a metadata topic; ConfigurationError
    for an invalid URL; MetadataUnavailableError (retriable) for a locked store or a server out of reach; and
    MetadataCorruptError for a damaged one, another program's database, or a store of a later version: the store is then
    left as it is.
    """
    kind = database_kind(url)

    def fill(database: Database) -> None:
        if not create:
            raise no_metadata(database.where)
        with database.writing() as connection:
            if schema_version(connection) is None:
                upgrade(connection, database.where)
                give_identity(connection, new_uuid())

    if not create and not kind.is_there(url):
        raise no_metadata(kind.where(url))
    database = kind.opens(url, busy_timeout_ms, fill)
    try:
        bring_up_to_date(database)
        database.prepare()
        database.guard_writes(lambda connection: ensure_in_use(connection, database.where, beside_topic=beside_topic))
        with database.reading() as connection:
            ensure_in_use(connection, database.where, beside_topic=beside_topic)
    except BaseException:
        database.close()
        raise
    return SqlMetadataStore(database, clock)


def is_there(url: str) -> bool:
    """Return whether the metadata store at `url`, or a remainder of one, exists. Raises what looking raises."""
    return database_kind(url).is_there(url)


def ensure_in_use(connection: Connection, where: str, *, beside_topic: bool = False) -> None:
    """Raise MetadataMissingError if these metadata moved elsewhere, or a move here has not ended.

    Also, unless `beside_topic`, if the segments are in a metadata topic.
    """
    row = connection.execute(_MARKS).one_or_none()
    if row is None:
        return
    if row.moved_to is not None:
        raise MetadataMissingError(
            f"{where}: these metadata moved to {row.moved_to}: set rlmm.config.url to that, and start every process "
            "again"
        )
    if row.arrives_from is not None:
        raise MetadataMissingError(
            f"{where}: the move of these metadata from {row.arrives_from} has not ended: run 'tiered-storage metadata "
            "move' again"
        )
    if row.metadata_topic is not None and not beside_topic:
        raise MetadataMissingError(
            f"{where}: the segments are in a metadata topic of Kafka: set remote.log.metadata.manager.class.name to "
            f"{TOPIC_METADATA_MANAGER}, and start every process again"
        )
