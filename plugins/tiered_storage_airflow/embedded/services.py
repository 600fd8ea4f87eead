"""Starts and stops the embedded Airflow: an API server, a scheduler, a DAG processor and a triggerer, on loopback only.

`airflow standalone` would be shorter, but it opens its log servers on every interface.
"""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import httpx
from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError

from tiered_storage.errors import ConfigurationError
from tiered_storage.private_files import make_private_folder, open_private
from tiered_storage_airflow.embedded.api_client import AirflowApi
from tiered_storage_airflow.embedded.credentials import ADMIN, begin_rights, load_or_generate, read
from tiered_storage_airflow.embedded.environment import (
    DATABASE_VARIABLE,
    LOOPBACK,
    EmbeddedAirflow,
    airflow_environment,
    virtual_environment_bin,
)
from tiered_storage_airflow.embedded.java import java_home
from tiered_storage_airflow.embedded.processes import MARK_VARIABLE, EmbeddedAirflowError, start, wait_until
from tiered_storage_airflow.embedded.record import (
    API_SERVER,
    DAG_PROCESSOR,
    SCHEDULER,
    TRIGGERER,
    RunningAirflow,
    locked,
    read_record,
    write_record,
)
from tiered_storage_airflow.embedded.settings_file import read_airflow_settings
from tiered_storage_airflow.embedded.stopping import stop

HEALTHY_WITHIN = 180.0
PARSED_WITHIN = 60.0
_PREPARED_WITHIN = 300.0
_LOG_TAIL = 30

Report = Callable[[str], None]


def up(airflow: EmbeddedAirflow, *, report: Report, environ: Mapping[str, str] = os.environ) -> RunningAirflow:
    """Start the embedded Airflow and wait until it is healthy and has parsed its DAG files; report each step.

    If one is up already, returns that one, even if `airflow` requests another; two calls at once start one. If a
    service does not start, it stops all again and raises EmbeddedAirflowError with the end of the service's log. Raises
    ConfigurationError if the file of connections is wrong.
    """
    with locked(airflow.home, report):
        former = read_record(airflow.home)
        if former is not None and former.is_whole():
            report(f"Airflow is up already: {former.url}")
            return former
        if former is not None:
            report("a service of the former start has ended: stopping the rest")
            stop(former)
        return _start_all(airflow, report, environ)


def down(state: Path, *, report: Report) -> bool:
    """Stop the embedded Airflow of a state directory, and all that it started; return whether there was one."""
    home = EmbeddedAirflow(state).home
    if not home.exists():
        return False
    with locked(home, report):
        running = read_record(home)
        if running is None:
            return False
        stop(running)
        return True


def running_airflow(state: Path) -> RunningAirflow | None:
    """Return the embedded Airflow of a state directory as it was started last, or None if it was stopped."""
    return read_record(EmbeddedAirflow(state).home)


def connect(running: RunningAirflow) -> AirflowApi:
    """Log in as the generated user."""
    return AirflowApi(running.url, ADMIN, read(running.home).admin_password)


def _start_all(airflow: EmbeddedAirflow, report: Report, environ: Mapping[str, str]) -> RunningAirflow:
    read_airflow_settings(airflow.airflow_settings)
    _require_free_port(airflow.port)
    running = RunningAirflow.of(airflow)
    credentials = load_or_generate(airflow.home)
    if airflow.has_own_rights:
        begin_rights(airflow.home)
    environment = airflow_environment(airflow, credentials, java_home(airflow.state, environ), environ)
    environment[MARK_VARIABLE] = running.mark
    report(f"preparing Airflow's database, {_database(environment[DATABASE_VARIABLE])}")
    _prepare(airflow, environment)
    report("starting the API server, the scheduler, the DAG processor and the triggerer")
    started = datetime.now(UTC)
    try:
        for name, command in _commands(airflow.port).items():
            log = _log(running, name)
            running = running.with_service(start(name, command, environment, log=log, directory=airflow.home))
            write_record(running)
        _wait_until_healthy(running, started)
        report("waiting for the DAG files to be parsed")
        _wait_until_parsed(running, airflow.dags_folder, started, report)
    except BaseException:
        stop(running)
        raise
    report(f"Airflow is up: {running.url}")
    return running


def _database(url: str) -> str:
    """Return `url` without its secrets. Raises ConfigurationError if it is not a database's URL."""
    try:
        return make_url(url).set(query={}).render_as_string(hide_password=True)
    except ArgumentError as error:
        # The text of the error repeats the URL, which may hold a password.
        raise ConfigurationError(
            f"{DATABASE_VARIABLE} is not the URL of a database ({type(error).__name__}): "
            "write postgresql://user:password@host:5432/database"
        ) from None


def _commands(port: int) -> dict[str, list[str]]:
    airflow = str(virtual_environment_bin() / "airflow")
    return {
        API_SERVER: [airflow, "api-server", "--host", LOOPBACK, "--port", str(port)],
        # No log servers, so that nothing listens beyond loopback: task logs are read from the disk.
        SCHEDULER: [airflow, "scheduler", "--skip-serve-logs"],
        DAG_PROCESSOR: [airflow, "dag-processor"],
        TRIGGERER: [airflow, "triggerer", "--skip-serve-logs"],
    }


def _require_free_port(port: int) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError as error:
            raise EmbeddedAirflowError(
                f"port {port} of {LOOPBACK} is not free ({error.strerror}): choose another, as by make up PORT=8181"
            ) from error


def _prepare(airflow: EmbeddedAirflow, environment: Mapping[str, str]) -> None:
    bin_directory = virtual_environment_bin()
    migrate = [str(bin_directory / "airflow"), "db", "migrate"]
    if environment[DATABASE_VARIABLE] != airflow.own_database:
        _run(airflow, "db-migrate", migrate, environment)
    else:
        # Migrating costs seconds even if there is nothing to do: once for each version of Airflow is enough.
        migrated = airflow.home / f"migrated-{version('apache-airflow-core')}"
        if not (migrated.exists() and (airflow.home / "airflow.db").exists()):
            _run(airflow, "db-migrate", migrate, environment)
            migrated.touch()
    loader = [str(bin_directory / "python"), "-m", "tiered_storage_airflow.embedded.airflow_settings"]
    _run(airflow, "airflow-settings", [*loader, str(airflow.airflow_settings.resolve())], environment)


def _run(airflow: EmbeddedAirflow, name: str, command: list[str], environment: Mapping[str, str]) -> None:
    make_private_folder(airflow.service_logs)
    log = airflow.service_logs / f"{name}.log"
    try:
        with open_private(log) as output:
            subprocess.run(  # noqa: S603
                command,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=airflow.home,
                timeout=_PREPARED_WITHIN,
                check=True,
                umask=0o077,
            )
    except subprocess.SubprocessError as error:
        raise EmbeddedAirflowError(f"{error}; the end of {log}:\n{_tail(log)}") from error


def _wait_until_healthy(running: RunningAirflow, started: datetime) -> None:
    with httpx.Client(base_url=running.url, timeout=5, trust_env=False) as http:
        unhealthy = ["api_server"]

        def healthy() -> bool:
            _require_alive(running)
            unhealthy[:] = _unhealthy(http, started)
            return not unhealthy

        if not wait_until(healthy, HEALTHY_WITHIN):
            logs = "\n".join(str(_log(running, name.replace("_", "-"))) for name in unhealthy)
            raise EmbeddedAirflowError(
                f"{', '.join(unhealthy)} of Airflow is not healthy after {HEALTHY_WITHIN:.0f} s; see\n{logs}"
            )


def _unhealthy(http: httpx.Client, started: datetime) -> list[str]:
    """Return the parts of Airflow without a healthy heartbeat since `started`: an older one is of a former start."""
    try:
        response = http.get("/api/v2/monitor/health")
    except httpx.TransportError:
        # Not listening yet; the wait is bounded.
        return ["api_server"]
    if not response.is_success:
        return ["api_server"]
    health: dict[str, dict[str, str | None]] = response.json()
    return [
        name
        for name in ("scheduler", "dag_processor", "triggerer")
        if health[name]["status"] != "healthy"
        or datetime.fromisoformat(health[name][f"latest_{name}_heartbeat"] or "") < started
    ]


def _require_alive(running: RunningAirflow) -> None:
    for service in running.services:
        if not service.is_running():
            log = _log(running, service.name)
            raise EmbeddedAirflowError(f"Airflow's {service.name} has ended; the end of {log}:\n{_tail(log)}")


def _wait_until_parsed(running: RunningAirflow, dags_folder: Path, started: datetime, report: Report) -> None:
    """Wait until every file that looks like a DAG has shown one since `started`, or a reason why it cannot."""
    missing = _dag_files(dags_folder)
    with connect(running) as api:

        def parsed() -> bool:
            nonlocal missing
            _require_alive(running)
            seen = {dag.file for dag in api.dags() if dag.last_parsed and dag.last_parsed >= started}
            missing = missing - seen - {Path(failure.file).name for failure in api.import_failures()}
            return not missing

        if not wait_until(parsed, PARSED_WITHIN):
            report(f"no DAG is seen yet in {', '.join(sorted(missing))}")
        for failure in api.import_failures():
            report(f"{dags_folder / failure.file} cannot be imported: {failure.reason}")


def _dag_files(folder: Path) -> set[str]:
    """Return the files at the top of the folder that Airflow itself would parse: they name both Airflow and DAGs."""
    contents = {path.name: path.read_bytes().lower() for path in folder.glob("*.py")}
    return {name for name, content in contents.items() if b"dag" in content and b"airflow" in content}


def _log(running: RunningAirflow, service: str) -> Path:
    return running.service_logs / f"{service}.log"


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-_LOG_TAIL:])
