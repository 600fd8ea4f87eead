"""Scheduled runs delete nothing before deletion is enabled, and a plan can be made without enabling it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from dags.airflow_runs import AirflowHome
from support.command_line import mentions
from support.tiered_site import RECORDS, TIERED, TieredSite

DELETABLE = {
    **TIERED,
    "local.deletion.allowed": True,
    "remote.deletion.allowed": True,
    "local.retention.ms": 0,
    "retention.bytes": 1500,
}
DELETING = ("enforce_local_retention", "expire_remote_segments")
SETTING = "scheduled.deletion.enable"


@pytest.fixture
def copied(site: TieredSite) -> TieredSite:
    """Three closed segments of which both tiers have something to delete; scheduled deletion is off, as at first."""
    site.write_logs({"orders-0": 3})
    site.configure({"orders": DELETABLE}, scheduled_deletion_enable=False)
    site.copy()
    return site


def unchanged(site: TieredSite) -> bool:
    everything = [number * RECORDS for number in range(3)]
    return site.local("orders-0") == [*everything, 3 * RECORDS] and site.finished("orders-0") == everything


@pytest.mark.parametrize("dag_id", DELETING)
def test_a_scheduled_run_only_plans_until_it_is_armed(airflow: AirflowHome, copied: TieredSite, dag_id: str) -> None:
    run = airflow.run_by_schedule(dag_id)
    assert run.state == "success", run.messages
    assert {state for task, state in run.tasks.items() if task != "plan"} == {"skipped"}
    assert run.tasks["plan"] == "success"
    assert f"only if {SETTING}" in run.log
    assert unchanged(copied)

    copied.configure({"orders": DELETABLE}, scheduled_deletion_enable=True)
    armed = airflow.run_by_schedule(dag_id)
    assert armed.state == "success", armed.messages
    assert not unchanged(copied)


@pytest.mark.parametrize("dag_id", DELETING)
def test_a_task_of_such_a_run_that_is_cleared_alone_deletes_nothing(
    airflow: AirflowHome, copied: TieredSite, dag_id: str
) -> None:
    run = airflow.run_by_schedule(dag_id)
    for task_id in sorted(run.tasks.keys() - {"plan"}):
        again = airflow.run_again(dag_id, run, [task_id])
        assert (again.state, again.tasks[task_id]) == ("success", "skipped")
    assert unchanged(copied)


def test_an_event_trims_nothing_until_it_is_armed(airflow: AirflowHome, copied: TieredSite) -> None:
    run = airflow.run_for_events("enforce_local_retention", [{}])
    assert (run.state, run.tasks["trim"]) == ("success", "skipped")
    assert unchanged(copied)


@pytest.mark.parametrize("dag_id", DELETING)
def test_a_run_by_hand_deletes(airflow: AirflowHome, copied: TieredSite, dag_id: str) -> None:
    run = airflow.run(dag_id)
    assert run.state == "success", run.messages
    assert not unchanged(copied)


def test_a_backfill_is_a_persons_word(airflow: AirflowHome, copied: TieredSite) -> None:
    yesterday = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) - timedelta(days=1)
    [run] = airflow.backfill("expire_remote_segments", yesterday, yesterday)
    assert run.state == "success", run.messages
    assert not unchanged(copied)


def test_no_form_arms_it(airflow: AirflowHome, copied: TieredSite) -> None:
    run = airflow.run("expire_remote_segments", {"settings": {SETTING: True}})
    assert run.state == "failed"
    assert mentions(run.messages, SETTING, "cannot be set")
    assert unchanged(copied)


@pytest.mark.parametrize("dag_id", DELETING)
def test_a_dry_run_of_a_paused_dag_deletes_nothing(airflow: AirflowHome, copied: TieredSite, dag_id: str) -> None:
    """As the page does it: triggering a paused DAG unpauses it, and its scheduled run comes first."""
    with airflow.paused(dag_id):
        airflow.unpause(dag_id)
        first = airflow.run_by_schedule(dag_id)
        second = airflow.run(dag_id, {"dry_run": True})
    assert (first.state, second.state) == ("success", "success")
    assert unchanged(copied)
    assert "past" in second.log


@pytest.mark.parametrize(
    ("what", "tasks"),
    [
        ("both", {"local_retention": "success", "expiry": "success"}),
        ("local", {"local_retention": "success", "expiry": "skipped"}),
        ("remote", {"local_retention": "skipped", "expiry": "success"}),
    ],
)
def test_planning_has_a_dag_of_its_own_that_never_deletes(
    airflow: AirflowHome, copied: TieredSite, what: str, tasks: dict[str, str]
) -> None:
    assert airflow.dag("plan_deletions").is_paused_upon_creation is False
    copied.configure({"orders": DELETABLE}, scheduled_deletion_enable=True)
    run = airflow.run("plan_deletions", {"what": what})
    assert run.state == "success", run.messages
    assert run.tasks == tasks
    assert ("local retention: orders-0 before offset 30: 3 segments" in run.log) is ("local_retention" in _done(tasks))
    assert ("past retention: orders-0" in run.log) is ("expiry" in _done(tasks))
    assert unchanged(copied)


def _done(tasks: dict[str, str]) -> list[str]:
    return [task for task, state in tasks.items() if state == "success"]


@pytest.mark.parametrize("form", [{"what": "all"}, {"dry_run": False}, {"topics": "no-such"}])
def test_a_plan_of_invalid_fields_is_refused(airflow: AirflowHome, copied: TieredSite, form: dict[str, Any]) -> None:
    try:
        run = airflow.run("plan_deletions", form)
    except ValueError as refused:
        assert "what" in form, refused
    else:
        assert run.state == "failed"
    assert unchanged(copied)


def test_deleted_segments_are_undeleted(airflow: AirflowHome, copied: TieredSite) -> None:
    copied.configure({"orders": DELETABLE}, remote_log_deletion_grace_ms=3_600_000)
    expired = airflow.run("expire_remote_segments")
    assert expired.state == "success", expired.messages
    assert "marked, and deleted by" in expired.log
    marked = len(copied.finished("orders-0"))
    assert marked < 3

    shown = airflow.run("undelete", {"topic": "orders"})
    assert shown.state == "success", shown.messages
    assert "would come back: orders-0" in shown.log
    assert len(copied.finished("orders-0")) == marked
    done = airflow.run("undelete", {"topic": "orders", "partitions": "0", "dry_run": False})
    assert done.state == "success", done.messages
    assert "brought back: orders-0" in done.log
    assert unchanged(copied)

    nothing = airflow.run("undelete", {"topic": "orders", "dry_run": False})
    assert nothing.state == "failed"
    assert "nothing was brought back" in nothing.messages
