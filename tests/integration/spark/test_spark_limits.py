"""The limits of copies and of remote reads, over all workers of a real Spark.

Each job has four groups of one size, which two workers do, and a limit for both. The workers count what passes their
limits; the unit tests of throttle.py hold how long a limit waits.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from integration.spark_submit import SparkSubmit
from support.tiered_site import CLUSTER_ID, TIERED, TieredSite, topic_id
from tiered_storage.kafka_log.log.log_config import LogConfig
from tiered_storage.kafka_log.log.log_directory_writer import LogDirectoryWriter
from tiered_storage.kafka_log.records.record import Record
from tiered_storage.remote_log.jobs import groups as job_groups
from tiered_storage.remote_log.tables.export_job import ExportRequest
from tiered_storage.remote_log.tables.layout import Interval
from tiered_storage.remote_log.tables.query import TableQuery

TIMESTAMP = 1_700_000_000_000


@pytest.fixture(autouse=True)
def a_group_for_each_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_groups, "GROUP_TASKS", 1)


def write_logs(site: TieredSite, segment: int) -> None:
    """Write four partitions, each of one closed segment of `segment` bytes and an active one."""
    with LogDirectoryWriter.create(site.logs, CLUSTER_ID) as writer:
        for number in range(4):
            log = writer.create_log("orders", number, topic_id("orders"), LogConfig(segment_bytes=segment + 1000))
            for offset in range(5):
                log.append([Record(offset, TIMESTAMP, None, bytes(segment // 4))])


def ensure_shared(counted: Path, limit: int, least: int) -> None:
    """Assert that each of the two workers had half of `limit`, and that `least` bytes or more passed each half."""
    halves = [json.loads(line) for line in counted.read_text().splitlines()]
    assert [share for share, _ in halves] == [limit / 2] * 2
    assert min(passed for _, passed in halves) >= least


def test_the_workers_of_a_copy_keep_one_limit_together(spark_submit: SparkSubmit, tmp_path: Path) -> None:
    limit, segment, counted = 128 << 10, 256 << 10, tmp_path / "copied"
    site = TieredSite(tmp_path / "site")
    write_logs(site, segment)
    site.configure(
        {"orders": TIERED},
        remote_log_manager_copy_max_bytes_per_second=limit,
        remote_log_manager_copy_quota_window_num=1,
    )

    spark_submit(site, "runs/first/1", counted)

    assert [site.finished(f"orders-{number}") for number in range(4)] == [[0]] * 4
    ensure_shared(counted, limit, 2 * segment)


def test_the_workers_of_an_export_and_of_a_deep_audit_keep_one_limit_together(
    spark_submit: SparkSubmit, tmp_path: Path
) -> None:
    limit = segment = 1 << 20
    exported, audited = tmp_path / "exported", tmp_path / "audited"
    site = TieredSite(tmp_path / "site")
    write_logs(site, segment)
    site.configure(
        {"orders": TIERED},
        remote_log_manager_fetch_max_bytes_per_second=limit,
        remote_log_manager_fetch_quota_window_num=1,
    )
    site.copy()
    with site.open() as remote_log:
        request = ExportRequest(
            TableQuery("orders"), Interval(TIMESTAMP, TIMESTAMP + 1000), remote_log.context.settings.export_url
        )
        with remote_log.tables.export(request, "runs/export/1") as begun:
            export = begun.write_job("runs/export/1")
            spark_submit.run("export_parquet.py", remote_log.context.access(export.files), exported)
            assert begun.commit(list(export.outcomes())).rows == 16
        audit = remote_log.checks.write_audit_job("runs/audit/1")
        spark_submit.run("audit_segments.py", remote_log.context.access(audit.files), audited)
        assert [outcome.anomalies for outcome in audit.outcomes()] == [()] * 4
    ensure_shared(exported, limit, 2 * segment)
    ensure_shared(audited, limit, 2 * segment)
