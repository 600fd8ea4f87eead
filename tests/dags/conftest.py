"""DAGs run in this process, on a small remote log of the test's own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dags.airflow_runs import AirflowHome
from support.tiered_site import TieredSite

if TYPE_CHECKING:
    from support.spark_in_process import SparkInProcess


@pytest.fixture(scope="session")
def airflow() -> AirflowHome:
    return AirflowHome()


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TieredSite:
    """A remote log that hooks find by TIERED_STORAGE_CONFIG."""
    site = TieredSite(tmp_path)
    monkeypatch.setenv("TIERED_STORAGE_CONFIG", str(site.config))
    return site


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
