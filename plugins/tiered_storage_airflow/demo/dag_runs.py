"""Runs the DAGs through Airflow's API and waits, telling what happens meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta

from tiered_storage_airflow.demo.errors import DemoError
from tiered_storage_airflow.embedded.api_client import AirflowApi, DagRun, TaskInstance

RUN_WITHIN = 180.0


def run_dag(api: AirflowApi, dag_id: str, say: Callable[[str], None], conf: Mapping[str, object] | None = None) -> None:
    """Trigger a run of `dag_id` by hand, unpause the DAG and wait until the run has succeeded."""
    # Before the run that the schedule begins at the unpausing, which then finds nothing to do.
    run = api.trigger(dag_id, conf, run_after=datetime.now(UTC) - timedelta(days=1))
    api.unpause(dag_id)
    _finish(api, run, say)


def wait_for_asset_run(api: AirflowApi, dag_id: str, since: datetime, say: Callable[[str], None]) -> None:
    """Wait until the run of `dag_id` that an asset event of `since` or later began has succeeded."""
    _finish(api, api.wait_for_asset_triggered_run(dag_id, since, RUN_WITHIN), say)


def _finish(api: AirflowApi, run: DagRun, say: Callable[[str], None]) -> None:
    told: set[tuple[str, str | None]] = set()

    def tell(_: DagRun, tasks: list[TaskInstance]) -> None:
        for task in tasks:
            if task.state in {"running", "success", "failed"} and (task.name, task.state) not in told:
                told.add((task.name, task.state))
                say(f"  {run.dag_id}.{task.name}: {task.state}")

    finished = api.wait_for_run(run, RUN_WITHIN, tell)
    if finished.state != "success":
        raise DemoError(f"{run.dag_id}: run {run.run_id} is {finished.state}\n{api.failures(finished)}")
