"""copy_segments with a real Spark: one whose worker is killed, and one that reaches its store over HTTP."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from support.airflow_home import PROJECT, AirflowHome
from support.dying_storage import ALREADY_DEAD, VICTIM
from support.s3_server import localbucket_server
from support.tiered_site import TIERED, TieredSite
from tiered_storage.remote_log.copy_messages import CopyOutcome, from_lines
from tiered_storage.remote_log.model import SegmentState
from tiered_storage_airflow.embedded.java import java_home


@pytest.fixture(autouse=True)
def real_spark(state_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the Spark connection lead to this machine's Spark."""
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("JAVA_HOME", str(java_home(state_directory, os.environ)))
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    monkeypatch.delenv("PYTHONPATH", raising=False)
    connection = {"conn_type": "spark", "host": "local[*]", "extra": {"deploy-mode": "client"}}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(connection))


def test_a_killed_worker_loses_only_what_it_had_not_finished_and_the_next_run_copies_that_under_new_ids(
    airflow: AirflowHome, site: TieredSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VICTIM, "orders-1")
    monkeypatch.setenv(ALREADY_DEAD, str(site.root / "dead"))
    # Only a storage class of one's own has to be installed where Spark runs.
    monkeypatch.setenv("PYTHONPATH", str(PROJECT / "tests"))
    site.write_logs({"orders-0": 2, "orders-1": 2})
    site.configure(
        {"orders": TIERED},
        commit_batch_partitions=1,
        remote_log_storage_manager_class_name="support.dying_storage.DyingStorage",
    )
    run = airflow.run("copy_segments")
    assert run.state == "failed"
    assert (site.root / "dead").exists()
    assert "Python worker exited unexpectedly" in run.log
    assert run.tasks["commit_metadata[orders-0]"] == "success"
    assert run.tasks["commit_metadata[orders-1]"] == "failed"
    assert "its worker died" in run.messages
    assert site.finished("orders-0") == [0, 10]
    assert site.finished("orders-1") == []
    dead = {segment.segment_id for segment in site.segments("orders-1", SegmentState.DELETE_SEGMENT_STARTED)}
    assert len(dead) == 2

    following = airflow.run("copy_segments")
    assert following.state == "success"
    assert airflow.events_of(following)[0]["partitions"] == ["orders-1"]
    alive = site.segments("orders-1", SegmentState.COPY_SEGMENT_FINISHED)
    assert [segment.start_offset for segment in alive] == [0, 10]
    assert dead.isdisjoint(segment.segment_id for segment in alive)
    assert len(site.segments("orders-0")) == 2


def test_a_bucket_over_http_is_reached_with_what_the_airflow_connection_says(
    airflow: AirflowHome, site: TieredSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    with localbucket_server(site.root / "buckets") as endpoint:
        connection = {
            "conn_type": "aws",
            "login": endpoint.access_key,
            "password": endpoint.secret_key,
            "extra": {"endpoint_url": endpoint.url, "region_name": endpoint.region},
        }
        monkeypatch.setenv("AIRFLOW_CONN_REMOTE_STORAGE_DEFAULT", json.dumps(connection))
        root = f"s3://{endpoint.bucket}/over/http"
        site.write_logs({"orders-0": 2})
        site.configure(
            {
                "orders": {
                    **TIERED,
                    "local.deletion.allowed": True,
                    "local.retention.bytes": 0,
                }
            },
            rsm_config_url=f"{root}/remote",
            work_url=f"{root}/work",
            rsm_config_allow_http=True,
        )
        run = airflow.run("copy_segments")
        assert run.state == "success", run.messages
        assert airflow.run("enforce_local_retention").state == "success"
        assert airflow.run("audit_remote_log", {"deep": True}).state == "success"
    assert site.local("orders-0") == [20]
    bucket = site.root / "buckets" / endpoint.bucket
    assert len(list(bucket.rglob("remote/tests/orders-*/0/*.log"))) == 2
    [job] = bucket.rglob("work/runs/copy_segments*/1/job.json")
    [results] = bucket.rglob("work/runs/copy_segments*/1/result-00000.jsonl")
    assert json.loads(job.read_text())["endpoint"] == endpoint.url
    outcomes = from_lines(results.read_bytes(), CopyOutcome, str(results))
    assert [outcome.record_count for outcome in outcomes] == [10, 10]
    # Though the library is installed here, workers take it from the job's zip.
    assert all("/remote-log-" in outcome.library for outcome in outcomes)
    written = [path for path in site.root.rglob("*") if path.is_file()]
    assert [path for path in written if endpoint.secret_key.encode() in path.read_bytes()] == []
    assert endpoint.secret_key not in run.log + airflow.rendered(run)
