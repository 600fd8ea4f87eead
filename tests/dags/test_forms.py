"""What runs do with a form; invalid values never delete anything."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from airflow.sdk.exceptions import ParamValidationError

from dags.airflow_runs import AirflowHome
from support.command_line import mentions
from support.tiered_site import TIERED, TieredSite

if TYPE_CHECKING:
    from support.spark_in_process import SparkInProcess

DELETABLE = {**TIERED, "local.deletion.allowed": True, "remote.deletion.allowed": True}


def test_a_field_that_no_form_has_is_refused_before_anything_is_done(
    airflow: AirflowHome, site: TieredSite, spark: SparkInProcess
) -> None:
    site.write_logs({"orders-0": 2})
    site.configure({"orders": TIERED})
    run = airflow.run("copy_segments", {"dry_runn": True})
    assert run.state == "failed"
    [error] = run.errors["plan"]
    assert mentions(str(error), "no field dry_runn;", "did you mean dry_run?")
    assert site.finished("orders-0") == []


def test_partitions_and_a_limit_narrow_a_copy_and_its_summary_says_what_was_done(
    airflow: AirflowHome, site: TieredSite, spark: SparkInProcess
) -> None:
    site.write_logs({"orders-0": 3, "orders-1": 3, "orders-2": 3})
    site.configure({"orders": TIERED})
    run = airflow.run("copy_segments", {"topics": "orders", "partitions": "0,2-9", "max_segments": 4})
    assert run.state == "success", run.messages
    assert [site.finished(f"orders-{number}") for number in range(3)] == [[0, 10], [], [0, 10]]
    assert mentions(run.log, "due segments: 4,", "due bytes: 4,804,", "refused: 0,", "unreadable: 0")
    assert mentions(
        run.log,
        "begun segments: 4,",
        "committed segments: 4,",
        "committed bytes: 4,804,",
        "partitions: 2,",
        "failed partitions: none",
    )
    summaries = sorted(str(path.relative_to(site.state / "work")) for path in site.state.rglob("summary.json"))
    assert len(summaries) == 2  # those of the plan, and of the end
    assert all(summary in airflow.rendered(run) for summary in summaries)


def test_a_limit_narrows_what_is_deleted(airflow: AirflowHome, site: TieredSite, spark: SparkInProcess) -> None:
    site.write_logs({"orders-0": 3, "orders-1": 3})
    site.configure({"orders": {**DELETABLE, "local.retention.bytes": 1, "retention.bytes": 1}})
    site.copy()
    run = airflow.run("enforce_local_retention", {"max_segments": 4})
    assert run.state == "success", run.messages
    assert [site.local(name) for name in ("orders-0", "orders-1")] == [[20, 30], [20, 30]]
    run = airflow.run("expire_remote_segments", {"max_segments": 5})
    assert run.state == "success", run.messages
    assert [len(site.segments(name)) for name in ("orders-0", "orders-1")] == [0, 1]


@pytest.mark.parametrize(
    "dag_id", ["copy_segments", "enforce_local_retention", "expire_remote_segments", "audit_remote_log"]
)
def test_a_form_that_matches_nothing_fails_and_deletes_nothing(
    airflow: AirflowHome, site: TieredSite, dag_id: str
) -> None:
    site.write_logs({"orders-0": 2})
    site.configure({"orders": {**DELETABLE, "local.retention.bytes": 1, "retention.bytes": 1}})
    site.copy()
    for form in ({"topics": "oders"}, {"partitions": "7"}):
        run = airflow.run(dag_id, form)
        assert run.state == "failed"
        assert mentions(run.messages, "no partition", "local logs")
        assert len(next(iter(run.errors.values()))) == 1  # no second try could mend it
    with pytest.raises(ParamValidationError, match="RE2"):
        airflow.run(dag_id, {"topics": "orders("})
    assert (site.local("orders-0"), site.finished("orders-0")) == ([0, 10, 20], [0, 10])


def test_deletion_obeys_topics_and_partitions(airflow: AirflowHome, site: TieredSite, spark: SparkInProcess) -> None:
    site.write_logs({"orders-0": 2, "orders-1": 2, "payments-0": 2})
    expiring = {**DELETABLE, "retention.bytes": 1}
    site.configure({"orders": expiring, "payments": expiring})
    site.copy()
    with site.open() as remote_log:
        from tiered_storage.clock import wall_clock
        from tiered_storage.remote_log.selection import EVERYTHING

        plans, _ = remote_log.deletions.plan_expiry(EVERYTHING, wall_clock())
        remote_log.deletions.mark_expired(plans, "somebody else")
    run = airflow.run("expire_remote_segments", {"topics": "orders", "partitions": "1"})
    assert run.state == "success", run.messages
    assert [len(site.segments(name)) for name in ("orders-0", "orders-1", "payments-0")] == [2, 0, 2]
    assert airflow.run("expire_remote_segments").state == "success"
    assert [len(site.segments(name)) for name in ("orders-0", "orders-1", "payments-0")] == [0, 0, 0]


@pytest.mark.parametrize("dag_id", ["enforce_local_retention", "expire_remote_segments"])
def test_no_form_gives_rights_to_delete_nor_says_where_data_lives(
    airflow: AirflowHome, site: TieredSite, dag_id: str
) -> None:
    site.write_logs({"orders-0": 2})
    site.configure({"orders": {**TIERED, "local.retention.bytes": 1, "retention.bytes": 1}})
    site.copy()
    deletable = {"local.deletion.allowed": True, "remote.deletion.allowed": True}
    elsewhere = {"rlmm.config.url": f"sqlite:///{site.state}/mine.db", "remote.log.orphan.grace.ms": 600_000}

    run = airflow.run(dag_id, {"settings": {"topics": {"orders": deletable}, **elsewhere}})

    assert run.state == "failed"
    assert mentions(run.messages, *elsewhere, "topics", "cannot be set")
    assert "by 'tiered-storage topics'" in run.messages
    assert len(next(iter(run.errors.values()))) == 1  # no second try could mend it
    assert (site.local("orders-0"), site.finished("orders-0")) == ([0, 10, 20], [0, 10])
    assert not (site.state / "mine.db").exists()
