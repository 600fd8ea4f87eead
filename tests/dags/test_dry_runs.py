"""A run that only shows its plan does nothing later either: also not where somebody clears its tasks alone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dags.airflow_runs import AirflowHome
from support.airflow_home import PROJECT
from support.tiered_site import FIRST_TIMESTAMP, HOUR_MS, TIERED, TieredSite, partition
from tiered_storage_airflow.forms.fields import DRY_RUN

if TYPE_CHECKING:
    from support.spark_in_process import SparkInProcess

DELETABLE = {
    **TIERED,
    "local.deletion.allowed": True,
    "remote.deletion.allowed": True,
    "local.retention.ms": 0,
    "retention.bytes": 1500,
}
HOUR = {"from_time": str(FIRST_TIMESTAMP), "to_time": str(FIRST_TIMESTAMP + HOUR_MS)}
FORMS: dict[str, dict[str, object]] = {
    "copy_segments": {},
    "delete_records": {"topic": "orders", "before": 20},
    "delete_topic": {"topic": "payments", "confirmation": "payments"},
    "enforce_local_retention": {"topics": "orders"},
    "expire_remote_segments": {"topics": "orders"},
    "export_topic": {"topic": "orders", **HOUR},
    "repair_remote_log": {},
    "restore_topic": {"topic": "orders"},
}
"""What each DAG with a plan is asked for; on `busy` it has something to do."""


@pytest.fixture
def busy(site: TieredSite) -> TieredSite:
    """A site with something to copy, delete, trim, repair, restore and export; payments is disabled."""
    site.write_logs({"orders-0": 3, "payments-0": 1})
    site.configure({"orders": DELETABLE, "payments": DELETABLE})
    site.copy()
    site.append_segment("orders-0")
    disabled = {**DELETABLE, "remote.storage.enable": False}
    site.configure({"orders": DELETABLE, "payments": disabled}, restore_directory="restored")
    with site.open() as remote_log:
        remote_log.context.topics.put(remote_log.context.decided_topic(partition("payments-0")))
    return site


def everything(site: TieredSite) -> list[object]:
    """All that a run may change beside its own messages: files by their sizes, and the segments' states."""
    kept = [path for path in site.root.rglob("*") if path.is_file() and not {"work", "metadata"} & set(path.parts)]
    files = sorted((str(path), path.stat().st_size) for path in kept if ".db" not in path.name)
    return [*files, *site.segments("orders-0"), *site.segments("payments-0")]


def tasks_that_know(dag: Any) -> list[str]:
    tasks = [task.unmap({"results": {}}) if task.is_mapped else task for task in dag.tasks]
    return [task.task_id for task in tasks if vars(task).get("dry_run") == DRY_RUN]


@pytest.mark.usefixtures("with_canary")
@pytest.mark.parametrize("path", sorted((PROJECT / "dags").glob("*.py")), ids=lambda path: path.stem)
def test_every_task_of_a_dag_with_the_field_knows_whether_its_run_only_shows(airflow: AirflowHome, path: Path) -> None:
    dag = airflow.dag(path.stem)
    expected = list(dag.task_ids) if "dry_run" in dag.params else []
    assert tasks_that_know(dag) == expected
    assert (path.stem in FORMS) == (len(expected) > 1)


@pytest.mark.parametrize("dag_id", FORMS)
def test_a_task_of_a_dry_run_that_is_cleared_alone_is_skipped(
    airflow: AirflowHome, busy: TieredSite, spark: SparkInProcess, dag_id: str
) -> None:
    if dag_id == "repair_remote_log":
        next(busy.state.rglob("payments-*/0/*.indexes")).unlink()
    shown = airflow.run(dag_id, {**FORMS[dag_id], "dry_run": True})
    assert shown.state == "success", shown.messages
    before = everything(busy)
    for task_id in sorted({name.partition("[")[0] for name in shown.tasks} - {"plan"}):
        again = airflow.run_again(dag_id, shown, [task_id])
        assert (again.state, again.messages) == ("success", ""), task_id
        assert again.tasks[task_id] == "skipped"
    assert everything(busy) == before
    assert spark.submitted == []


@pytest.mark.parametrize("dag_id", FORMS)
def test_a_real_run_does_what_the_dry_run_only_showed(
    airflow: AirflowHome, busy: TieredSite, spark: SparkInProcess, dag_id: str
) -> None:
    if dag_id == "repair_remote_log":
        next(busy.state.rglob("payments-*/0/*.indexes")).unlink()
    before = everything(busy)
    done = airflow.run(dag_id, {**FORMS[dag_id], "dry_run": False})
    assert done.state == "success", done.messages
    assert everything(busy) != before
