"""The metadata store in a SQL database: opening it, and its parts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Self

from sqlalchemy import URL, Connection, exc, make_url, select, update

from tiered_storage.clock import Clock
from tiered_storage.errors import ConfigurationError, MetadataCorruptError, MetadataMissingError, StoreMismatchError
from tiered_storage.kafka_log.files.kafka_uuid import random_uuid
from tiered_storage.remote_log.metadata.sql.clock_reading import SqlClockReading
from tiered_storage.remote_log.metadata.sql.database.engine import Database, insert_missing
from tiered_storage.remote_log.metadata.sql.database.schema import store_identity, work_area_key
from tiered_storage.remote_log.metadata.sql.database.schema_migrations import bring_up_to_date, upgrade
from tiered_storage.remote_log.metadata.sql.database.sqlite_database import open_sqlite
from tiered_storage.remote_log.metadata.sql.generation import SqlGeneration
from tiered_storage.remote_log.metadata.sql.leases import SqlLeases
from tiered_storage.remote_log.metadata.sql.safety import SqlSafety
from tiered_storage.remote_log.metadata.sql.segments import SqlRemoteLogMetadataManager
from tiered_storage.remote_log.metadata.sql.topics import SqlTopics


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
        # Locked on a database with row locks, so that two cannot bind at once.
        row = connection.execute(select(store_identity).with_for_update()).one_or_none()
        if row is None:
            raise MetadataCorruptError(
                f"{self._database.where}: the metadata store's own UUID is missing: restore the store from its backup"
            )
        return row.metadata_uuid, row.bound_store_uuid


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
        self.clock_reading = SqlClockReading(database)

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
) -> SqlMetadataStore:
    """Open the metadata store at `url`, sqlite:///path/of/a/file, at this version's schema.

    With `create`, create what is missing: directories, the file, its tables. An older schema is migrated; two processes
    may do either at once. A write waits `busy_timeout_ms` for other processes.

    Raises MetadataMissingError without `create` if the store is missing; ConfigurationError for an invalid URL;
    MetadataUnavailableError (retriable) for a locked store; and MetadataCorruptError for a damaged one, another
    program's database, or a store of a later version: the file is then left as it is.
    """
    path = sqlite_path(url)

    def fill(database: Database) -> None:
        with database.writing() as connection:
            upgrade(connection, str(path))
            give_identity(connection, new_uuid())

    if not create and not is_there(url):
        raise MetadataMissingError(
            f"{path}: there are no metadata: correct rlmm.config.url, put their backup back with 'tiered-storage "
            "metadata restore', or rebuild them with 'tiered-storage rebuild-metadata'. If nothing was ever copied, "
            "'tiered-storage topics enable' creates them"
        )
    database = open_sqlite(path, busy_timeout_ms, fill)
    try:
        bring_up_to_date(database)
        # Only now: a foreign file must stay as it is. A restored backup may have lost its mode.
        database.use_write_ahead_log()
        database.keep_reserve()
    except BaseException:
        database.close()
        raise
    return SqlMetadataStore(database, clock)


def is_there(url: str) -> bool:
    """Return whether the metadata store at `url`, or a remainder of one, exists. Raises as sqlite_path."""
    path = sqlite_path(url)
    return path.exists() or path.with_name(f"{path.name}-wal").exists()


def sqlite_path(url: str) -> Path:
    """Return the file in `url`, sqlite:///path/of/a/file. Raises ConfigurationError for another URL."""
    parsed = _parsed(url)
    shown = parsed.render_as_string(hide_password=True)
    if parsed.drivername != "sqlite":
        raise ConfigurationError(f"{shown}: metadata stores are kept in SQLite: write sqlite:///path/of/a/file")
    if parsed.database in (None, "", ":memory:") or parsed.host or parsed.query:
        raise ConfigurationError(
            f"{shown}: does not name a file that all processes share: write sqlite:///path/of/a/file and nothing more"
        )
    return Path(str(parsed.database)).expanduser().absolute()


def _parsed(url: str) -> URL:
    try:
        return make_url(url)
    except exc.ArgumentError as error:
        # Not shown: an invalid URL may still contain a password.
        raise ConfigurationError("the metadata store's URL is invalid: write it as sqlite:///path/of/a/file") from error
