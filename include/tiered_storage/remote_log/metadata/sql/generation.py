"""The generation of a SQL metadata store: the token that it shares with its object store, and a digest of its
decisions.

One row holds:

    number, token      the generation that the object store is known to carry; number 0: none was published yet
    next_token         the token of generation number + 1, written here before it is published; null: none is under way
    renewal_due        whether another generation must follow that one, for a decision that came after it
    decisions_digest   SHA-256 over every topic's rights and settings, every bad audit result and the stop of deletions
    place              the file that the row was written in: its inode and time of birth, which no copy shares
    backed_up_at       when `metadata backup` last made a copy (ms); null: never

The digest is written in the transaction that changes a decision. A file whose pages come from two points in time, such
as an old database beside a newer write-ahead log, has decisions that do not match it.
"""

from __future__ import annotations

import hashlib
import json

from sqlalchemy import Connection, Row, select, update

from tiered_storage.errors import MetadataCorruptError
from tiered_storage.kafka_log.files.kafka_uuid import random_uuid
from tiered_storage.remote_log.metadata.metadata_store import Generation
from tiered_storage.remote_log.metadata.sql.database.engine import Database
from tiered_storage.remote_log.metadata.sql.database.schema import audit_results, deletion_stop, generation, topics


class SqlGeneration:
    """Reads and changes the generation row. All methods raise MetadataUnavailableError and MetadataCorruptError."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @property
    def where(self) -> str:
        """As MetadataGeneration.where."""
        return self._database.where

    def read(self) -> Generation:
        """As MetadataGeneration.read."""
        with self._database.reading() as connection:
            row = _row(connection, self._database.where)
            # The first published generation records its file, and covers the present decisions.
            is_first = row.number == 0
            return Generation(
                row.number,
                row.token,
                row.next_token,
                is_first or self._database.is_at(row.place),
                is_first or row.decisions_digest == _digest(connection),
            )

    def pending(self) -> tuple[str | None, bool]:
        """As MetadataGeneration.pending."""
        with self._database.reading() as connection:
            row = _row(connection, self._database.where)
            return row.next_token, bool(row.renewal_due)

    def renew(self) -> None:
        """As MetadataGeneration.renew."""
        with self._database.writing() as connection:
            _begin_next(connection, self._database.where)

    def confirm(self, published: Generation) -> None:
        """As MetadataGeneration.confirm."""
        with self._database.writing() as connection:
            row = _row(connection, self._database.where)
            if (row.number, row.next_token) != (published.number - 1, published.token):
                return
            values = {
                "number": published.number,
                "token": published.token,
                "next_token": random_uuid() if row.renewal_due else None,
                "renewal_due": False,
                "place": self._database.place(),
            }
            if row.number == 0:
                values["decisions_digest"] = _digest(connection)
            connection.execute(update(generation).values(**values))

    def claim(self, newest_number: int) -> None:
        """As MetadataGeneration.claim."""
        with self._database.writing() as connection:
            connection.execute(
                update(generation).values(
                    number=newest_number,
                    token="",
                    next_token=random_uuid(),
                    renewal_due=False,
                    decisions_digest=_digest(connection),
                    place=self._database.place(),
                )
            )

    def backed_up_at(self) -> int | None:
        """As MetadataGeneration.backed_up_at."""
        with self._database.reading() as connection:
            found: int | None = _row(connection, self._database.where).backed_up_at
            return found

    def record_backup(self, now: int) -> None:
        """As MetadataGeneration.record_backup."""
        with self._database.writing() as connection:
            connection.execute(update(generation).values(backed_up_at=now))


def record_decision(connection: Connection, where: str) -> None:
    """Make the next generation cover a decision that `connection` just wrote; do nothing if it changed nothing.

    Call it in the transaction of the decision.
    """
    row, digest = _row(connection, where), _digest(connection)
    if row.decisions_digest == digest:
        return
    _begin_next(connection, where)
    connection.execute(update(generation).values(decisions_digest=digest))


def _begin_next(connection: Connection, where: str) -> None:
    # A pending token may be in the store already, so it is never replaced: the next one follows it.
    row = _row(connection, where)
    change = {"next_token": random_uuid()} if row.next_token is None else {"renewal_due": True}
    connection.execute(update(generation).values(**change))


def _row(connection: Connection, where: str) -> Row[tuple[object, ...]]:
    row = connection.execute(select(generation)).one_or_none()
    if row is None:
        raise MetadataCorruptError(
            f"{where}: the generation of the metadata is missing: restore the metadata store from its backup"
        )
    return row


def _digest(connection: Connection) -> str:
    decided = [list(row) for row in connection.execute(select(*_TOPIC_COLUMNS).order_by(*_TOPIC_COLUMNS[:2]))]
    wanting = [list(row) for row in connection.execute(_WANTING)]
    is_stopped = connection.execute(select(deletion_stop.c.id).where(deletion_stop.c.stopped)).first() is not None
    return hashlib.sha256(json.dumps([decided, wanting, is_stopped]).encode()).hexdigest()


_TOPIC_COLUMNS = (
    topics.c.cluster_id,
    topics.c.topic_id,
    topics.c.name,
    topics.c.remote_storage_enable,
    topics.c.local_deletion_allowed,
    topics.c.remote_deletion_allowed,
    topics.c.properties,
)
_WANTING = (
    select(audit_results.c.cluster_id, audit_results.c.topic_id, audit_results.c.deep)
    .where(audit_results.c.anomalies > 0)
    .order_by(audit_results.c.cluster_id, audit_results.c.topic_id, audit_results.c.deep)
)
