"""DAGs run in this process, on a small remote log of the test's own."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dags.airflow_runs import CANARY, AirflowHome
from support.tiered_site import TieredSite

if TYPE_CHECKING:
    from support.spark_in_process import SparkInProcess


@pytest.fixture(scope="session")
def airflow() -> AirflowHome:
    return AirflowHome()


@pytest.fixture
def with_canary(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let there be the DAG gateway_health."""
    for name, value in CANARY.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TieredSite:
    """A remote log that hooks find by TIERED_STORAGE_CONFIG."""
    site = TieredSite(tmp_path)
    monkeypatch.setenv("TIERED_STORAGE_CONFIG", str(site.config))
    return site


@pytest.fixture
def real_spark(state_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the Spark connection lead to this machine's Spark."""
    from tiered_storage_airflow.embedded.java import java_home

    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("JAVA_HOME", str(java_home(state_directory, os.environ)))
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    monkeypatch.delenv("PYTHONPATH", raising=False)
    connection = {"conn_type": "spark", "host": "local[*]", "extra": {"deploy-mode": "client"}}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(connection))


@pytest.fixture
def spark(monkeypatch: pytest.MonkeyPatch) -> SparkInProcess:
    """Jobs run in this process and not by Spark, whose start takes longer than all else together."""
    from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator

    from support.spark_in_process import SparkInProcess

    spark = SparkInProcess()

    def execute(operator: SparkSubmitOperator, context: object) -> None:
        spark.execute(operator, context)

    monkeypatch.setattr(SparkSubmitOperator, "execute", execute)
    monkeypatch.setattr(SparkSubmitOperator, "on_kill", lambda _: spark.killed.set())
    return spark
