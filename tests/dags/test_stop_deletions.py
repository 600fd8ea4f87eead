"""The DAG that stops all deletions, and lets them go on."""

from __future__ import annotations

from support.airflow_home import AirflowHome
from support.tiered_site import TIERED, TieredSite

DELETABLE = {**TIERED, "local.deletion.allowed": True, "remote.deletion.allowed": True}


def test_while_deletions_are_stopped_nothing_goes_and_runs_that_would_delete_say_why(
    airflow: AirflowHome, site: TieredSite
) -> None:
    site.write_logs({"orders-0": 2})
    site.configure({"orders": {**DELETABLE, "local.retention.bytes": 1, "retention.bytes": 1}})
    site.copy()
    stopped = airflow.run("stop_deletions", {"reason": "the audit looks odd"})
    assert stopped.state == "success"
    assert "summary: deletions: stopped, by: " in stopped.log
    assert "reason: the audit looks odd" in stopped.log
    going = {
        "enforce_local_retention": "past local retention: orders-0 before offset 20: 2 segments",
        "expire_remote_segments": "past retention: orders-0 before offset 20: 2 segments",
    }
    for dag_id, line in going.items():
        shown = airflow.run(dag_id, {"dry_run": True})
        assert shown.state == "success", shown.messages
        assert line in shown.log
        assert "nothing of this plan goes for now: " in shown.log
        run = airflow.run(dag_id)
        assert run.state == "failed"
        [error] = [each for of_task in run.errors.values() for each in of_task]  # no second try could mend it
        assert "the audit looks odd" in str(error)
    shown = airflow.run("delete_records", {"topic": "orders", "before": 10})
    assert shown.state == "success", shown.messages
    assert "the audit looks odd" in shown.log
    run = airflow.run("delete_records", {"topic": "orders", "before": 10, "dry_run": False})
    assert list(run.errors) == ["plan"]
    assert "the audit looks odd" in run.messages
    assert (site.local("orders-0"), site.finished("orders-0")) == ([0, 10, 20], [0, 10])

    lifted = airflow.run("stop_deletions", {"lift": True})
    assert lifted.state == "success"
    assert "deletions are allowed again" in lifted.log
    assert airflow.run("enforce_local_retention").state == "success"
    assert site.local("orders-0") == [20]
    assert airflow.run("expire_remote_segments").state == "success"
    assert site.segments("orders-0") == []


def test_deletions_are_stopped_though_settings_contradict_each_other(airflow: AirflowHome, site: TieredSite) -> None:
    site.write_logs({"orders-0": 2})
    site.configure({"orders": {**DELETABLE, "retention.ms": 0}})

    stopped = airflow.run("stop_deletions", {"reason": "look first", "reeson": "a hurry"})

    assert stopped.state == "success"
    assert "left out: the form has no reeson; reeson may be meant to be reason" in stopped.log
    assert "the metadata alone were told" in stopped.log
    site.configure({"orders": DELETABLE})
    assert "look first" in airflow.run("expire_remote_segments").messages
