"""Migrate a metadata store to the schema of this version of the library."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path

from sqlalchemy import ColumnClause, Connection, Engine, String, column, exc, inspect, select, table

from tiered_storage.errors import MetadataCorruptError
from tiered_storage.remote_log.metadata.sql.database.engine import Database
from tiered_storage.remote_log.metadata.sql.database.schema import SCHEMA_VERSION, VERSION_TABLE

_ALEMBIC = threading.Lock()
"""Alembic keeps state in globals: one thread at a time."""

REVISIONS = Path(__file__).parent / "migrations"

_log = logging.getLogger(__name__)


def bring_up_to_date(database: Database, version: str = SCHEMA_VERSION, revisions: Path = REVISIONS) -> None:
    """Migrate a store to `version`, in one transaction; if it is there already, this costs a single read.

    A copy of the old store is kept beside it, and a warning in the log names the copy. Two processes may call this at
    once: one of them migrates. Raises MetadataCorruptError if it is not a metadata store, or of a later version.
    """
    with database.reading() as connection:
        found = schema_version(connection)
    if found == version:
        return
    with database.writing() as connection:
        database.keep_transaction(connection)
        found = schema_version(connection)
        if found is None:
            raise MetadataCorruptError(
                f"{database.where}: is a database, but not a metadata store of the remote log: set another place, "
                "or restore the store from its backup"
            )
        if found == version:
            return
        # No other process writes during this transaction: the copy equals the migrated tables.
        kept = upgrade(connection, database.where, revisions, lambda: database.keep_copy(f"before-{version}"))
    message = "%s: migrated from schema version %s to %s; %s is a copy of the store from before"
    _log.warning(message, database.where, found, version, kept)


def later_version(where: str, found: str, newest: str) -> MetadataCorruptError:
    """Return the error for a store of schema version `found`, where this code knows them up to `newest`."""
    return MetadataCorruptError(
        f"{where}: has schema version {found}, but this process supports only up to {newest}: a later version of "
        "Remote Log wrote it: end this process and upgrade its installation; the metadata are intact, so do not "
        "restore a backup"
    )


def migrated_since(engine: Engine, where: str) -> MetadataCorruptError | None:
    """Return the error for a store that another process migrated past what this code supports; None for any other."""
    try:
        with engine.connect() as connection:
            found = schema_version(connection)
    except exc.SQLAlchemyError:
        return None
    # An older version means that a migration is under way.
    return later_version(where, found, SCHEMA_VERSION) if found is not None and found > SCHEMA_VERSION else None


def schema_version(connection: Connection) -> str | None:
    """Return the version of the tables; None if they are not ours."""
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    version: ColumnClause[str] = column("version_num", String)
    versions = connection.scalars(select(version).select_from(table(VERSION_TABLE))).all()
    return versions[0] if len(versions) == 1 else None


def upgrade(connection: Connection, where: str, revisions: Path = REVISIONS, before: Callable[[], str] = str) -> str:
    """Run the missing revisions, inside the transaction of `connection`; return the result of `before`.

    `before` is called when it is certain that they can be run, and before the first of them.
    Raises MetadataCorruptError if the store's version is unknown: a later one wrote it.
    """
    # Imported here: loading Alembic is slow, and a store is nearly always up to date.
    from alembic import command  # noqa: PLC0415
    from alembic.config import Config  # noqa: PLC0415
    from alembic.script import ScriptDirectory  # noqa: PLC0415

    configuration = Config(attributes={"connection": connection})
    configuration.set_main_option("script_location", str(revisions).replace("%", "%%"))
    configuration.set_main_option("path_separator", "os")
    scripts = ScriptDirectory.from_config(configuration)
    found = schema_version(connection)
    if found is not None and found not in {script.revision for script in scripts.walk_revisions()}:
        raise later_version(where, found, str(scripts.get_current_head()))
    result = before()
    with _ALEMBIC:
        command.upgrade(configuration, "head")
    return result
