"""copy_segments: what it copies, what it skips and reports, and which runs fail."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dags.airflow_runs import AirflowHome
from support.command_line import mentions
from support.tiered_site import TIERED, TieredSite
from tiered_storage.remote_log.model import SegmentState

if TYPE_CHECKING:
    from support.spark_in_process import SparkInProcess

BEHIND_PLAN = ("copy", "commit_metadata", "announce", "all_committed")


def test_closed_segments_are_copied_committed_in_named_batches_and_announced_once(
    airflow: AirflowHome, site: TieredSite, spark: SparkInProcess
) -> None:
    site.write_logs({"orders-0": 3, "orders-1": 2, "payments-0": 2, "untiered-0": 2})
    site.configure({"orders": TIERED, "payments": TIERED}, commit_batch_partitions=2)
    run = airflow.run("copy_segments", run_id="manual__2026-11-21T12:00:00.5+00:00~by.hand")
    assert run.state == "success"
    assert run.tasks == {
        "plan": "success",
        "copy": "success",
        "commit_metadata[orders-0 to orders-1 (2 partitions)]": "success",
        "commit_metadata[payments-0]": "success",
        "announce": "success",
        "all_committed": "success",
    }
    assert [site.finished(name) for name in ("orders-0", "orders-1", "payments-0", "untiered-0")] == [
        [0, 10, 20],
        [0, 10],
        [0, 10],
        [],
    ]
    assert airflow.announced_by(run) == ["orders-0", "orders-1", "payments-0"]
    [event] = airflow.events_of(run)
    assert isinstance(event["now"], int)
    # Between tasks go names and paths, and a path is one that every store takes.
    [job] = spark.submitted
    assert set(job.folder) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-/")
    assert job.folder.endswith("/1")
    assert job.conf == {
        "spark.submit.deployMode": "client",
        "spark.task.maxFailures": "1",
        "spark.speculation": "false",
        "spark.log.level": "WARN",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    assert "segment_id" not in airflow.rendered(run)
    assert "7 of 7 segments" in run.log


def test_a_dry_run_shows_the_plan_and_does_nothing_else(
    airflow: AirflowHome, site: TieredSite, spark: SparkInProcess
) -> None:
    site.write_logs({"orders-0": 2, "payments-0": 1})
    site.configure({"orders": TIERED, "payments": TIERED})
    run = airflow.run("copy_segments", {"dry_run": True, "topics": "orders"})
    assert run.state == "success"
    assert run.tasks == {"plan": "success", **dict.fromkeys(BEHIND_PLAN, "skipped")}
    assert mentions(run.log, "orders-0 offsets 0 to 9, 1201 ", "orders-0 offsets 10 to 19, 1201 ")
    assert "payments-0" not in run.log
    assert spark.submitted == []
    assert airflow.events_of(run) == []
    assert site.segments("orders-0") == []


def test_all_later_tasks_are_skipped_if_nothing_is_due(
    airflow: AirflowHome, site: TieredSite, spark: SparkInProcess
) -> None:
    site.write_logs({"orders-0": 0, "untiered-0": 2})
    site.configure({"orders": TIERED})
    # The first look at a partition keeps who leads it, without Spark.
    first = airflow.run("copy_segments")
    assert first.state == "success"
    assert first.tasks["copy"] == "success"
    assert "leader epochs of 1 partitions" in first.log
    run = airflow.run("copy_segments")
    assert run.state == "success"
    assert run.tasks == {"plan": "success", **dict.fromkeys(BEHIND_PLAN, "skipped")}
    assert spark.submitted == []
    assert airflow.events_of(first) == airflow.events_of(run) == []


def test_batches_grow_so_that_airflow_accepts_their_number(
    airflow: AirflowHome, site: TieredSite, spark: SparkInProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Airflow refuses a longer list only after the copy: every try would copy all again."""
    monkeypatch.setenv("AIRFLOW__CORE__MAX_MAP_LENGTH", "2")
    site.write_logs(dict.fromkeys(("orders-0", "orders-1", "payments-0"), 1))
    site.configure({"orders": TIERED, "payments": TIERED})
    run = airflow.run("copy_segments", {"settings": {"commit.batch.partitions": 1}})
    assert run.state == "success", run.messages
    batches = [name for name in run.tasks if name.startswith("commit_metadata")]
    assert batches == ["commit_metadata[orders-0 to orders-1 (2 partitions)]", "commit_metadata[payments-0]"]


def test_a_corrupt_segment_holds_up_its_own_partition_only_and_is_named(
    airflow: AirflowHome, site: TieredSite, spark: SparkInProcess
) -> None:
    site.write_logs({"orders-0": 1, "orders-1": 3, "payments-0": 1})
    site.configure({"orders": TIERED, "payments": TIERED}, commit_batch_partitions=2)
    path = site.corrupt("orders-1", 10)
    run = airflow.run("copy_segments")
    assert run.state == "failed"
    assert run.tasks == {
        "plan": "success",
        "copy": "success",
        "commit_metadata[orders-0 to orders-1 (2 partitions)]": "failed",
        "commit_metadata[payments-0]": "success",
        "announce": "success",
        "all_committed": "upstream_failed",
    }
    [error] = run.errors["commit_metadata[orders-0 to orders-1 (2 partitions)]"]
    assert f"orders-1: CorruptRecordError: {path}: at byte 0: " in str(error)
    stored = int.from_bytes(path.read_bytes()[17:21])
    assert f"{stored:#010x}" in str(error)
    assert str(error).count("0x") == 2
    assert [site.finished(name) for name in ("orders-0", "orders-1", "payments-0")] == [[0], [0], [0]]
    assert airflow.announced_by(run) == ["orders-0", "orders-1", "payments-0"]
    assert site.local("orders-1") == [0, 10, 20, 30]
    assert [segment.start_offset for segment in site.segments("orders-1", SegmentState.DELETE_SEGMENT_STARTED)] == [
        10,
        20,
    ]


def test_an_enabled_compacted_topic_fails_the_run_after_others_are_committed(
    airflow: AirflowHome, site: TieredSite, spark: SparkInProcess
) -> None:
    site.write_logs({"customers-0": 2, "orders-0": 1})
    site.configure({"orders": TIERED, "customers": {**TIERED, "cleanup.policy": "compact"}})
    run = airflow.run("copy_segments")
    assert run.state == "failed"
    assert run.tasks["announce"] == "success"
    assert run.tasks["all_committed"] == "failed"
    [error] = run.errors["all_committed"]
    assert "topic customers has cleanup.policy=compact" in str(error)
    assert site.finished("orders-0") == [0]
    assert site.segments("customers-0") == []
    # With nothing else due there is nothing to wait for: the plan itself says it.
    again = airflow.run("copy_segments")
    assert again.state == "failed"
    assert again.tasks["plan"] == "failed"
    [error] = again.errors["plan"]
    assert "topic customers has cleanup.policy=compact" in str(error)


def test_a_run_skips_partitions_that_another_run_holds_and_succeeds(
    airflow: AirflowHome, site: TieredSite, spark: SparkInProcess
) -> None:
    site.write_logs({"orders-0": 2, "orders-1": 1})
    site.configure({"orders": TIERED})
    others = []
    spark.meanwhile = lambda: others.append(airflow.run("copy_segments"))
    run = airflow.run("copy_segments")
    [other] = others
    assert (run.state, other.state) == ("success", "success")
    assert other.tasks["copy"] == "success"
    assert other.tasks["announce"] == "skipped"
    assert f"orders-0: copy_segments/{run.run_id} " in other.log
    assert airflow.events_of(other) == []
    assert len(airflow.events_of(run)) == 1
    assert len(spark.submitted) == 1
    assert [len(site.segments(name)) for name in ("orders-0", "orders-1")] == [2, 1]
    assert site.finished("orders-0") == [0, 10]
