"""The record of what is running: a file that `up` writes and that `status` and `down` read, and the lock for it."""

from __future__ import annotations

import fcntl
import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from pydantic import TypeAdapter, ValidationError

from tiered_storage.private_files import PRIVATE_FOLDER, make_private_folder, narrow, open_private
from tiered_storage.remote_log.storage.documents.json_document import first_problem
from tiered_storage_airflow.embedded.credentials import passwords_path
from tiered_storage_airflow.embedded.environment import EmbeddedAirflow
from tiered_storage_airflow.embedded.processes import EmbeddedAirflowError, ServiceProcess

API_SERVER = "api-server"
SCHEDULER = "scheduler"
DAG_PROCESSOR = "dag-processor"
TRIGGERER = "triggerer"
SERVICE_NAMES = (API_SERVER, SCHEDULER, DAG_PROCESSOR, TRIGGERER)


@dataclass(frozen=True, slots=True)
class RunningAirflow:
    """An embedded Airflow that was started: its home, address, settings file and processes.

    `mark` is in the environment of every process that belongs to this start.
    """

    home: Path
    url: str
    config: Path | None
    mark: str
    services: tuple[ServiceProcess, ...] = ()
    has_own_rights: bool = False

    @classmethod
    def of(cls, airflow: EmbeddedAirflow) -> Self:
        """Begin the record of a start, no service running yet."""
        config = airflow.config.resolve() if airflow.config else None
        mark = uuid.uuid4().hex
        return cls(airflow.home, airflow.url, config, mark, has_own_rights=airflow.has_own_rights)

    @property
    def service_logs(self) -> Path:
        """The directory of the services' own logs."""
        return self.home / "logs" / "services"

    @property
    def password_file(self) -> Path:
        """The file with the password of the user `admin`."""
        return passwords_path(self.home)

    def with_service(self, service: ServiceProcess) -> Self:
        """Return this record with one more service."""
        return replace(self, services=(*self.services, service))

    def is_whole(self) -> bool:
        """Return whether all of the services still run."""
        return len(self.services) == len(SERVICE_NAMES) and all(service.is_running() for service in self.services)


def record_path(home: Path) -> Path:
    """Return the path of the record."""
    return home / "services.json"


def write_record(running: RunningAirflow) -> None:
    """Write the record again, atomically."""
    path = record_path(running.home)
    unfinished = path.with_suffix(".tmp")
    with open_private(unfinished) as file:
        file.write(TypeAdapter(RunningAirflow).dump_json(running))
    unfinished.replace(path)


def read_record(home: Path) -> RunningAirflow | None:
    """Return what was started last, or None if it was stopped since; raises EmbeddedAirflowError if damaged."""
    path = record_path(home)
    if not path.exists():
        return None
    try:
        return TypeAdapter(RunningAirflow).validate_json(path.read_bytes())
    except ValidationError as error:
        raise EmbeddedAirflowError(
            f"{path}: is damaged ({first_problem(error)}): end Airflow's processes by hand, then remove the file"
        ) from error


def remove_record(running: RunningAirflow) -> None:
    """Delete the record."""
    record_path(running.home).unlink(missing_ok=True)


@contextmanager
def locked(home: Path, report: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock under which services are started and stopped; where another holds it, say so and wait."""
    # Logs, connections and the generated secrets are private.
    make_private_folder(home)
    home.chmod(PRIVATE_FOLDER)
    narrow(home.parent)
    with open_private(home / "services.lock") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report("waiting for another up or down of the same Airflow")
            fcntl.flock(file, fcntl.LOCK_EX)
        file.write(str(os.getpid()).encode())
        yield
