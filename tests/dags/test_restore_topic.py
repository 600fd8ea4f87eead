"""A run of restore_topic restores a topic: first only its plan, then everything."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import XComArg

from dags.airflow_runs import AirflowHome
from support.command_line import mentions
from support.tiered_site import CLUSTER_ID, FIRST_TIMESTAMP, HOUR_MS, RECORDS, TIERED, TieredSite, topic_id
from tiered_storage.kafka_log.log.local_log import LocalLog
from tiered_storage.kafka_log.log.log_directory_writer import LogDirectoryWriter
from tiered_storage.remote_log.restore.cluster import ClusterReport, ClusterTarget, RestoredRecords
from tiered_storage.remote_log.restore.directory import DirectoryTarget
from tiered_storage.remote_log.restore.plan import RemoteLogRestores
from tiered_storage.remote_log.restore.validation import Validation
from tiered_storage.settings.settings import load_settings
from tiered_storage_airflow.operators import restore
from tiered_storage_airflow.operators.restore import PlanRestoreOperator, RestoreOperator
from tiered_storage_airflow.operators.tables import PlanExportOperator


def a_lost_topic(site: TieredSite, **settings: object) -> Path:
    """Lose it; return the directory that the form may restore into."""
    site.write_logs({"orders-0": 3, "orders-1": 1})
    site.configure({"orders": TIERED}, **{"restore_directory": "restored", **settings})
    site.copy()
    shutil.rmtree(site.logs)
    return site.root / "restored"


def a_connection(monkeypatch: pytest.MonkeyPatch, conn_type: str = "kafka", **extra: object) -> None:
    """Have the connection lab, as Airflow takes it from its environment."""
    extra = {"bootstrap.servers": "kafka-1:9092", **extra}
    monkeypatch.setenv("AIRFLOW_CONN_LAB", json.dumps({"conn_type": conn_type, "extra": extra}))


def grant(site: TieredSite, rights: object) -> str:
    """Write the rights file; return its path."""
    path = site.root / "rights.yaml"
    path.write_text(yaml.safe_dump(rights))
    return str(path)


def test_a_run_only_shows_the_plan_by_default(airflow: AirflowHome, site: TieredSite) -> None:
    target = a_lost_topic(site)
    form = {"topic": "orders", "target": "directory"}
    planned = airflow.run("restore_topic", form)
    assert planned.state == "success"
    assert f"to restore into {target}" in planned.log
    assert mentions(planned.log, "orders-0, offsets 0 to 29: ", "3 segments")
    assert not target.exists()
    done = airflow.run("restore_topic", {**form, "dry_run": False, "validation": "records"})
    assert done.state == "success", done.messages
    assert f"restored {target}/orders-1: offsets 0 to 9" in done.log
    assert "4 of 4 segments" in done.log
    [restored] = site.state.rglob("restored.jsonl")
    assert restored.read_text().count('"partition":"orders-') == 2
    with LocalLog.open(target / "orders-0") as log:
        assert log.log_end_offset == 3 * RECORDS
    again = airflow.run("restore_topic", {**form, "dry_run": False})
    assert again.state == "failed"
    assert "orders-0, orders-1 already" in again.messages


def test_a_wrong_id_fails_the_plan_and_makes_no_directory(airflow: AirflowHome, site: TieredSite) -> None:
    target = a_lost_topic(site)
    run = airflow.run("restore_topic", {"topic": "orders", "as_topic_id": "7", "dry_run": False})
    assert (run.state, run.tasks["plan"]) == ("failed", "failed")
    assert mentions(run.messages, "'7'", "UUID")
    assert not target.exists()


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ({"topic": "orders", "as_topic": "__consumer_offsets"}, "target is '__consumer_offsets'"),
        ({"topic": "__own"}, "restores to __own"),
    ],
)
def test_no_form_restores_to_a_name_like_those_of_kafkas_own_topics(
    airflow: AirflowHome, site: TieredSite, form: dict[str, str], message: str
) -> None:
    site.write_logs({"orders-0": 2, "__own-0": 2})
    site.configure({"orders": TIERED, "__own": TIERED}, restore_directory="restored")
    site.copy()
    with LogDirectoryWriter.create(site.root / "restored", CLUSTER_ID) as broker:
        broker.create_log("__consumer_offsets", 0, topic_id("__consumer_offsets"))
    for dry_run in (True, False):
        run = airflow.run("restore_topic", {**form, "dry_run": dry_run})
        assert (run.state, list(run.errors)) == ("failed", ["plan"])
        assert message in run.messages
    assert [path.name for path in (site.root / "restored").glob("__*")] == ["__consumer_offsets-0"]
    with LocalLog.open(site.root / "restored" / "__consumer_offsets-0") as log:
        assert log.log_end_offset == 0


def test_a_form_chooses_partitions_and_times(airflow: AirflowHome, site: TieredSite) -> None:
    target = a_lost_topic(site)
    hour = {"from_time": str(FIRST_TIMESTAMP + HOUR_MS), "to_time": str(FIRST_TIMESTAMP + 2 * HOUR_MS)}
    form = {"topic": "orders", "partitions": "0", "dry_run": False, **hour}
    assert airflow.run("restore_topic", form).state == "success"
    assert sorted(path.name for path in target.glob("orders-*")) == ["orders-0"]
    with LocalLog.open(target / "orders-0") as log:
        assert (log.log_start_offset, log.log_end_offset) == (RECORDS, 2 * RECORDS)


def test_an_impossible_restore_fails_the_run_and_reports_why(airflow: AirflowHome, site: TieredSite) -> None:
    a_lost_topic(site)
    unknown = airflow.run("restore_topic", {"topic": "oders"})
    assert unknown.state == "failed"
    assert "nothing of topic 'oders'" in unknown.messages
    assert "orders" not in unknown.messages
    next(site.state.rglob("orders-*/0/*.log")).unlink()
    missing = airflow.run("restore_topic", {"topic": "orders", "dry_run": False})
    assert missing.state == "failed"
    assert len(missing.errors["restore"]) == 1
    assert "RemoteObjectNotFoundError" in missing.messages


@pytest.mark.parametrize(
    "field", ["to_directory", "to_cluster", "offset_map", "client_properties", "bootstrap.servers", "restore.directory"]
)
def test_a_run_that_names_a_path_a_host_or_a_file_is_refused_by_the_fields_name(
    airflow: AirflowHome, site: TieredSite, field: str
) -> None:
    """As POST /api/v2/dags/restore_topic/dagRuns takes any conf."""
    target = a_lost_topic(site)
    secret = site.root / "a-path-of-the-worker"
    secret.write_text("s3cr3t=1\n")
    run = airflow.run("restore_topic", {"topic": "orders", field: str(secret), "dry_run": False})
    assert run.state == "failed"
    assert mentions(run.messages, "nothing was done", f"no field {field}")
    assert "s3cr3t" not in run.log
    assert secret.read_text() == "s3cr3t=1\n"
    assert not target.exists()


def test_the_settings_that_a_form_gives_open_no_other_place(airflow: AirflowHome, site: TieredSite) -> None:
    a_lost_topic(site)
    elsewhere = {"restore.directory": str(site.root / "mine"), "restore.connections": ["lab"]}
    run = airflow.run("restore_topic", {"topic": "orders", "settings": elsewhere, "dry_run": False})
    assert run.state == "failed"
    assert mentions(run.messages, *elsewhere, "cannot be set")
    assert not (site.root / "mine").exists()


@pytest.mark.parametrize(
    ("settings", "form", "message"),
    [
        ({"restore_directory": ""}, {}, "setting restore.directory"),
        ({}, {"target": "cluster"}, "setting restore.connections: it is empty"),
        ({"restore_connections": "lab"}, {"target": "cluster", "connection": "other"}, "'other' is not"),
        ({"restore_connections": "lab, b"}, {"target": "cluster"}, "no connection is named"),
        ({"restore_connections": "absent"}, {"target": "cluster"}, "connection absent .* not exist"),
        ({"restore_connections": "lab"}, {"connection": "lab"}, "only for the target"),
    ],
)
def test_a_target_that_the_settings_do_not_name_fails_the_plan(
    airflow: AirflowHome,
    site: TieredSite,
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, object],
    form: dict[str, object],
    message: str,
) -> None:
    a_lost_topic(site, **settings)
    a_connection(monkeypatch)
    run = airflow.run("restore_topic", {"topic": "orders", **form})
    assert list(run.errors) == ["plan"]
    assert re.search(message, run.messages), run.messages


@pytest.mark.parametrize(
    ("conn_type", "extra", "message"),
    [
        ("http", {}, "type http: only kafka"),
        ("kafka", {"bootstrap.servers": ""}, "needs bootstrap.servers"),
        ("kafka", {"plugin.library.paths": "/tmp/s3cr3t.so"}, "plugin.library.paths is refused"),
        ("kafka", {"s3cr3t": "x"}, "connection lab, extra: a property"),
    ],
)
def test_a_connection_that_is_no_clusters_or_runs_code_is_refused(
    airflow: AirflowHome,
    site: TieredSite,
    monkeypatch: pytest.MonkeyPatch,
    conn_type: str,
    extra: dict[str, object],
    message: str,
) -> None:
    a_lost_topic(site, restore_connections=["lab"])
    a_connection(monkeypatch, conn_type, **extra)
    run = airflow.run("restore_topic", {"topic": "orders", "target": "cluster"})
    assert list(run.errors) == ["plan"]
    assert message in run.messages
    assert "s3cr3t" not in run.messages + run.log


def test_a_folder_of_something_else_is_refused_untouched(airflow: AirflowHome, site: TieredSite) -> None:
    target = a_lost_topic(site)
    target.mkdir()
    (target / "id_ed25519").write_text("mine")
    run = airflow.run("restore_topic", {"topic": "orders", "dry_run": False})
    assert list(run.errors) == ["restore"]
    assert f"{target} is not empty" in run.messages
    assert [path.name for path in target.iterdir()] == ["id_ed25519"]


def test_relative_paths_of_a_dag_file_begin_where_those_of_the_settings_do(site: TieredSite) -> None:
    site.configure({"orders": TIERED})
    (site.root / "client.properties").write_text("sasl.username=me\n")
    settings = load_settings(site.config, environ={})
    into = RestoreOperator(task_id="a", topic="orders", to_directory="back/logs")._where(settings)
    assert into.name == str(site.root / "back" / "logs")
    properties = RestoreOperator(
        task_id="b", topic="orders", to_cluster="kafka-1:9092", client_properties="client.properties"
    )._where(settings)
    assert isinstance(properties, restore._Cluster)
    assert properties.properties == {"sasl.username": "me"}


def test_a_broker_that_still_runs_is_reported_and_waited_for(airflow: AirflowHome, site: TieredSite) -> None:
    target = a_lost_topic(site)
    with LogDirectoryWriter.create(target, CLUSTER_ID):
        run = airflow.run("restore_topic", {"topic": "orders", "dry_run": False})
    assert run.state == "failed"
    assert len(run.errors["restore"]) == 4
    assert "stop the broker" in run.messages


def test_a_form_takes_it_to_a_cluster_and_says_where_the_new_offsets_are(
    airflow: AirflowHome, site: TieredSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the cluster gets then is in tests/integration/restore/test_restore_into_real_kafka.py."""
    a_lost_topic(site, restore_connections=["lab"])
    a_connection(monkeypatch, **{"sasl.username": "me"})
    asked: list[Any] = []
    path = site.state / "work" / "restores"

    def to_cluster(self: RemoteLogRestores, plan: object, target: ClusterTarget, **options: Any) -> ClusterReport:
        asked.extend([target, options["validation"], options["allow_gaps"]])
        rows = (RestoredRecords("again-0", 0, 30, 28, 2),)
        return ClusterReport(rows, ("its times are not kept",), path / "again-offset-map.jsonl")

    monkeypatch.setattr(RemoteLogRestores, "to_cluster", to_cluster)
    form = {"topic": "orders", "target": "cluster", "as_topic": "again", "allow_gaps": True, "dry_run": False}
    run = airflow.run("restore_topic", form)
    assert run.state == "success", run.messages
    target = ClusterTarget("kafka-1:9092", path, "again", {"sasl.username": "me"}, is_folder=True)
    assert asked == [target, Validation.SIZES, True]
    assert mentions(run.log, "again-0: ", "28 records sent", "2 found", "offsets 0 to 29")
    assert "times are not kept" in run.log
    assert f"offset map: {path}/again-offset-map.jsonl" in run.log
    asked.clear()
    site.configure({"orders": TIERED}, restore_connections=["lab"], work_url="s3://bucket/work")
    monkeypatch.setattr(restore, "summarize", lambda *_, **__: None)
    monkeypatch.setattr(restore, "keep_done", lambda *_, **__: None)
    run = airflow.run("restore_topic", {**form, "append": True, "connection": "lab"})
    assert run.state == "success", run.messages
    assert asked[0] == replace(target, map_path=site.state / "restores", append=True)


def test_a_form_names_the_topics_id_in_a_directory(
    airflow: AirflowHome, site: TieredSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = a_lost_topic(site)
    asked: list[object] = []

    def to_directory(self: RemoteLogRestores, plan: object, target: DirectoryTarget, **options: Any) -> list[object]:
        asked.append(target)
        return []

    monkeypatch.setattr(RemoteLogRestores, "to_directory", to_directory)
    run = airflow.run("restore_topic", {"topic": "orders", "as_topic_id": topic_id("again"), "dry_run": False})
    assert run.state == "success", run.messages
    assert asked == [DirectoryTarget(target, None, topic_id("again"))]


@pytest.mark.parametrize("name", ["to_directory", "to_cluster", "offset_map", "client_properties"])
def test_a_dag_files_author_may_name_places_but_let_no_form_do_so(name: str) -> None:
    assert name not in RestoreOperator.template_fields
    with pytest.raises(ValueError, match=f"{name} takes no template"):
        RestoreOperator(task_id="restore", topic="orders", **{name: "{{ params.place }}"})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=f"{name} takes no template"):
        RestoreOperator(task_id="restore", topic="orders", **{name: XComArg(EmptyOperator(task_id="names"))})  # type: ignore[arg-type]
    assert getattr(RestoreOperator(task_id="restore", topic="orders", **{name: Path("a/place")}), name) == "a/place"  # type: ignore[arg-type]


READS = {"users": {"alice": {"read": ["orders"]}}}


@pytest.mark.parametrize("dag_id", ["restore_topic", "export_topic"])
@pytest.mark.parametrize(
    ("rights", "user", "is_allowed"),
    [
        (READS, "alice", True),
        (READS, None, True),
        (READS, "bob", False),
        ({"users": {"alice": {"describe": ["*"], "read": ["payments"]}}}, "alice", False),
        ({"roles": {"ADMIN": {"read": ["*"]}}}, "alice", False),
        (None, None, True),
        (None, "admin", False),
    ],
)
def test_the_triggering_user_needs_the_right_to_read_the_topic(
    airflow: AirflowHome, site: TieredSite, dag_id: str, rights: object, user: str | None, is_allowed: bool
) -> None:
    file = grant(site, rights) if rights else ""
    a_lost_topic(site, read_service_rights_file=file)
    hour = {"from_time": str(FIRST_TIMESTAMP), "to_time": str(FIRST_TIMESTAMP + HOUR_MS)}
    run = airflow.run(dag_id, {"topic": "orders", **hour}, user=user)
    if is_allowed:
        assert run.state == "success", run.messages
        return
    assert list(run.errors) == ["plan"]
    assert mentions(run.messages, "nothing was done", f"{user} may not read", "'orders'")
    assert (file or "the setting read.service.rights.file") in run.messages
    assert f"users: {{{user}: {{read: [orders]}}}}" in run.messages
    assert not (site.state / "exports").exists()


def test_a_backfill_takes_nobody_elses_run_over_with_a_form_of_its_own(airflow: AirflowHome, site: TieredSite) -> None:
    """Airflow keeps the name of who triggered a run that a later backfill runs again, by another form."""
    a_lost_topic(site, read_service_rights_file=grant(site, READS))
    day = datetime(2021, 5, 1, tzinfo=UTC)  # no other test's: runs stay in the tests' Airflow
    days, form = (day, day), {"topic": "orders"}

    [first] = airflow.backfill("export_topic", *days, conf=form, user="alice")
    assert first.state == "success", first.messages
    exported = sorted((site.state / "exports").rglob("*"))
    [taken] = airflow.backfill("export_topic", *days, conf={**form, "isolation": "read_uncommitted"}, user="bob")
    assert taken.run_id == first.run_id
    assert list(taken.errors) == ["plan"]
    assert mentions(taken.messages, "backfill", first.run_id)
    assert sorted((site.state / "exports").rglob("*")) == exported
    [without] = airflow.backfill("export_topic", *days, conf={"topic": ""}, user="bob")
    assert (without.state, without.tasks["export"]) == ("success", "skipped")


@pytest.mark.parametrize(("dag_id", "task_id"), [("restore_topic", "restore"), ("export_topic", "export")])
def test_a_right_that_is_revoked_after_the_plan_stops_the_run(
    airflow: AirflowHome, site: TieredSite, monkeypatch: pytest.MonkeyPatch, dag_id: str, task_id: str
) -> None:
    a_lost_topic(site, read_service_rights_file=grant(site, READS))
    operators: dict[str, Any] = {"restore_topic": PlanRestoreOperator, "export_topic": PlanExportOperator}
    plan = operators[dag_id].execute

    def revoked(operator: Any, context: Any) -> None:
        plan(operator, context)
        grant(site, {})

    monkeypatch.setattr(operators[dag_id], "execute", revoked)
    hour = {"from_time": str(FIRST_TIMESTAMP), "to_time": str(FIRST_TIMESTAMP + HOUR_MS)}
    run = airflow.run(dag_id, {"topic": "orders", "dry_run": False, **hour}, user="alice")
    assert list(run.errors) == [task_id]
    assert mentions(run.messages, "alice may not read", "'orders'")
