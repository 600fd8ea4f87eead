from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from support.metadata_stores import a_step
from support.remote_logs import (
    CLUSTER_ID,
    ORDERS_0,
    RemoteLogFiles,
    a_copied_remote_log,
    flip_bit,
    held_by,
    segments_of,
    topic_id,
)
from tiered_storage.errors import RemoteStorageError
from tiered_storage.remote_log.audit import job as audit_job
from tiered_storage.remote_log.audit.deep_audit import audit_segment
from tiered_storage.remote_log.audit.job import AuditJob, run_audit_groups
from tiered_storage.remote_log.audit.report import AnomalyKind, AuditReport
from tiered_storage.remote_log.jobs import throttle
from tiered_storage.remote_log.jobs.throttle import Quota, QuotaLimit
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.model import SegmentState
from tiered_storage.remote_log.selection import EVERYTHING, Selection

TWO = {("clicks", 0): 1, ("orders", 0): 2}


@pytest.fixture
def files(tmp_path: Path) -> RemoteLogFiles:
    return a_copied_remote_log(tmp_path, TWO)


def by_workers(
    remote_log: RemoteLogManager, work: Callable[[AuditJob], None] | None = None, selection: Selection = EVERYTHING
) -> AuditReport:
    """Audit as a DAG does: quick, then workers, then what came of both."""
    quick = remote_log.checks.audit(selection)
    job = remote_log.checks.write_audit_job("runs/audit/1", selection)
    if work is None:
        for number in range(job.groups):
            run_audit_groups(remote_log.context.access(job.files), [number])
    else:
        work(job)
    return remote_log.checks.conclude_deep_audit(quick, job, selection)


def result(remote_log: RemoteLogManager, topic: str) -> list[tuple[bool, int]]:
    return [
        (each.deep, each.anomalies) for each in remote_log.context.safety.audit_results(CLUSTER_ID, topic_id(topic))
    ]


def test_workers_find_what_one_process_finds(files: RemoteLogFiles) -> None:
    flip_bit(files.objects(".log")[1], 100)
    files.objects(".indexes")[2].unlink()
    with files.open() as remote_log:
        whole = remote_log.checks.audit(deep=True)
        report = by_workers(remote_log)

        assert {anomaly.kind for anomaly in report.anomalies} == {
            AnomalyKind.MISSING_OBJECT,
            AnomalyKind.WRONG_CHECKSUM,
        }
        assert {(each.kind, each.segment_id) for each in report.anomalies} == {
            (each.kind, each.segment_id) for each in whole.anomalies
        }
        assert (report.segments, report.objects, report.size) == (whole.segments, whole.objects, whole.size)
        assert result(remote_log, "clicks") == [(False, 0), (True, 0)]
        assert [deep for deep, anomalies in result(remote_log, "orders") if anomalies] == [False, True]


def test_an_audit_job_reads_only_the_selected_topics(files: RemoteLogFiles) -> None:
    with files.open() as remote_log:
        job = remote_log.checks.write_audit_job("runs/audit/1", Selection("clicks"))

        assert [outcome.segment.topic_id_partition.topic for outcome in job.outcomes()] == ["clicks"]


def test_segments_are_divided_into_groups_of_about_the_same_size(
    files: RemoteLogFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tiered_storage.remote_log.jobs.groups.GROUP_TASKS", 1)
    with files.open() as remote_log:
        assert remote_log.checks.write_audit_job("runs/audit/1").groups == 3
        assert by_workers(remote_log).anomalies == ()


def test_segments_that_no_worker_read_are_reported_and_clear_no_audit_result(files: RemoteLogFiles) -> None:
    with files.open() as remote_log:
        report = by_workers(remote_log, lambda _: None)

        assert (report.anomalies, report.unread) == ((), 3)
        assert "its worker died" in report.notices[0]
        assert result(remote_log, "orders") == [(False, 0)]


def test_a_store_that_fails_is_reported_and_other_segments_are_read(
    files: RemoteLogFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    sound = audit_segment
    failures = iter([True])

    def failing_once(*arguments: object) -> object:
        if next(failures, False):
            raise RemoteStorageError("down for a while")
        return sound(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(audit_job, "audit_segment", failing_once)
    with files.open() as remote_log:
        report = by_workers(remote_log)

    assert report.unread == 1
    assert "down for a while" in report.notices[0]


def test_segments_deleted_during_an_audit_are_no_anomaly(files: RemoteLogFiles) -> None:
    def delete_and_work(job: AuditJob) -> None:
        [first, _] = segments_of(remote_log)
        lease = held_by(remote_log, "test")
        remote_log.context.segments.advance_log_start_offset(ORDERS_0, 10, lease)
        remote_log.context.segments.update_remote_log_segment_metadata(
            a_step(first, SegmentState.DELETE_SEGMENT_STARTED), lease
        )
        remote_log.context.storage.delete_log_segment_data(first)
        for number in range(job.groups):
            run_audit_groups(remote_log.context.access(job.files), [number])

    with files.open() as remote_log:
        assert by_workers(remote_log, delete_and_work).anomalies == ()


def test_a_job_description_has_the_rate_of_its_workers(files: RemoteLogFiles) -> None:
    files.properties["audit.worker.bytes.per.second"] = 5 << 20
    with files.open() as remote_log:
        job = remote_log.checks.write_audit_job("runs/audit/1")

        assert job.files.description(audit_job.AuditJobDescription).bytes_per_second == 5 << 20


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> list[CountedLimit]:
    """All limits of remote reads that are made while a test runs."""
    made: list[CountedLimit] = []

    def quota_limit(quota: Quota) -> CountedLimit:
        made.append(CountedLimit(quota))
        return made[-1]

    monkeypatch.setattr(throttle, "QuotaLimit", quota_limit)
    return made


class CountedLimit(QuotaLimit):
    """Counts what is spent, and waits for nothing."""

    spent = 0

    def spend(self, size: int) -> None:
        self.spent += size


def test_the_workers_of_a_deep_audit_share_the_limit_of_remote_reads_and_every_byte_counts(
    files: RemoteLogFiles, limits: list[CountedLimit], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tiered_storage.remote_log.jobs.groups.GROUP_TASKS", 1)
    files.properties["remote.log.manager.fetch.max.bytes.per.second"] = 8 << 20
    with files.open() as remote_log:
        report = by_workers(remote_log)

    assert len(limits) == 3
    assert sum(each.bytes_per_second for each in limits) == pytest.approx(8 << 20)
    assert sum(each.spent for each in limits) > report.size


def test_a_deep_audit_in_one_process_keeps_within_the_limit_of_remote_reads(
    files: RemoteLogFiles, limits: list[CountedLimit]
) -> None:
    files.properties["remote.log.manager.fetch.max.bytes.per.second"] = 8 << 20
    with files.open() as remote_log:
        report = remote_log.checks.audit(deep=True)
        # The DAG's task reads a small remote log itself, by the same limit.
        remote_log.checks.limit().spend(1)

    assert [each.bytes_per_second for each in limits] == [8 << 20] * 2
    assert limits[0].spent > report.size
    assert limits[1].spent == 1
