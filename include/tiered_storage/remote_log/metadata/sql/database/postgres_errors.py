"""What PostgreSQL's errors mean, and what to do: by SQLSTATE, or by libpq's text where a connection was refused.

libpq hands over no SQLSTATE with a refused connection, only texts: its own, in English, and the server's, which may be
in any language.
"""

from __future__ import annotations

import re

import psycopg
from sqlalchemy import exc

from tiered_storage.errors import MetadataCorruptError, MetadataUnavailableError, RemoteMetadataError

_RESTORE = (
    "restore the database from its backup; if there is none, 'tiered-storage rebuild-metadata' rebuilds the metadata "
    "from the object store, so do not change that"
)
_UNREACHABLE = "is the server up, and its address in rlmm.config.url right? What was not committed is rolled back"
_LOGIN = (
    "correct the user in rlmm.config.url, or the password: PGPASSWORD or ~/.pgpass of this process, or the Airflow "
    "connection remote_log_metadata_default"
)
_TLS, _URL = "TLS", "URL"
"""In place of an SQLSTATE."""

_AGAIN = "nothing was written: try again"

_ADVICE: dict[str, tuple[type[RemoteMetadataError], str]] = {
    "08": (MetadataUnavailableError, _UNREACHABLE),
    "08P01": (
        MetadataUnavailableError,
        "try again; if it repeats, look at the network, or use TLS (sslmode=verify-full), which notices such errors",
    ),
    "22021": (RemoteMetadataError, "PostgreSQL stores no text with a character NUL: correct the value"),
    "28": (RemoteMetadataError, _LOGIN),
    "28000": (
        RemoteMetadataError,
        "the server's pg_hba.conf must allow this host, user and database, perhaps with sslmode=verify-full only",
    ),
    "3D000": (RemoteMetadataError, "create the database, or correct its name in rlmm.config.url"),
    "3F000": (RemoteMetadataError, "create the schema, or correct search_path in rlmm.config.url"),
    "25006": (
        RemoteMetadataError,
        "name the primary server, not a replica, or target_session_attrs=read-write, in rlmm.config.url",
    ),
    "25P03": (MetadataUnavailableError, "the transaction was idle for too long; " + _AGAIN),
    "40": (MetadataUnavailableError, "it conflicted with another transaction; " + _AGAIN),
    "42501": (RemoteMetadataError, "grant the user these rights, or let it own the schema"),
    "42P01": (MetadataCorruptError, "a table is missing: is search_path right? If it is, " + _RESTORE),
    "53": (MetadataUnavailableError, "the server is out of a resource; " + _AGAIN),
    "53100": (
        MetadataUnavailableError,
        "nothing was written: the server's disk is full; free space in the tablespace, then try again",
    ),
    "53300": (
        MetadataUnavailableError,
        "the server has no connection left: raise max_connections, or end clients that no longer work",
    ),
    "55P03": (
        MetadataUnavailableError,
        "another process held the lock for {waited} ms: try again; if it stays, look for a run that hangs",
    ),
    "57": (MetadataUnavailableError, _UNREACHABLE),
    "57014": (
        MetadataUnavailableError,
        "the statement was cancelled, or took longer than statement_timeout; " + _AGAIN,
    ),
    "58": (MetadataUnavailableError, "the server has trouble with its disk; " + _AGAIN),
    _TLS: (
        RemoteMetadataError,
        "correct sslmode, sslrootcert (the server's CA) or the host name in rlmm.config.url, or the server's TLS",
    ),
    _URL: (RemoteMetadataError, "correct this option in rlmm.config.url"),
    "XX001": (MetadataCorruptError, _RESTORE),
    "XX002": (MetadataCorruptError, _RESTORE),
}
"""What to do, by SQLSTATE or its class (postgresql.org/docs/current/errcodes-appendix.html)."""

_UNCONNECTED = tuple(
    (state, re.compile(pattern, re.DOTALL))
    for state, pattern in (
        ("28P01", "authentication failed|no password supplied|is not permitted to log in"),
        ("28000", r"pg_hba\.conf"),
        ("28P01", 'role "[^"]*" does not exist'),
        ("3D000", 'database "[^"]*" does not exist'),
        ("42501", "permission denied for database"),
        ("53300", "too many (clients|connections)|connection slots are reserved"),
        # While a standby takes over, one host is away and the other not yet writable.
        ("08000", "Multiple connection attempts failed.*(Connection refused|timeout expired|No route to host)"),
        ("25006", "session is read-only"),
        ("08000", "server closed the connection|SSL SYSCALL error|unexpected eof"),
        (_URL, "connection is bad: (invalid|could not match)"),
        (_TLS, "certificate|SSL"),
    )
)
"""A refused connection's state, by a text that libpq or an English server gives; the first one counts."""

_SERVER_SAID = re.compile(r"failed: \S+:  ")
"""libpq puts the severity, translated, before a server's message, and two spaces between them."""

_WORTH_WAITING = ("08", "57P01", "57P02", "57P03", "53300")
"""States of a server that restarts, or has too many clients for a moment."""


def explained(error: exc.DBAPIError, where: str, waited_ms: int) -> RemoteMetadataError:
    """Return our error for `error` of the server at `where`; `waited_ms` is how long a lock was waited for."""
    state = state_of(error)
    kind, advice = _ADVICE.get(state) or _ADVICE.get(state[:2]) or (RemoteMetadataError, _RESTORE)
    return kind(f"{where}: {_first_line(error)}: {advice.format(waited=waited_ms)}")


def state_of(error: exc.DBAPIError) -> str:
    """Return the SQLSTATE; of a lost connection, or one that was never made, the nearest."""
    if (state := getattr(error.orig, "sqlstate", None)) is not None:
        return str(state)
    if error.connection_invalidated:
        return "08006"
    if isinstance(error.orig, psycopg.DataError):
        return "22021"
    if isinstance(error.orig, psycopg.ProgrammingError):
        return _URL  # an option that libpq does not know
    said = str(error.orig)
    if (found := next((state for state, text in _UNCONNECTED if text.search(said)), None)) is not None:
        return found
    return "28P01" if _SERVER_SAID.search(said) and _asked_for_password(error.orig) else "08000"


def is_worth_waiting(error: BaseException) -> bool:
    """Return whether the server may be back, or have room, in a moment."""
    return isinstance(error, exc.DBAPIError) and state_of(error).startswith(_WORTH_WAITING)


def _asked_for_password(error: BaseException | None) -> bool:
    # Also true of a login that failed later, such as one to a missing database.
    tried = error.pgconn if isinstance(error, psycopg.Error) else None
    return tried is not None and (tried.used_password or tried.needs_password)


def _first_line(error: exc.DBAPIError) -> str:
    return " ".join(str(error.orig).split("\n")[0].split()) or type(error.orig).__name__
