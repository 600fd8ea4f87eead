"""The environment of Airflow's processes: which variables override the user's own, and which stay."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tiered_storage.settings.settings import load_settings
from tiered_storage_airflow.embedded.credentials import Credentials
from tiered_storage_airflow.embedded.environment import EmbeddedAirflow, airflow_environment
from tiered_storage_airflow.embedded.settings_file import read_airflow_settings

CREDENTIALS = Credentials("jwt", "api", "fernet", "password")


def environment_of(airflow: EmbeddedAirflow, environ: dict[str, str] | None = None) -> dict[str, str]:
    return airflow_environment(airflow, CREDENTIALS, Path("/java"), environ or {})


@pytest.fixture
def airflow(tmp_path: Path) -> EmbeddedAirflow:
    return EmbeddedAirflow(tmp_path / "state", tmp_path / "settings.yaml", 8181, dags_folder=tmp_path / "dags")


def test_everything_of_airflow_lies_below_the_state_directory(airflow: EmbeddedAirflow, tmp_path: Path) -> None:
    environment = environment_of(airflow)
    home = tmp_path / "state" / "airflow"
    assert environment["AIRFLOW_HOME"] == str(home)
    assert environment["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"] == f"sqlite:///{home}/airflow.db"
    assert environment["AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE"] == str(home / "passwords.json")
    assert environment["AIRFLOW__CORE__DAGS_FOLDER"] == str(tmp_path / "dags")


def test_there_is_room_for_a_stop_where_every_pool_is_full(airflow: EmbeddedAirflow, tmp_path: Path) -> None:
    def parallelism(airflow: EmbeddedAirflow) -> int:
        return int(environment_of(airflow, {"AIRFLOW__CORE__PARALLELISM": "1"})["AIRFLOW__CORE__PARALLELISM"])

    ours = read_airflow_settings(airflow.airflow_settings)
    assert parallelism(airflow) > sum(pool.pool_slot for pool in ours.pools) >= len(ours.pools)
    wider = tmp_path / "airflow_settings.yaml"
    wider.write_text("airflow: {pools: [{pool_name: a, pool_slot: 20}, {pool_name: b, pool_slot: 5}]}")
    assert parallelism(replace(airflow, airflow_settings=wider)) > 25


def test_the_port_is_the_same_everywhere(airflow: EmbeddedAirflow) -> None:
    environment = environment_of(airflow)
    assert environment["AIRFLOW__API__PORT"] == "8181"
    assert environment["AIRFLOW__API__BASE_URL"] == "http://127.0.0.1:8181"
    assert environment["AIRFLOW__CORE__EXECUTION_API_SERVER_URL"] == "http://127.0.0.1:8181/execution/"


def test_nobody_gets_in_without_the_generated_login(airflow: EmbeddedAirflow) -> None:
    environment = environment_of(airflow, {"AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True"})
    assert environment["AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS"] == "False"
    assert environment["AIRFLOW__API__HOST"] == "127.0.0.1"
    assert environment["AIRFLOW__API_AUTH__JWT_SECRET"] == "jwt"
    assert environment["AIRFLOW__API__SECRET_KEY"] == "api"
    assert environment["AIRFLOW__CORE__FERNET_KEY"] == "fernet"


def test_relative_paths_become_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    environment = environment_of(EmbeddedAirflow(Path(".state"), Path("settings.yaml")))
    assert environment["AIRFLOW_HOME"] == str(tmp_path / ".state" / "airflow")
    assert environment["TIERED_STORAGE_CONFIG"] == str(tmp_path / "settings.yaml")


def test_without_a_settings_file_the_users_own_variable_stays(tmp_path: Path) -> None:
    assert "TIERED_STORAGE_CONFIG" not in environment_of(EmbeddedAirflow(tmp_path))


@pytest.mark.parametrize("named", [None, "rights.yaml"])
def test_its_own_file_of_rights_counts_only_where_the_settings_name_none(tmp_path: Path, named: str | None) -> None:
    config = tmp_path / "settings.yaml"
    config.write_text(f"state.directory: {tmp_path / 'state'}\n")
    if named:
        config.write_text(f"{config.read_text()}read.service.rights.file: {tmp_path / named}\n")
    airflow = EmbeddedAirflow.of(load_settings(config, environ={}), 8181)

    environment = environment_of(airflow)

    assert (airflow.state, airflow.config, airflow.port) == (tmp_path / "state", config, 8181)
    found = load_settings(config, environ=environment).read_service_rights_file
    assert found == (tmp_path / named if named else tmp_path / "state" / "airflow" / "read_rights.yaml")


def test_the_pinned_programs_come_first_and_foreign_ones_do_not_get_in(airflow: EmbeddedAirflow) -> None:
    foreign = {"PATH": "/usr/bin", "PYTHONPATH": "/other", "SPARK_HOME": "/spark3", "PYSPARK_DRIVER_PYTHON": "jupyter"}
    environment = environment_of(airflow, foreign)
    assert environment["PATH"] == f"{Path(sys.executable).parent}:/usr/bin"
    assert environment["JAVA_HOME"] == "/java"
    assert environment["SPARK_LOCAL_IP"] == "127.0.0.1"
    assert not {"PYTHONPATH", "SPARK_HOME", "PYSPARK_DRIVER_PYTHON"} & set(environment)


def test_secrets_and_settings_of_the_user_pass_through(airflow: EmbeddedAirflow) -> None:
    given = {"AIRFLOW_CONN_REMOTE_STORAGE_DEFAULT": "{}", "AWS_PROFILE": "mine", "TIERED_STORAGE_LOG_DIRS": "/kafka"}
    assert given.items() <= environment_of(airflow, given).items()


@pytest.mark.parametrize("name", ["NO_PROXY", "no_proxy"])
def test_calls_to_the_api_pass_by_the_proxy(airflow: EmbeddedAirflow, name: str) -> None:
    environment = environment_of(airflow, {"HTTP_PROXY": "http://proxy:3128", name: "internal.example.com"})
    assert environment["NO_PROXY"] == environment["no_proxy"] == "internal.example.com,127.0.0.1,localhost"


def test_the_users_own_database_is_used(airflow: EmbeddedAirflow) -> None:
    url = "postgresql://airflow:hush@db.example.com/airflow"
    environment = environment_of(airflow, {"AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": url})
    assert environment["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"] == url
    installed = url.replace("postgresql", "postgresql+psycopg")
    assert environment["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_ASYNC"] == installed


def test_the_users_own_asynchronous_driver_is_used(airflow: EmbeddedAirflow) -> None:
    named = {
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": "postgresql://db.example.com/airflow",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_ASYNC": "postgresql+asyncpg://db.example.com/airflow",
    }
    assert named.items() <= environment_of(airflow, named).items()


def test_an_empty_name_of_a_database_means_its_own(airflow: EmbeddedAirflow) -> None:
    environment = environment_of(airflow, {"AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": ""})
    assert environment["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"] == airflow.own_database
