"""A DAG such as users write, with two chains of the same operators: each keeps its messages to itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import pytest

from dags.airflow_runs import OWN_DAGS, AirflowHome, FinishedRun
from support.command_line import mentions
from support.tiered_site import TIERED, TieredSite

if TYPE_CHECKING:
    from support.spark_in_process import SparkInProcess

TOPICS = ("orders", "payments")


@pytest.fixture
def site(site: TieredSite) -> TieredSite:
    """Both topics, of which two segments and one are due."""
    site.write_logs({"orders-0": 2, "payments-0": 1})
    site.configure(dict.fromkeys(TOPICS, TIERED))
    return site


def run(airflow: AirflowHome, form: Mapping[str, object] | None = None) -> FinishedRun:
    return airflow.run("copy_two_topics", form, folder=OWN_DAGS)


def copied(site: TieredSite) -> tuple[list[int], list[int]]:
    return site.finished("orders-0"), site.finished("payments-0")


def test_each_chain_of_a_dag_copies_what_it_planned(
    airflow: AirflowHome, site: TieredSite, spark: SparkInProcess
) -> None:
    """Airflow runs both plans before either copy here, as it may everywhere."""
    done = run(airflow)
    assert done.state == "success", done.messages
    expected = {f"{topic}.{task}": "success" for topic in TOPICS for task in ("plan", "copy", "announce")}
    assert done.tasks == expected | {f"{topic}.commit[{topic}-0]": "success" for topic in TOPICS}
    assert copied(site) == ([0, 10], [0])
    assert sorted(job.folder.split("/", 2)[2] for job in spark.submitted) == ["orders.copy/1", "payments.copy/1"]
    assert len(site.segments("orders-0")) + len(site.segments("payments-0")) == 3  # each was begun once


def test_a_chain_whose_worker_dies_tries_again_and_disturbs_no_other_chain(
    airflow: AirflowHome, site: TieredSite, spark: SparkInProcess
) -> None:
    spark.deaths.extend([0, None])
    done = run(airflow)
    assert done.state == "success", done.messages
    assert [len(errors) for errors in done.errors.values()] == [1]
    assert copied(site) == ([0, 10], [0])
    assert sorted(job.folder.rpartition("/")[2] for job in spark.submitted) == ["1", "1", "2"]


def test_the_form_is_checked_though_tasks_have_a_pre_execute_of_their_own(
    airflow: AirflowHome, site: TieredSite, spark: SparkInProcess
) -> None:
    refused = run(airflow, {"dry_runn": True})
    assert refused.state == "failed"
    assert mentions(refused.messages, "no field dry_runn;", "did you mean dry_run?")
    assert copied(site) == ([], [])
    assert "about to run orders.plan" in refused.log
    assert run(airflow, {"dry_run": True}).state == "success"
    assert copied(site) == ([], [])
