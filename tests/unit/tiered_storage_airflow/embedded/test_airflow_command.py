"""Airflow's own command line in the environment of the embedded Airflow."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tiered_storage_airflow.embedded.airflow_command import airflow_command
from tiered_storage_airflow.embedded.credentials import load_or_generate
from tiered_storage_airflow.embedded.environment import EmbeddedAirflow
from tiered_storage_airflow.embedded.processes import EmbeddedAirflowError
from tiered_storage_airflow.embedded.record import RunningAirflow, write_record


def test_the_command_runs_on_the_database_and_settings_of_the_airflow_that_is_up(tmp_path: Path) -> None:
    config = tmp_path / "settings.yaml"
    airflow = EmbeddedAirflow(tmp_path, config, port=8181, has_own_rights=True)
    credentials = load_or_generate_in(airflow)
    write_record(RunningAirflow.of(airflow))

    command, environment = airflow_command(tmp_path, ["dags", "list"], {**os.environ, "PYTHONPATH": "/elsewhere"})

    assert Path(command[0]).name == "airflow"
    assert command[1:] == ["dags", "list"]
    assert environment["AIRFLOW_HOME"] == str(airflow.home)
    assert environment["AIRFLOW__API__BASE_URL"] == "http://127.0.0.1:8181"
    assert environment["AIRFLOW__API_AUTH__JWT_SECRET"] == credentials
    assert environment["TIERED_STORAGE_CONFIG"] == str(config)
    assert environment["TIERED_STORAGE_READ_SERVICE_RIGHTS_FILE"] == str(airflow.home / "read_rights.yaml")
    assert "PYTHONPATH" not in environment


def test_no_secret_is_an_argument(tmp_path: Path) -> None:
    airflow = EmbeddedAirflow(tmp_path)
    secret = load_or_generate_in(airflow)
    write_record(RunningAirflow.of(airflow))
    command, _ = airflow_command(tmp_path, ["version"])
    assert secret not in " ".join(command)


def test_without_an_airflow_that_is_up_it_says_how_to_start_one(tmp_path: Path) -> None:
    with pytest.raises(EmbeddedAirflowError, match="make up"):
        airflow_command(tmp_path, ["dags", "list"])


def load_or_generate_in(airflow: EmbeddedAirflow) -> str:
    airflow.home.mkdir(parents=True)
    return load_or_generate(airflow.home).jwt_secret
