"""A real PostgreSQL server for tests: one a process, started when a test first asks, with a database a test.

PostgreSQL refuses to run as root: then it runs as nobody, whose files are below /tmp.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import signal
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, event

from tiered_storage.clock import Clock
from tiered_storage.remote_log.metadata.sql.store import SqlMetadataStore, open_metadata_store
from tiered_storage_airflow.demo_cluster import postgres

USER, PASSWORD = postgres.USER, postgres.PASSWORD
SUPERUSER, SUPERUSER_PASSWORD = postgres.SUPERUSER, postgres.SUPERUSER_PASSWORD
PATIENCE_SECONDS = 60
PUBLIC_FIRST = "options=-csearch_path%3Dpublic,pg_catalog"
"""The option of a URL with which `current_setting` counts."""


class PostgresServer(postgres.PostgresServer):
    """A server that runs as soon as it is made, perhaps as a standby."""

    def __init__(
        self, *, durable: bool = False, parent: Path = Path("/tmp"), standby_of: PostgresServer | None = None
    ) -> None:
        """Make a server below `parent`, a standby of another one or of its own, and start it.

        Unless `durable`, it does not wait for the disk. See `may_use` for `parent`.
        """
        super().__init__(durable=durable, parent=parent)
        if standby_of is None:
            self.__enter__()
            return
        login = f"host=127.0.0.1 port={standby_of.port} user={SUPERUSER} password={SUPERUSER_PASSWORD}"
        self._run("pg_basebackup", "--no-sync", "--checkpoint=fast", "-R", "-D", str(self.data), "-d", login)
        self.start()

    @staticmethod
    def may_use(directory: Path) -> bool:
        """Return whether the user who runs servers reaches what is below `directory`."""
        folders = (directory.absolute(), *directory.absolute().parents)
        return os.geteuid() != 0 or all(folder.stat().st_mode & stat.S_IXOTH for folder in folders)

    def restart(self, how: signal.Signals = signal.SIGINT, **options: object) -> None:
        """Stop it and start it again."""
        self.stop(how)
        self.start(**options)

    def wait_for(self, primary: PostgresServer) -> None:
        """Wait until this standby has everything that `primary` has committed."""
        [(position,)] = primary.execute("SELECT pg_current_wal_lsn()")
        ends = time.monotonic() + PATIENCE_SECONDS
        while self.execute(f"SELECT pg_last_wal_replay_lsn() < '{position}'") != [(False,)]:
            assert time.monotonic() < ends, (self.directory / "log").read_text()
            time.sleep(0.02)

    def dump_and_restore(self, database: str, target: str) -> None:
        """Replace the database `target` by what pg_dump writes of `database`."""
        file = self.directory / "dump"
        self._run("pg_dump", "-Fc", "-f", str(file), "-d", f"{self._login} dbname={database}")
        self.database(target)
        self._run("pg_restore", "--clean", "--if-exists", "-d", f"{self._login} dbname={target}", str(file))

    def dump(self, database: str) -> bytes:
        """Return what pg_dump writes of `database`, as text."""
        file = self.directory / "dump.sql"
        self._run("pg_dump", "-f", str(file), "-d", f"{self._login} dbname={database}")
        return file.read_bytes()

    @property
    def _login(self) -> str:
        return f"host=127.0.0.1 port={self.port} user={SUPERUSER} password={SUPERUSER_PASSWORD}"

    def sessions(self, database: str) -> list[tuple[Any, ...]]:
        """Return the process ids of the clients of `database`."""
        return self.execute(f"SELECT pid FROM pg_stat_activity WHERE datname = '{database}' AND usename = '{USER}'")  # noqa: S608


@cache
def the_server() -> PostgresServer:
    """The server of this process; a test that restarts it leaves it running."""
    server = PostgresServer()
    atexit.register(server.remove)
    return server


@contextmanager
def server_crashes_at(store: SqlMetadataStore, message: int) -> Iterator[Callable[[], bool]]:
    """Restart the server right before the message of this number, from 1, reaches it; yield whether it did."""
    sent = 0
    engine = store._database._engine

    def crash(*_: object, **__: object) -> None:
        nonlocal sent
        sent += 1
        if sent == message:
            the_server().restart(signal.SIGQUIT)

    def crash_before_commit(_: Connection) -> None:
        crash()

    event.listen(engine, "before_cursor_execute", crash)
    event.listen(engine, "commit", crash_before_commit)
    try:
        yield lambda: sent >= message
    finally:
        event.remove(engine, "before_cursor_execute", crash)
        event.remove(engine, "commit", crash_before_commit)


def current_setting(name: str, value: str) -> str:
    """Return a statement that lets a server tell another value of a setting, to those with PUBLIC_FIRST."""
    return f"""
        CREATE FUNCTION public.current_setting(asked text) RETURNS text LANGUAGE sql AS $$
        SELECT CASE asked WHEN '{name}' THEN '{value}' ELSE pg_catalog.current_setting(asked) END $$
    """


def postgres_url(directory: Path) -> str:
    """Return the URL of the database that belongs to `directory`."""
    return the_server().database(f"test_{hashlib.sha256(str(directory).encode()).hexdigest()[:20]}")


def postgres_store(directory: Path, clock: Clock) -> SqlMetadataStore:
    """Open the PostgreSQL store that belongs to `directory`."""
    return open_metadata_store(postgres_url(directory), clock, busy_timeout_ms=10_000)
