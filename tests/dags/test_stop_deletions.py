"""The DAG that stops all deletions, and lets them continue."""

from __future__ import annotations

from pathlib import Path

import pytest

from dags.airflow_runs import AirflowHome
from support.command_line import mentions
from support.tiered_site import TIERED, TieredSite

DELETABLE = {**TIERED, "local.deletion.allowed": True, "remote.deletion.allowed": True}
ADMINS = "admins: [ada]\nusers:\n  bob:\n    read: ['*']\nroles:\n  ada:\n    read: ['*']\n"


def rights(site: TieredSite, text: str = ADMINS) -> Path:
    path = site.root / "rights.yaml"
    path.write_text(text)
    return path


def stopped_by(site: TieredSite) -> str | None:
    with site.open() as remote_log:
        stop = remote_log.context.safety.stopped()
    return None if stop is None else stop.stopped_by


def test_while_deletions_are_stopped_nothing_is_deleted_and_runs_that_would_delete_say_why(
    airflow: AirflowHome, site: TieredSite
) -> None:
    site.write_logs({"orders-0": 2})
    topics = {"orders": {**DELETABLE, "local.retention.bytes": 1, "retention.bytes": 1}}
    site.configure(topics, read_service_rights_file=str(rights(site)))
    site.copy()
    stopped = airflow.run("stop_deletions", {"reason": "it looks odd"})
    assert stopped.state == "success"
    assert "summary: deletions: stopped, by: " in stopped.log
    assert "reason: it looks odd" in stopped.log
    going = {
        "enforce_local_retention": "past local retention: orders-0 before offset 20: 2 segments",
        "expire_remote_segments": "past retention: orders-0 before offset 20: 2 segments",
    }
    for dag_id, line in going.items():
        shown = airflow.run(dag_id, {"dry_run": True})
        assert shown.state == "success", shown.messages
        assert line in shown.log
        assert mentions(shown.log, "deleted now: ", "it looks odd", "stop-deletions --lift")
        run = airflow.run(dag_id)
        assert run.state == "failed"
        [error] = [each for of_task in run.errors.values() for each in of_task]  # no second try could mend it
        assert "it looks odd" in str(error)
    shown = airflow.run("delete_records", {"topic": "orders", "before": 10})
    assert shown.state == "success", shown.messages
    assert "it looks odd" in shown.log
    run = airflow.run("delete_records", {"topic": "orders", "before": 10, "dry_run": False})
    assert list(run.errors) == ["plan"]
    assert "it looks odd" in run.messages
    assert (site.local("orders-0"), site.finished("orders-0")) == ([0, 10, 20], [0, 10])

    lifted = airflow.run("stop_deletions", {"lift": True}, user="ada")
    assert lifted.state == "success"
    assert "deletions are allowed again" in lifted.log
    assert airflow.run("enforce_local_retention").state == "success"
    assert site.local("orders-0") == [20]
    assert airflow.run("expire_remote_segments").state == "success"
    assert site.segments("orders-0") == []


def test_deletions_are_stopped_though_settings_contradict_each_other(airflow: AirflowHome, site: TieredSite) -> None:
    site.write_logs({"orders-0": 2})
    site.configure({"orders": DELETABLE})
    site.copy()
    site.configure({"orders": {**DELETABLE, "retention.ms": 0}})

    stopped = airflow.run("stop_deletions", {"reason": "look first", "reeson": "a hurry"})

    assert stopped.state == "success"
    assert mentions(stopped.log, "no field reeson;")
    assert "only the metadata" in stopped.log
    site.configure({"orders": DELETABLE})
    assert "look first" in airflow.run("expire_remote_segments").messages


@pytest.mark.parametrize(
    ("text", "conf", "user", "why"),
    [
        (ADMINS, {"lift": True}, "bob", "user bob may"),
        (ADMINS, {"lift": True, "by": "ada", "user": "ada", "triggering_user_name": "ada"}, "bob", "user bob may"),
        (
            ADMINS,
            {"lift": True, "settings": {"read.service.rights.file": "/tmp/mine"}},
            "bob",
            "cannot be set",
        ),
        (ADMINS, {"lift": True}, None, "does not report who"),
        (ADMINS, {"lift": True}, "", "does not report who"),
        (None, {"lift": True}, "ada", "read.service.rights.file names no file"),
        ("admins: ada\n", {"lift": True}, "ada", "admins must be a list"),
        ("users:\n  ada:\n    read: ['*']\n", {"lift": True}, "ada", "user ada may"),
    ],
)
def test_only_an_admin_lifts_a_stop(
    airflow: AirflowHome, site: TieredSite, text: str | None, conf: dict[str, object], user: str | None, why: str
) -> None:
    site.write_logs({"orders-0": 2})
    named = {} if text is None else {"read_service_rights_file": str(rights(site, text))}
    site.configure({"orders": DELETABLE}, **named)
    assert airflow.run("stop_deletions", {"by": "ada"}, user="bob").state == "success"
    assert stopped_by(site) == "bob"

    refused = airflow.run("stop_deletions", conf, user=user)

    assert refused.state == "failed"
    assert why in refused.messages
    assert stopped_by(site) == "bob"


def test_clearing_the_run_of_an_admin_lifts_no_later_stop(airflow: AirflowHome, site: TieredSite) -> None:
    site.write_logs({"orders-0": 2})
    site.configure({"orders": DELETABLE}, read_service_rights_file=str(rights(site)))
    airflow.run("stop_deletions", {"reason": "first"}, user="bob")
    lifting = airflow.run("stop_deletions", {"lift": True}, user="ada")
    assert stopped_by(site) is None
    airflow.run("stop_deletions", {"reason": "second"}, user="bob")

    cleared = airflow.run_again("stop_deletions", lifting)

    assert cleared.state == "failed"
    assert mentions(cleared.messages, "bob", "(second)")
    assert stopped_by(site) == "bob"
