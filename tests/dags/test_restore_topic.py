"""A topic comes back by a run of restore_topic: only a plan at first, then all of it."""

from __future__ import annotations

import shutil
from typing import Any

import pytest

from support.airflow_home import AirflowHome
from support.tiered_site import CLUSTER_ID, FIRST_TIMESTAMP, HOUR_MS, RECORDS, TIERED, TieredSite, topic_id
from tiered_storage.kafka_log.local_log import LocalLog
from tiered_storage.kafka_log.log_directory_writer import LogDirectoryWriter
from tiered_storage.remote_log.remote_log_restores import RemoteLogRestores
from tiered_storage.remote_log.restore.cluster import ClusterReport, ClusterTarget, RestoredRecords
from tiered_storage.remote_log.restore.directory import DirectoryTarget
from tiered_storage.remote_log.restore.validation import Validation


def a_lost_topic(site: TieredSite) -> None:
    site.write_logs({"orders-0": 3, "orders-1": 1})
    site.configure({"orders": TIERED})
    site.copy()
    shutil.rmtree(site.logs)


def test_a_run_only_shows_the_plan_unless_it_is_told_to_restore(airflow: AirflowHome, site: TieredSite) -> None:
    a_lost_topic(site)
    target = site.root / "restored"
    form = {"topic": "orders", "to_directory": str(target)}
    planned = airflow.run("restore_topic", form)
    assert planned.state == "success"
    assert "to restore: orders-0, offsets 0 to 29: 3 segments" in planned.log
    assert not target.exists()
    done = airflow.run("restore_topic", {**form, "dry_run": False, "validation": "records"})
    assert done.state == "success", done.messages
    assert f"restored {target}/orders-1: offsets 0 to 9" in done.log
    assert "restored in the end: 4 of 4 segments" in done.log
    [restored] = site.state.rglob("restored.jsonl")
    assert restored.read_text().count('"partition":"orders-') == 2
    with LocalLog.open(target / "orders-0") as log:
        assert log.log_end_offset == 3 * RECORDS
    again = airflow.run("restore_topic", {**form, "dry_run": False})
    assert again.state == "failed"
    assert "orders-0, orders-1 already" in again.messages


def test_a_form_chooses_partitions_and_times(airflow: AirflowHome, site: TieredSite) -> None:
    a_lost_topic(site)
    target = site.root / "restored"
    hour = {"from_time": str(FIRST_TIMESTAMP + HOUR_MS), "to_time": str(FIRST_TIMESTAMP + 2 * HOUR_MS)}
    form = {"topic": "orders", "partitions": "0", "to_directory": str(target), "dry_run": False, **hour}
    assert airflow.run("restore_topic", form).state == "success"
    assert sorted(path.name for path in target.glob("orders-*")) == ["orders-0"]
    with LocalLog.open(target / "orders-0") as log:
        assert (log.log_start_offset, log.log_end_offset) == (RECORDS, 2 * RECORDS)


def test_what_cannot_be_restored_fails_the_run_and_says_why(airflow: AirflowHome, site: TieredSite) -> None:
    a_lost_topic(site)
    nowhere = airflow.run("restore_topic", {"topic": "orders", "dry_run": False})
    assert nowhere.state == "failed"
    assert "say where to restore to" in nowhere.messages
    for form in ({}, {"to_directory": str(site.root / "restored"), "to_cluster": "kafka-1:9092"}):
        shown = airflow.run("restore_topic", {"topic": "orders", **form})
        assert shown.state == "failed"
        assert list(shown.errors) == ["plan"]
        assert "say where to restore to" in shown.messages
    unknown = airflow.run("restore_topic", {"topic": "oders", "to_directory": str(site.root / "restored")})
    assert unknown.state == "failed"
    assert "it has: orders" in unknown.messages
    next(site.state.rglob("orders-*/0/*.log")).unlink()
    missing = airflow.run(
        "restore_topic", {"topic": "orders", "to_directory": str(site.root / "restored"), "dry_run": False}
    )
    assert missing.state == "failed"
    assert len(missing.errors["restore"]) == 1
    assert "RemoteObjectNotFoundError" in missing.messages


def test_a_broker_that_still_runs_is_told_of_and_waited_for(airflow: AirflowHome, site: TieredSite) -> None:
    a_lost_topic(site)
    target = site.root / "restored"
    with LogDirectoryWriter.create(target, CLUSTER_ID):
        run = airflow.run("restore_topic", {"topic": "orders", "to_directory": str(target), "dry_run": False})
    assert run.state == "failed"
    assert len(run.errors["restore"]) == 4
    assert "stop the broker" in run.messages


def test_a_form_takes_it_to_a_cluster_and_says_where_the_new_offsets_are(
    airflow: AirflowHome, site: TieredSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the cluster gets then is in tests/integration/test_restore_into_real_kafka.py."""
    a_lost_topic(site)
    asked: list[Any] = []

    def to_cluster(self: RemoteLogRestores, plan: object, target: ClusterTarget, **options: Any) -> ClusterReport:
        asked.extend([target, options["validation"], options["allow_gaps"]])
        return ClusterReport((RestoredRecords("again-0", 0, 30, 28, 2),), ("its times are not kept",))

    monkeypatch.setattr(RemoteLogRestores, "to_cluster", to_cluster)
    form = {"topic": "orders", "to_cluster": "kafka-1:9092", "as_topic": "again", "allow_gaps": True, "dry_run": False}
    run = airflow.run("restore_topic", form)
    assert run.state == "success", run.messages
    path = site.state / "restores" / "again-offset-map.jsonl"
    assert asked == [ClusterTarget("kafka-1:9092", path, "again"), Validation.SIZES, True]
    assert "restored again-0: 28 records sent, 2 found, now offsets 0 to 29" in run.log
    assert "its times are not kept" in run.log
    asked.clear()
    run = airflow.run("restore_topic", {**form, "append": True, "offset_map": str(site.root / "map.jsonl")})
    assert run.state == "success", run.messages
    assert asked[0] == ClusterTarget("kafka-1:9092", site.root / "map.jsonl", "again", append=True)


def test_a_form_names_the_topics_id_in_a_directory(
    airflow: AirflowHome, site: TieredSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_lost_topic(site)
    asked: list[object] = []

    def to_directory(self: RemoteLogRestores, plan: object, target: DirectoryTarget, **options: Any) -> list[object]:
        asked.append(target)
        return []

    monkeypatch.setattr(RemoteLogRestores, "to_directory", to_directory)
    form = {"topic": "orders", "to_directory": str(site.root), "as_topic_id": topic_id("again"), "dry_run": False}
    run = airflow.run("restore_topic", form)
    assert run.state == "success", run.messages
    assert asked == [DirectoryTarget(site.root, None, topic_id("again"))]
