"""Connections to a PostgreSQL server, each call with a time limit.

The server cancels a statement after statement_timeout. A server that hangs does not, and its host still answers TCP, so
the client would wait for ever. So the client gives up the connection a little after that time.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import psycopg
from psycopg.abc import RV, PQGen
from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.pool import QueuePool

STATEMENT_TIMEOUT_MS = 60_000
"""How long one statement may take, and how long a transaction may do nothing; longer than any of ours."""

LONGEST_STATEMENT_MS = 3_600_000
"""How long one statement may take that copies or migrates a whole table."""

MARGIN_MS = 10_000
"""How much longer the client waits, for the server to cancel the statement and report it."""

_SESSION_LIMIT = "SELECT (extract(epoch FROM current_setting('statement_timeout')::interval) * 1000)::bigint"


class GarbledAnswerError(psycopg.OperationalError):
    """An answer of the server that is not text, or has a value of another type."""

    sqlstate = "08P01"


class _CheckedCursor(psycopg.Cursor[Any]):
    """A cursor that closes its connection if an answer cannot be decoded: the rest of it may be wrong too."""

    @property
    def description(self) -> list[psycopg.Column] | None:
        """As psycopg's. Raises GarbledAnswerError for a name that is not text."""
        with self._decoding():
            return super().description

    def fetchone(self) -> Any:
        """As psycopg's. Raises GarbledAnswerError for a value that does not have its type."""
        with self._decoding():
            return super().fetchone()

    def fetchmany(self, size: int = 0) -> list[Any]:
        """As fetchone."""
        with self._decoding():
            return super().fetchmany(size)

    def fetchall(self) -> list[Any]:
        """As fetchone."""
        with self._decoding():
            return super().fetchall()

    @contextmanager
    def _decoding(self) -> Iterator[None]:
        try:
            yield
        except (ValueError, psycopg.DataError) as error:
            self.connection.close()
            raise GarbledAnswerError(f"an answer of the server was garbled: {error}") from error


class _CheckedServerCursor(_CheckedCursor, psycopg.ServerCursor[Any]):
    """The same for the rows of a whole table, which the server sends in parts: a move or a backup reads them."""


class _LimitedConnection(psycopg.Connection[Any]):
    """A connection that closes if an answer takes longer than `allowed_ms` and a margin; None: no limit."""

    usually_allowed_ms: int | None = STATEMENT_TIMEOUT_MS
    allowed_ms: int | None = STATEMENT_TIMEOUT_MS

    def use_limit_of_session(self) -> None:
        """Allow what the server allows; options of the URL, of the user or the database may have set that."""
        self.autocommit = True
        [found] = self.execute(_SESSION_LIMIT).fetchone() or (0,)
        self.allowed_ms = self.usually_allowed_ms = found or None

    def wait(self, gen: PQGen[RV], interval: float = 0.1, timeout: float | None = None) -> RV:
        """As psycopg's. Raises OperationalError if the answer takes too long."""
        if timeout is None and self.allowed_ms is not None:
            timeout = (self.allowed_ms + MARGIN_MS) / 1000
        try:
            return super().wait(gen, interval, timeout)
        except psycopg.errors._WaitTimeout as error:
            self.close()
            raise psycopg.OperationalError(f"the server did not answer within {timeout:g} s") from error


def allow_longest_statement(connection: Connection) -> None:
    """Let the statements of a transaction take as long as LONGEST_STATEMENT_MS."""
    limited = cast("_LimitedConnection", connection.connection.dbapi_connection)
    limited.allowed_ms = LONGEST_STATEMENT_MS


def postgres_engine(url: URL, busy_timeout_ms: int) -> Engine:
    """Return an engine for `url` that connects when it is used, and whose driver begins no transactions."""
    settings = {
        "lock_timeout": busy_timeout_ms or 1,
        "statement_timeout": max(STATEMENT_TIMEOUT_MS, 2 * busy_timeout_ms),
        "idle_in_transaction_session_timeout": max(STATEMENT_TIMEOUT_MS, 2 * busy_timeout_ms),
    }
    ours = {
        "application_name": f"remote-log {os.getpid()}",
        "connect_timeout": str(max(2, math.ceil(busy_timeout_ms / 1000))),
        # A server that vanished is noticed in half a minute, in the middle of an answer too.
        "keepalives_idle": "10",
        "keepalives_interval": "5",
        "keepalives_count": "4",
        "tcp_user_timeout": "30000",
    }
    given = dict(url.query)
    # The last one counts: those of the URL.
    options = " ".join([*(f"-c {name}={value}" for name, value in settings.items()), _text(given.get("options"))])
    arguments = {
        **{name: value for name, value in ours.items() if name not in given},
        "options": options,
    }
    # AUTOCOMMIT: the driver begins no transactions of its own.
    engine = create_engine(
        url.difference_update_query(["options"]),
        poolclass=QueuePool,
        isolation_level="AUTOCOMMIT",
        connect_args=arguments,
    )

    @event.listens_for(engine, "do_connect")
    def connect(_dialect: object, _record: object, _none: list[Any], given: dict[str, Any]) -> _LimitedConnection:
        connection = _LimitedConnection.connect(**given, cursor_factory=_CheckedCursor)
        connection.server_cursor_factory = _CheckedServerCursor
        connection.use_limit_of_session()
        return connection

    @event.listens_for(engine, "checkout")
    def begin(connection: _LimitedConnection, _record: object, _proxy: object) -> None:
        connection.allowed_ms = connection.usually_allowed_ms

    return engine


def _text(value: str | tuple[str, ...] | None) -> str:
    return value or "" if isinstance(value, str | None) else " ".join(value)
