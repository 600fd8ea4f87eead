"""Fill a database with the metadata of another one: to restore a backup, to rebuild, and to move.

A move may be repeated until it ends. Whenever it breaks off, at most one of both databases can be used:

    1. lock the source for writing; nobody may hold a lease
    2. fill the target, marked as arriving, in one transaction, and compare it with the source row by row
    3. mark the source as moved, and unlock it
    4. remove the target's mark
"""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import Connection, Row, select, update

from tiered_storage.clock import Clock, as_date
from tiered_storage.errors import ConfigurationError, LeaseHeldError
from tiered_storage.remote_log.metadata.sql.database.database_kinds import database_kind, no_metadata
from tiered_storage.remote_log.metadata.sql.database.engine import Database, insert_missing
from tiered_storage.remote_log.metadata.sql.database.row_copies import copy_rows, ensure_same_rows
from tiered_storage.remote_log.metadata.sql.database.schema import generation, leases, store_identity
from tiered_storage.remote_log.metadata.sql.database.schema_migrations import bring_up_to_date, schema_version, upgrade


def fill_database(url: str, source: Database, busy_timeout_ms: int, *, is_own_place: bool) -> None:
    """Fill the database at `url`, which must have no metadata store, with the rows of `source`, in one transaction.

    Unless it `is_own_place`, the new database has a copy of the metadata of another place, which changes nothing until
    a person lets it take over. Raises ConfigurationError if there is a metadata store, and what both databases raise.
    """
    where = ensure_no_metadata(url)

    def fill(target: Database) -> None:
        with source.reading() as rows, target.writing() as written:
            if schema_version(written) is not None:
                raise _is_there(where)
            upgrade(written, where)
            copy_rows(rows, written)
            ensure_same_rows(rows, written, where)

    with database_kind(url).opens(url, busy_timeout_ms, fill) as target:
        if is_own_place:
            _settle(source, target)


def ensure_no_metadata(url: str) -> str:
    """Return the name of the database at `url`. Raises ConfigurationError if it has a metadata store."""
    where = database_kind(url).where(url)
    if database_kind(url).is_there(url):
        raise _is_there(where)
    return where


def move_metadata(
    source_url: str, target_url: str, clock: Clock, busy_timeout_ms: int, check: Callable[[Database], None]
) -> tuple[str, str]:
    """Move all metadata to another database; return the names of both. Every process has to be started again, with the
    new URL.

    Before anything moves, `check` may refuse the source. Repeated after its end, a move does nothing.
    Raises ConfigurationError if the target has other metadata or is in use,
    MetadataMissingError if the source has none, LeaseHeldError while anybody works on a partition, and what both
    databases raise.
    """
    where = database_kind(source_url).where(source_url)
    if where == database_kind(target_url).where(target_url):
        raise ConfigurationError(f"{where}: has these metadata already: name another database to move them to")
    if not database_kind(source_url).is_there(source_url):
        raise no_metadata(where)

    with database_kind(source_url).opens(source_url, busy_timeout_ms, _refuse_to_create) as source:
        bring_up_to_date(source)
        source.prepare()
        with source.reading() as connection:
            identity = _identity(connection)
        if identity.arrives_from is not None:
            raise ConfigurationError(
                f"{where}: the move of these metadata from {identity.arrives_from} has not ended: end that one first"
            )

        def fill(target: Database) -> None:
            with target.writing() as written:
                if schema_version(written) is None:
                    upgrade(written, target.where)
                    row = {"id": 1, "metadata_uuid": identity.metadata_uuid, "arrives_from": where}
                    insert_missing(written, store_identity, [row])

        with database_kind(target_url).opens(target_url, busy_timeout_ms, fill) as target:
            bring_up_to_date(target)
            target.prepare()
            if identity.moved_to is None:
                check(source)
                _fill_and_mark(source, target, clock)
            elif identity.moved_to != target.where:
                raise ConfigurationError(f"{where}: these metadata moved to {identity.moved_to}: move them from there")
            _settle(source, target)
            return where, target.where


def _fill_and_mark(source: Database, target: Database, clock: Clock) -> None:
    with source.writing() as locked:
        source.keep_transaction(locked)
        ensure_free(locked, clock(), source.where)
        with target.writing() as written:
            _ensure_of(written, _identity(locked), target.where)
            copy_rows(locked, written)
            written.execute(update(store_identity).values(moved_to=None, arrives_from=source.where))
        with target.reading() as found:
            ensure_same_rows(locked, found, target.where)
        locked.execute(update(store_identity).values(moved_to=target.where))


def _settle(source: Database, target: Database) -> None:
    """Let the target be used. If the source was the metadata's own place, not a copy, the target is that place now."""
    with source.reading() as connection:
        is_own_place = source.is_at(connection.scalar(select(generation.c.place)))
    place = target.place()
    with target.writing() as connection:
        if is_own_place:
            connection.execute(update(generation).values(place=place))
        connection.execute(update(store_identity).values(arrives_from=None))


def ensure_free(connection: Connection, now: int, where: str) -> None:
    """Raise LeaseHeldError if anybody works on a partition at `now` (ms); `where` is for messages."""
    held = connection.execute(select(leases).where(leases.c.expires_at > now).order_by(leases.c.expires_at)).all()
    if held:
        last = held[-1]
        raise LeaseHeldError(
            f"{where}: {last.owner} works on partition {last.partition} of topic {last.topic_id} until "
            f"{as_date(last.expires_at)} or longer, and {len(held) - 1} more leases are held: wait for them to end "
            "('tiered-storage leases' lists them), then try again"
        )


def _ensure_of(connection: Connection, source: Row[tuple[object, ...]], where: str) -> None:
    """Raise ConfigurationError unless the target has nothing but what an earlier move of these metadata left."""
    found = _identity(connection)
    if found.metadata_uuid != source.metadata_uuid:
        raise ConfigurationError(
            f"{where}: has other metadata, {found.metadata_uuid}: name an empty database, or remove those first"
        )
    if found.moved_to is None and found.arrives_from is None:
        raise ConfigurationError(
            f"{where}: has these metadata too, and they are in use: was a backup restored there? Remove the one that "
            "is outdated ('tiered-storage doctor' reports which)"
        )


def _identity(connection: Connection) -> Row[tuple[object, ...]]:
    return connection.execute(select(store_identity)).one()


def _refuse_to_create(target: Database) -> None:
    raise no_metadata(target.where)


def _is_there(where: str) -> ConfigurationError:
    return ConfigurationError(
        f"{where}: has a metadata store, which is never overwritten: name an empty database, or another schema by "
        "?options=-csearch_path%3Dname, or drop its tables first"
    )
