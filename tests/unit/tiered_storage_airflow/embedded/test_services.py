"""Starting the services: what is refused before, and what is shown where one does not come up."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tiered_storage.errors import ConfigurationError
from tiered_storage_airflow.demo_cluster.brokers import free_ports
from tiered_storage_airflow.embedded import services
from tiered_storage_airflow.embedded.environment import DATABASE_VARIABLE, EmbeddedAirflow
from tiered_storage_airflow.embedded.processes import EmbeddedAirflowError
from tiered_storage_airflow.embedded.record import read_record

COMMANDS = ("api-server", "scheduler", "dag-processor", "triggerer")


@pytest.fixture
def airflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EmbeddedAirflow]:
    """An Airflow whose database needs no preparing, and whose services a test names."""
    monkeypatch.setattr(services, "_prepare", lambda *_: None)
    yield EmbeddedAirflow(tmp_path / "state", port=free_ports(1)[0], dags_folder=tmp_path)
    services.down(tmp_path / "state", report=lambda _: None)


def let_services_run(monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    monkeypatch.setattr(services, "_commands", lambda _: {name: ["bash", "-c", script] for name in COMMANDS})


def test_a_service_that_ends_is_shown_with_the_end_of_its_log_and_nothing_stays(
    airflow: EmbeddedAirflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_services_run(monkeypatch, "seq 100; echo no such table: job; exit 3")
    with pytest.raises(EmbeddedAirflowError) as raised:
        services.up(airflow, report=lambda _: None)
    message = str(raised.value)
    assert "api-server has ended" in message
    assert f"{airflow.service_logs}/api-server.log:\n72\n" in message
    assert message.endswith("no such table: job")
    assert read_record(airflow.home) is None


def test_services_that_never_become_healthy_are_stopped_and_named(
    airflow: EmbeddedAirflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_services_run(monkeypatch, "exec sleep 60")
    monkeypatch.setattr(services, "HEALTHY_WITHIN", 0.5)
    with pytest.raises(EmbeddedAirflowError, match=r"api_server .*\n.*api-server"):
        services.up(airflow, report=lambda _: None)
    assert services.running_airflow(airflow.state) is None


def test_a_port_in_use_is_refused_before_anything_starts(airflow: EmbeddedAirflow) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", airflow.port))
        other.listen()
        with pytest.raises(EmbeddedAirflowError, match=rf"port {airflow.port}.*127\.0\.0\.1.*PORT="):
            services.up(airflow, report=lambda _: None)


def test_a_wrong_file_of_connections_is_refused_before_anything_starts(tmp_path: Path) -> None:
    wrong = tmp_path / "airflow_settings.yaml"
    wrong.write_text("airflow: {pool: []}")
    with pytest.raises(ConfigurationError, match=r"airflow_settings\.yaml: airflow\.pool"):
        services.up(EmbeddedAirflow(tmp_path / "state", airflow_settings=wrong), report=lambda _: None)


def test_a_name_of_no_database_is_refused_without_its_secrets(airflow: EmbeddedAirflow) -> None:
    with pytest.raises(ConfigurationError, match=DATABASE_VARIABLE) as raised:
        services.up(airflow, report=lambda _: None, environ={**os.environ, DATABASE_VARIABLE: "postgresql//me:hush@db"})
    assert "hush" not in str(raised.value)
    assert services.running_airflow(airflow.state) is None


def test_the_database_is_named_without_its_secrets(airflow: EmbeddedAirflow, monkeypatch: pytest.MonkeyPatch) -> None:
    let_services_run(monkeypatch, "exit 3")
    said: list[str] = []
    url = "postgresql://me:hush@db.example.com/airflow?password=silent"
    with pytest.raises(EmbeddedAirflowError):
        services.up(airflow, report=said.append, environ={**os.environ, DATABASE_VARIABLE: url})
    assert "db.example.com/airflow" in "".join(said)
    assert "hush" not in "".join(said)
    assert "silent" not in "".join(said)


def test_stopping_what_never_ran_is_fine(tmp_path: Path) -> None:
    assert not services.down(tmp_path / "state", report=pytest.fail)
    assert not (tmp_path / "state").exists()


def test_a_failed_preparation_shows_the_end_of_its_log(tmp_path: Path) -> None:
    airflow = EmbeddedAirflow(tmp_path, port=free_ports(1)[0])
    airflow.home.mkdir()
    with pytest.raises(EmbeddedAirflowError, match=r"exit status 4.*db-migrate\.log:\nno disk"):
        services._run(airflow, "db-migrate", ["bash", "-c", "echo no disk; exit 4"], {})
