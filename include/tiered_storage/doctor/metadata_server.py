"""Check the PostgreSQL server of the metadata: version, rights, time-outs, durability, encryption, clock."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sqlalchemy import Connection, RowMapping, text

from tiered_storage.clock import Clock, as_date
from tiered_storage.doctor.check import Check, note, ok, wrong
from tiered_storage.remote_log.metadata.sql.database.postgres_database import OLDEST_SERVER, PostgresDatabase
from tiered_storage.remote_log.metadata.sql.database.schema import VERSION_TABLE, metadata
from tiered_storage.settings.settings import Settings

_NAME = "metadata"

_FACTS = """
SELECT current_setting('server_version_num')::int AS version,
       current_setting('server_version') AS shown_version,
       current_setting('server_encoding') AS encoding,
       pg_is_in_recovery() AS is_replica,
       current_setting('transaction_read_only') = 'on' AND NOT pg_is_in_recovery() AS is_read_only,
       current_setting('fsync') AS fsync,
       current_setting('synchronous_commit') AS synchronous_commit,
       current_setting('full_page_writes') AS full_page_writes,
       (SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()) AS is_encrypted,
       inet_client_addr() IS NULL OR inet_client_addr() = inet_server_addr() AS is_local,
       (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now
"""
_TIMEOUTS = """
SELECT name, setting::bigint AS ms FROM pg_settings
WHERE name IN ('statement_timeout', 'lock_timeout', 'idle_in_transaction_session_timeout') ORDER BY name
"""
_RIGHTS = ("SELECT", "INSERT", "UPDATE", "DELETE")


def check_server(database: PostgresDatabase, settings: Settings, clock: Clock) -> Iterator[Check]:
    """Yield findings on the server. Raises what reading it raises."""
    with database.looking() as connection:
        before = clock()
        facts = connection.execute(text(_FACTS)).mappings().one()
        after = clock()
        timeouts = {row.name: row.ms for row in connection.execute(text(_TIMEOUTS))}
        missing = _missing_rights(connection)
    where = database.where
    yield from _check_kind(facts, where)
    if missing:
        yield wrong(_NAME, f"{where}: this user lacks rights: {', '.join(missing)}", "grant them, or change the owner")
    for name, ms in timeouts.items():
        if ms == 0:
            message = f"{where}: {name} is off for this user: a statement that hangs stops every run"
            yield wrong(_NAME, message, "remove it from the options of rlmm.config.url")
    if facts["fsync"] == "off" or facts["full_page_writes"] == "off" or facts["synchronous_commit"] == "off":
        message = f"{where}: fsync, full_page_writes or synchronous_commit is off: a crash may lose what was decided"
        yield wrong(_NAME, message, "switch them on")
    if not (facts["is_encrypted"] or facts["is_local"]):
        advice = "add ?sslmode=verify-full&sslrootcert=FILE to rlmm.config.url"
        yield note(_NAME, f"{where}: the connection is not encrypted", advice)
    yield from _check_clock(facts["now"], (before, after), settings.clock_max_skew_ms, where)


def _check_kind(facts: RowMapping, where: str) -> Iterator[Check]:
    if facts["version"] < OLDEST_SERVER:
        message = f"{where}: the server is PostgreSQL {facts['shown_version']}"
        yield wrong(_NAME, message, f"use PostgreSQL {OLDEST_SERVER // 10_000} or later")
    else:
        yield ok(_NAME, f"{where}: the server is PostgreSQL {facts['shown_version']}")
    if facts["encoding"] != "UTF8":
        yield wrong(_NAME, f"{where}: the database has encoding {facts['encoding']}", "create one with encoding UTF8")
    if facts["is_replica"]:
        yield wrong(_NAME, f"{where}: the server is a read-only replica", "name the primary server in rlmm.config.url")
    elif facts["is_read_only"]:
        yield wrong(_NAME, f"{where}: transactions are read-only by default", "look at default_transaction_read_only")


def _missing_rights(connection: Connection) -> list[str]:
    statement = text(
        "SELECT tablename, right_ FROM pg_tables, unnest(CAST(:rights AS text[])) AS right_ "
        "WHERE schemaname = current_schema() AND tablename = ANY(:tables) "
        "AND NOT has_table_privilege(quote_ident(schemaname) || '.' || quote_ident(tablename), right_) ORDER BY 1, 2"
    )
    values: dict[str, Any] = {"rights": list(_RIGHTS), "tables": [*metadata.tables, VERSION_TABLE]}
    found = [f"{right} on {table}" for table, right in connection.execute(statement, values)]
    is_any_there = connection.scalar(text("SELECT to_regclass(:name) IS NOT NULL"), {"name": VERSION_TABLE})
    may_create = connection.scalar(text("SELECT coalesce(has_schema_privilege(current_schema(), 'CREATE'), false)"))
    return found if may_create or is_any_there else [*found, "CREATE in the first schema of search_path"]


def _check_clock(now: int, around: tuple[int, int], skew_ms: int, where: str) -> Iterator[Check]:
    before, after = around
    if before - skew_ms <= now <= after + skew_ms:
        yield ok(_NAME, f"{where}: the server's clock agrees with this machine's")
        return
    message = f"{where}: the server's clock shows {as_date(now)}, and this machine's {as_date(after)}"
    yield wrong(
        _NAME,
        f"{message}, more than clock.max.skew.ms ({skew_ms}) apart",
        "set both clocks by NTP: leases expire by the clocks of the machines that hold them",
    )
