"""The DAG that repairs what an audit finds."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from dags.airflow_runs import AirflowHome
from support.command_line import mentions
from support.tiered_site import HOUR_MS, TIERED, TieredSite
from tiered_storage.remote_log.copy.copier import CopySizes, copy_segment

if TYPE_CHECKING:
    from support.spark_in_process import SparkInProcess

DELETABLE = {**TIERED, "local.deletion.allowed": True, "remote.deletion.allowed": True, "retention.ms": -1}


def test_missing_segments_are_copied_again_or_left_to_a_person_if_not_local(
    airflow: AirflowHome, site: TieredSite, spark: SparkInProcess
) -> None:
    site.write_logs({"orders-0": 3})
    site.configure({"orders": DELETABLE})
    site.copy()
    missing = sorted(site.state.rglob("orders-*/0/*.log"))[1]
    missing.unlink()
    assert airflow.run("audit_remote_log").state == "failed"

    shown = airflow.run("repair_remote_log")
    assert shown.state == "success", shown.messages
    assert set(shown.tasks.values()) == {"success", "skipped"}
    assert mentions(shown.log, "copy again: ", "orders-0 offsets 10 to 19")
    assert spark.submitted == []

    done = airflow.run("repair_remote_log", {"dry_run": False, "deep": True})
    assert done.state == "success", done.messages
    assert "2 of 3 segments" in done.log  # one has no bytes to read
    [repaired] = site.state.rglob("repaired.jsonl")
    assert '"retired":[{' in repaired.read_text()
    assert [job.application.rpartition("/")[2] for job in spark.submitted] == ["copy_segments.py"]
    assert site.finished("orders-0") == [0, 10, 20]
    assert airflow.run("expire_remote_segments").state == "success"
    clean = airflow.run("audit_remote_log", {"deep": True})
    assert clean.state == "success", clean.messages

    (site.logs / "orders-0" / "00000000000000000000.log").rename(site.root / "away")
    min(site.state.rglob("orders-*/0/*.log")).unlink()
    lost = airflow.run("repair_remote_log", {"dry_run": False})
    assert lost.state == "failed"
    assert "1 anomalies need a person: orders-0: " in lost.messages
    assert lost.tasks["copy"] == "upstream_failed"
    assert site.finished("orders-0") == [0, 10, 20]


def test_repair_rebuilds_lost_indexes_from_the_remote_log_object_without_spark(
    airflow: AirflowHome, site: TieredSite, spark: SparkInProcess
) -> None:
    site.write_logs({"orders-0": 2})
    site.configure({"orders": DELETABLE})
    site.copy()
    shutil.rmtree(site.logs / "orders-0")
    min(site.state.rglob("orders-*/0/*.indexes")).unlink()
    assert airflow.run("audit_remote_log").state == "failed"

    run = airflow.run("repair_remote_log", {"dry_run": False})

    assert run.state == "success", run.messages
    assert spark.submitted == []
    assert "rebuild indexes: orders-0:" in run.log
    assert site.finished("orders-0") == [0, 10]
    clean = airflow.run("audit_remote_log", {"deep": True})
    assert clean.state == "success", clean.messages


def test_repair_commits_a_complete_uncommitted_copy_without_spark(
    airflow: AirflowHome, site: TieredSite, spark: SparkInProcess
) -> None:
    site.write_logs({"orders-0": 2})
    site.configure({"orders": TIERED})
    with site.open_after(-2 * HOUR_MS) as remote_log:
        remote_log.context.bind_store()
        for task in remote_log.begin_copy(remote_log.plan_copy(), "a run that died").tasks:
            assert copy_segment(
                task, remote_log.context.storage, CopySizes(1 << 20, 4096, 1 << 20), remote_log.context.clock
            ).finished
    shutil.rmtree(site.logs / "orders-0")

    run = airflow.run("repair_remote_log", {"dry_run": False})

    assert run.state == "success", run.messages
    assert spark.submitted == []
    assert "finished copies: 2" in run.log
    assert site.finished("orders-0") == [0, 10]
