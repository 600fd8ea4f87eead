"""The segments of a metadata topic in a SQLite file on the local disk, which the processes of a host share.

The tables of segments are those of a SQL metadata store, so look-ups and listings are the same. Beside them:

    consumed            of each metadata partition, the offset of the next record, and the leader epoch of the last
                        batch that was read; written with what records changed
    skipped             the records that changed nothing, and why
    partition_deletions the last state of a partition's deletion that the topic has
    cached_topic        one row: the topic that the file caches, and the versions of its tables as one number

The file holds nothing that the topic and the SQL store do not. If it is missing, damaged or of another topic, it is
built again.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sqlalchemy import BigInteger, Column, Connection, Integer, MetaData, String, Table, Text, func, select

from tiered_storage.errors import MetadataCorruptError, MetadataUnavailableError, RemoteMetadataError
from tiered_storage.remote_log.metadata.sql.database.engine import Database, insert_missing, insert_or_replace
from tiered_storage.remote_log.metadata.sql.database.schema import SCHEMA_VERSION
from tiered_storage.remote_log.metadata.sql.database.schema import metadata as sql_tables
from tiered_storage.remote_log.metadata.sql.database.sqlite_database import SqliteDatabase, open_sqlite
from tiered_storage.remote_log.metadata.sql.topic_segments import MetadataTopicId

CACHE_VERSION: Final = 2
"""The version of the tables here; those of segments have SCHEMA_VERSION."""

_tables = MetaData()

consumed = Table(
    "consumed",
    _tables,
    Column("metadata_partition", Integer, primary_key=True, autoincrement=False),
    Column("next_offset", BigInteger, nullable=False),
    Column("leader_epoch", Integer),
)

skipped = Table(
    "skipped",
    _tables,
    Column("metadata_partition", Integer, primary_key=True, autoincrement=False),
    Column("record_offset", BigInteger, primary_key=True, autoincrement=False),
    Column("reason", Text, nullable=False),
)

cached_topic = Table(
    "cached_topic",
    _tables,
    Column("topic_id", String, primary_key=True),
    Column("partitions", Integer, nullable=False),
    Column("version", Integer, nullable=False),
)

_BESIDE = ("-wal", "-shm", "-journal")


@dataclass(frozen=True, slots=True)
class SkippedRecord:
    """A record of the metadata topic that changed nothing, and why."""

    metadata_partition: int
    offset: int
    reason: str


class SegmentCache:
    """The cache of `topic` in the folder `directory`. A write waits `busy_timeout_ms` for its turn."""

    def __init__(self, directory: Path, topic: MetadataTopicId, busy_timeout_ms: int) -> None:
        """Open or build the file."""
        self.path = directory / f"{topic.topic_id}.db"
        self._topic = topic
        self._busy_timeout_ms = busy_timeout_ms
        self.database = self._usable()

    def consumed(self) -> Mapping[int, int]:
        """Return the offset of the next record of each metadata partition that was read."""
        with self.database.reading() as connection:
            return next_offsets(connection)

    def consumed_epochs(self) -> Mapping[int, tuple[int, int | None]]:
        """Return `consumed`, each with the leader epoch of the last batch; None: it is unknown."""
        with self.database.reading() as connection:
            rows = connection.execute(select(consumed)).all()
        return {row.metadata_partition: (row.next_offset, row.leader_epoch) for row in rows}

    def skipped(self, most: int | None = None) -> Sequence[SkippedRecord]:
        """Return the records that changed nothing, by partition and offset; with `most`, the first of them."""
        ordered = select(skipped).order_by(skipped.c.metadata_partition, skipped.c.record_offset).limit(most)
        with self.database.reading() as connection:
            return [SkippedRecord(*row) for row in connection.execute(ordered)]

    def skipped_counts(self) -> Mapping[int, int]:
        """Return how many records of each metadata partition changed nothing, if there are any."""
        counted = select(skipped.c.metadata_partition, func.count()).group_by(skipped.c.metadata_partition)
        with self.database.reading() as connection:
            return {row.metadata_partition: row[1] for row in connection.execute(counted)}

    def skipped_count(self) -> int:
        """Return how many records changed nothing."""
        return sum(self.skipped_counts().values())

    def is_unusable(self, error: RemoteMetadataError) -> bool:
        """Return whether `error` means that this file is damaged, or that another one is in its place."""
        return str(error).startswith(str(self.path)) and (isinstance(error, MetadataCorruptError) or self._is_replaced)

    def rebuild(self) -> None:
        """Use the file that is there now; build it again if it is the one that was open, since that one is damaged."""
        is_replaced = self._is_replaced
        self.database.close()
        if not is_replaced:
            with self._locked():
                self._remove()
        self.database = self._usable()

    def close(self) -> None:
        """Close the file."""
        self.database.close()

    @property
    def _is_replaced(self) -> bool:
        try:
            self.database.check_place()
        except MetadataUnavailableError:
            return True
        return False

    def _usable(self) -> Database:
        """Open the file; build it again if it is damaged, or is of another topic or version."""
        with self._locked():
            with suppress(MetadataCorruptError):
                database = self._opened()
                try:
                    if _is_of(database, self._topic):
                        return database
                except MetadataCorruptError:
                    database.close()
                    raise
                database.close()
            self._remove()
            return self._opened()

    def _opened(self) -> SqliteDatabase:
        return open_sqlite(self.path, self._busy_timeout_ms, _filled_for(self._topic))

    def _remove(self) -> None:
        for suffix in ("", *_BESIDE):
            self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep other processes from removing the file meanwhile."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(
            self.path.with_name(f"{self.path.name}-lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
        )
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def next_offsets(connection: Connection) -> dict[int, int]:
    """Return the offset of the next record of each metadata partition that was read."""
    return {row.metadata_partition: row.next_offset for row in connection.execute(select(consumed))}


def next_offset_of(connection: Connection, metadata_partition: int) -> int:
    """Return the offset of the next record of a metadata partition, 0 before the first."""
    wanted = select(consumed.c.next_offset).where(consumed.c.metadata_partition == metadata_partition)
    return connection.scalar(wanted) or 0


def write_next_offset(
    connection: Connection, metadata_partition: int, offset: int, leader_epoch: int | None = None
) -> None:
    """Record how far a metadata partition was consumed, and the leader epoch of the last batch; None: it is unknown."""
    row = {"metadata_partition": metadata_partition, "next_offset": offset, "leader_epoch": leader_epoch}
    insert_or_replace(connection, consumed, [row])


def write_skipped(connection: Connection, found: Sequence[SkippedRecord]) -> None:
    """Record records that changed nothing."""
    rows = [
        {"metadata_partition": each.metadata_partition, "record_offset": each.offset, "reason": each.reason}
        for each in found
    ]
    insert_missing(connection, skipped, rows)


def why_skipped(connection: Connection, metadata_partition: int, offsets: Sequence[int]) -> dict[int, str]:
    """Return, of those of `offsets` whose records changed nothing, the reason."""
    wanted = select(skipped.c.record_offset, skipped.c.reason).where(
        skipped.c.metadata_partition == metadata_partition,
        skipped.c.record_offset >= min(offsets),
        skipped.c.record_offset <= max(offsets),
    )
    return {row.record_offset: row.reason for row in connection.execute(wanted)}


def _filled_for(topic: MetadataTopicId) -> Callable[[Database], None]:
    def fill(database: Database) -> None:
        with database.writing() as connection:
            sql_tables.create_all(connection)
            _tables.create_all(connection)
            row = {"topic_id": topic.topic_id, "partitions": topic.partitions, "version": _version()}
            insert_missing(connection, cached_topic, [row])

    return fill


def _is_of(database: Database, topic: MetadataTopicId) -> bool:
    with database.reading() as connection:
        if not connection.dialect.has_table(connection, cached_topic.name):
            return False
        rows = connection.execute(select(cached_topic)).all()
    return [tuple(row) for row in rows] == [(topic.topic_id, topic.partitions, _version())]


def _version() -> int:
    """Return the version of all tables: a file of another version is built again."""
    return 10_000 * CACHE_VERSION + int(SCHEMA_VERSION)
