"""Local retention on the events of copies, total retention, and the audit."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pytest

from dags.airflow_runs import AirflowHome
from support.command_line import mentions
from support.tiered_site import FIRST_TIMESTAMP, HOUR_MS, TIERED, TieredSite, partition
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata, SegmentState

if TYPE_CHECKING:
    from support.spark_in_process import SparkInProcess

DELETABLE = {**TIERED, "local.deletion.allowed": True, "remote.deletion.allowed": True}


def test_local_retention_takes_now_and_partitions_from_each_event(
    airflow: AirflowHome, site: TieredSite, spark: SparkInProcess
) -> None:
    site.write_logs({"orders-0": 3, "orders-1": 3, "payments-0": 3})
    topic = {**DELETABLE, "local.retention.ms": HOUR_MS}
    site.configure({"orders": topic, "payments": topic})
    airflow.run("copy_segments")
    events = [
        site.announced(FIRST_TIMESTAMP + HOUR_MS + 1, "orders-0"),
        site.announced(FIRST_TIMESTAMP + 2 * HOUR_MS + 1, "orders-1"),
    ]
    dry = airflow.run_for_events("enforce_local_retention", events, {"dry_run": True})
    assert dry.state == "success"
    assert mentions(dry.log, "local retention: orders-0 before offset 10: ", "1 segments, 1201 bytes")
    assert site.local("orders-0") == [0, 10, 20, 30]
    for _ in range(2):  # once more changes nothing
        assert airflow.run_for_events("enforce_local_retention", events).state == "success"
        assert site.local("orders-0") == [10, 20, 30]
        assert site.local("orders-1") == [20, 30]
        assert site.local("payments-0") == [0, 10, 20, 30]


def test_a_scheduled_run_deletes_no_more_local_segments_than_the_settings_say(
    airflow: AirflowHome, site: TieredSite, spark: SparkInProcess
) -> None:
    site.write_logs({"orders-0": 2, "orders-1": 2})
    topics = {"orders": {**DELETABLE, "local.retention.ms": HOUR_MS}}
    site.configure(topics)
    airflow.run("copy_segments")
    site.configure(topics, local_retention_max_segments_per_run=3)
    now = FIRST_TIMESTAMP + 100 * HOUR_MS
    events = [site.announced(now, name) for name in ("orders-0", "orders-1")]

    bounded = airflow.run_for_events("enforce_local_retention", events)

    assert bounded.state == "success"
    assert "1 of the 2 segments" in bounded.log
    assert sorted(site.local(name) for name in ("orders-0", "orders-1")) == [[10, 20], [20]]
    assert airflow.run_by_schedule("enforce_local_retention").state == "success"
    assert [site.local(name) for name in ("orders-0", "orders-1")] == [[20], [20]]


def test_an_event_that_a_person_created_means_all_partitions_and_the_wall_clock_as_a_run_by_hand_does(
    airflow: AirflowHome, site: TieredSite, spark: SparkInProcess
) -> None:
    site.write_logs({"orders-0": 2, "payments-0": 2})
    site.configure({"orders": {**DELETABLE, "local.retention.ms": HOUR_MS}, "payments": DELETABLE})
    airflow.run("copy_segments")
    assert airflow.run_for_events("enforce_local_retention", [{"from_rest_api": True}]).state == "success"
    assert site.local("orders-0") == [20]
    assert site.local("payments-0") == [20]


def test_an_event_whose_file_is_missing_covers_all_partitions_at_its_time(
    airflow: AirflowHome, site: TieredSite, spark: SparkInProcess
) -> None:
    site.write_logs({"orders-0": 2, "orders-1": 2})
    site.configure({"orders": {**DELETABLE, "local.retention.ms": HOUR_MS}})
    airflow.run("copy_segments")
    event = {"partitions": 1, "path": "runs/gone/announced.jsonl", "now": FIRST_TIMESTAMP + HOUR_MS + 1}
    assert airflow.run_for_events("enforce_local_retention", [event]).state == "success"
    assert [site.local(name) for name in ("orders-0", "orders-1")] == [[10, 20], [10, 20]]


def test_local_retention_by_hand_looks_at_all_and_takes_nothing_where_deletion_is_not_allowed_or_nothing_is_remote(
    airflow: AirflowHome, site: TieredSite, spark: SparkInProcess
) -> None:
    site.write_logs({"allowed-0": 2, "forbidden-0": 2, "late-0": 2})
    gone = {"local.retention.bytes": 0}
    site.configure({"allowed": {**DELETABLE, **gone}, "forbidden": {**TIERED, **gone}, "late": {**DELETABLE, **gone}})
    airflow.run("copy_segments", {"topics": "allowed|forbidden"})
    run = airflow.run("enforce_local_retention")
    assert run.state == "success"
    assert site.local("allowed-0") == [20]
    assert mentions(run.log, "compared in both tiers", "4 of 4 segments")
    assert site.local("forbidden-0") == [0, 10, 20]
    assert site.local("late-0") == [0, 10, 20]
    assert mentions(run.log, "late-0: offsets 0 to 9", "not yet remote")
    [trimmed] = [path for path in site.state.rglob("trimmed.jsonl") if "allowed" in path.read_text()]
    assert (trimmed.parent.name, len(trimmed.read_text().splitlines())) == ("1", 1)


def test_segments_of_a_missing_remote_object_stay_local_and_the_run_fails(
    airflow: AirflowHome, site: TieredSite, spark: SparkInProcess
) -> None:
    site.write_logs({"orders-0": 2, "orders-1": 1})
    site.configure({"orders": {**DELETABLE, "local.retention.bytes": 0}})
    airflow.run("copy_segments")
    next(site.state.rglob("orders-*/0/00000000000000000010-*.log")).unlink()
    run = airflow.run("enforce_local_retention")
    assert run.state == "failed"
    assert len(run.errors["trim"]) == 1  # no second try brings it back
    assert "not trimmed: orders-0: " in run.messages
    assert site.local("orders-0") == [0, 10, 20]
    assert site.local("orders-1") == [10]


def test_expiry_marks_and_deletes_and_tries_a_failed_deletion_again(
    airflow: AirflowHome, site: TieredSite, spark: SparkInProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tiered_storage.errors import RemoteStorageError, TieredStorageError
    from tiered_storage.remote_log.storage.segment_objects import ObjectRemoteStorageManager

    site.write_logs({"orders-0": 2, "forbidden-0": 1})
    site.configure({"orders": {**DELETABLE, "retention.ms": HOUR_MS}, "forbidden": {**TIERED, "retention.ms": HOUR_MS}})
    airflow.run("copy_segments")

    dry = airflow.run("expire_remote_segments", {"dry_run": True})
    assert dry.tasks == {"plan": "success", "mark_deleted": "skipped", "delete": "skipped"}
    assert mentions(dry.log, "past retention: orders-0 before offset 20: ", "2 segments, 2402 bytes")
    assert site.finished("orders-0") == [0, 10]

    delete = ObjectRemoteStorageManager.delete_segments
    refusals = iter([1, 0])

    def refuse_once(
        storage: ObjectRemoteStorageManager, segments: Sequence[RemoteLogSegmentMetadata]
    ) -> Mapping[str, TieredStorageError]:
        refused = segments[: next(refusals)]
        failed = {segment.segment_id.id: RemoteStorageError("the store is away") for segment in refused}
        return {**failed, **delete(storage, segments[len(refused) :])}

    monkeypatch.setattr(ObjectRemoteStorageManager, "delete_segments", refuse_once)
    run = airflow.run("expire_remote_segments")
    assert run.state == "success"
    [error] = run.errors["delete"]
    assert "the store is away" in str(error)
    assert "deleted 1 segments" in run.log
    deleted = {path.parent.name: len(path.read_text().splitlines()) for path in site.state.rglob("deleted.jsonl")}
    assert deleted == {"1": 1, "2": 1}  # by try
    summaries = [{path.parent.name for path in run.glob("*/summary.json")} for run in site.state.rglob("runs/expire*")]
    assert {"plan", "mark_deleted", "delete"} in summaries  # each task's figures stay beside those of the others
    assert mentions(run.log, "1 of 2 segments", "1 of 1 segments")
    assert site.segments("orders-0") == []
    assert not list(site.state.rglob("orders-*/0/*.log"))
    assert site.finished("forbidden-0") == [0]
    with site.open() as remote_log:
        assert [
            remote_log.context.segments.log_start_offset(found)
            for found in remote_log.context.segments.list_partitions()
            if found.topic == "orders"
        ] == [20]


def test_expiry_fails_for_undeleted_segments_but_not_for_leased_partitions(
    airflow: AirflowHome, site: TieredSite
) -> None:
    site.write_logs({"orders-0": 2, "orders-1": 2, "orders-2": 1})
    site.configure({"orders": {**DELETABLE, "retention.bytes": 1}})
    site.copy()
    with site.open() as remote_log:
        lease = remote_log.context.leases.acquire(partition("orders-2"), "somebody", HOUR_MS)
        metadata = site.logs / "orders-0" / "partition.metadata"
        content = metadata.read_bytes()
        metadata.write_bytes(b"nonsense")
        dry = airflow.run("expire_remote_segments", {"dry_run": True})
        assert dry.state == "failed"
        assert "cannot expire: orders-0: " in dry.messages

        run = airflow.run("expire_remote_segments")
        assert run.state == "failed"
        assert list(run.errors) == ["delete"]
        [error] = run.errors["delete"]  # once: only the next run plans again
        assert "not expired" in str(error)
        assert "orders-0: " in str(error)
        assert "orders-2" not in str(error)
        assert [len(site.segments(name)) for name in ("orders-0", "orders-1", "orders-2")] == [2, 0, 1]

        metadata.write_bytes(content)
        held = airflow.run("expire_remote_segments")
        assert held.state == "success", held.messages
        assert "orders-2 is not marked: " in held.log
        assert [len(site.segments(name)) for name in ("orders-0", "orders-2")] == [0, 1]
        remote_log.context.leases.release(lease)


def test_the_audit_succeeds_without_anomalies_and_names_each_without_a_retry(
    airflow: AirflowHome, site: TieredSite, spark: SparkInProcess
) -> None:
    site.write_logs({"orders-0": 3})
    site.configure({"orders": TIERED})
    airflow.run("copy_segments")
    clean = airflow.run("audit_remote_log", {"deep": True})
    assert clean.state == "success"
    assert "3 segments, 9 objects" in clean.log
    assert "3 of 3 segments" in clean.log

    missing, damaged, _ = sorted(site.state.rglob("orders-*/0/*.log"))
    missing.unlink()
    content = bytearray(damaged.read_bytes())
    content[100] ^= 1
    damaged.write_bytes(content)
    stray = damaged.with_name("00000000000000000099-AAAAAAAAAAAAAAAAAAAAAA.log")
    stray.write_bytes(b"?")
    os.utime(stray, (0, 0))
    quick = airflow.run("audit_remote_log")
    assert quick.state == "failed"
    assert len(quick.errors["audit"]) == 1
    assert "2 anomalies" in quick.messages
    assert "missing object" in quick.messages
    assert missing.name in quick.messages
    assert f"unreferenced object {stray.relative_to(site.state / 'remote')}" in quick.messages
    deep = airflow.run("audit_remote_log", {"deep": True, "topics": "orders"})
    assert "wrong checksum" in deep.messages
    nothing = airflow.run("audit_remote_log", {"topics": "payments"})
    assert nothing.state == "failed"
    assert "matches" in nothing.messages
    assert len(site.segments("orders-0", SegmentState.COPY_SEGMENT_FINISHED)) == 3


def test_a_large_deep_audit_runs_in_spark_and_fails_if_it_loses_a_worker(
    airflow: AirflowHome, site: TieredSite, spark: SparkInProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tiered_storage.remote_log.audit.job import AuditJob
    from tiered_storage.remote_log.jobs import groups as job_groups
    from tiered_storage_airflow.operators import audit

    site.write_logs({"orders-0": 2, "orders-1": 2})
    site.configure({"orders": TIERED})
    site.copy()
    monkeypatch.setattr(job_groups, "GROUP_TASKS", 1)
    monkeypatch.setattr(audit, "READ_HERE_BYTES", 0)
    clean = airflow.run("audit_remote_log", {"deep": True})
    assert clean.state == "success", clean.messages
    [submitted] = spark.submitted
    assert submitted.application.endswith("spark_jobs/audit_segments.py")
    assert "in total: 4 of 4 segments" in clean.log
    assert "anomalies: 0" in clean.log

    damaged = sorted(site.state.rglob("orders-*/1/*.log"))[1]
    content = bytearray(damaged.read_bytes())
    content[100] ^= 1
    damaged.write_bytes(content)
    red = airflow.run("audit_remote_log", {"deep": True, "partitions": "1"})
    assert red.state == "failed"
    assert "1 anomalies" in red.messages
    assert damaged.name.removesuffix(".log") in red.messages
    assert airflow.run("audit_remote_log", {"deep": True, "partitions": "0"}).state == "success"

    monkeypatch.setattr(AuditJob, "run_group", lambda *_: 0)
    lost = airflow.run("audit_remote_log", {"deep": True, "partitions": "0"})
    assert lost.state == "failed"
    assert mentions(lost.messages, 2, "could not be read")
    assert len(lost.errors["audit"]) == 4  # a store that is away for a moment is no alarm
