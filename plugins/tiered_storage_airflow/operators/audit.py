"""Operators that only look: audits, which compare the store with the metadata, metrics, and a check of the gateway."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowException, AirflowFailException

from tiered_storage_airflow.operators.remote_log_operator import (
    RemoteLogOperator,
    SelectingOperator,
)
from tiered_storage_airflow.operators.spark_groups import SPARK_JOBS, SparkGroupsOperator
from tiered_storage_airflow.runs.scope import is_switched_on
from tiered_storage_airflow.runs.stats import emit_metrics
from tiered_storage_airflow.runs.summary import summarize
from tiered_storage_airflow.runs.task_context import task_folder

if TYPE_CHECKING:
    from airflow.sdk import Context

    from tiered_storage.remote_log.audit.job import AuditJob
    from tiered_storage.remote_log.audit.report import AuditReport
    from tiered_storage.remote_log.manager import RemoteLogManager
    from tiered_storage.remote_log.metrics.partition_metrics import PartitionMetrics
    from tiered_storage.remote_log.selection import Selection

AUDIT_JOB = SPARK_JOBS / "audit_segments.py"
READ_HERE_BYTES = 1 << 30
"""The task itself reads less than this in less time than Spark takes to start."""
MOST_ANOMALIES_SHOWN = 20
"""The most anomalies in a message; the report has all of them."""


class VerifySegmentsOperator(SelectingOperator, SparkGroupsOperator):
    """Audit the remote log: references, contiguity and sizes; if `deep`, every batch, index and checksum too.

    The task does the quick part. Spark reads what a deep audit needs, unless that takes less time than Spark's start.
    The task fails without a retry for any anomaly, and with a retry for segments that it could not read.

    :param deep: read every byte back
    """

    template_fields: Sequence[str] = (
        *SparkGroupsOperator.template_fields, "topics", "partitions", "must_match", "deep",
    )  # fmt: skip

    def __init__(self, *, deep: bool | str = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.deep = deep

    def execute(self, context: Context) -> str:  # type: ignore[override]
        """Audit; return the report's path."""
        from tiered_storage.remote_log.audit.report import AuditReport

        deep = is_switched_on(self.deep, "deep")
        with self.opened(outdated=True) as remote_log:
            selection = self.selection(remote_log)
            report = remote_log.checks.audit(selection)
            if deep:
                job = self._read_all(context, remote_log, selection, report)
                report = remote_log.checks.conclude_deep_audit(report, job, selection)
            path = f"runs/{task_folder(context)}/audit.jsonl"
            remote_log.context.work.write_report(path, [report], AuditReport)
            _summarize(remote_log, context, self.log, report)
        _show(report, self.log)
        fail_for(report, path)
        return path

    def _read_all(
        self, context: Context, remote_log: RemoteLogManager, selection: Selection, quick: AuditReport
    ) -> AuditJob:
        from tiered_storage.remote_log.jobs.progress import JobSize
        from tiered_storage.remote_log.progress import Amount, TaskProgress

        folder = f"runs/{task_folder(context)}/{context['ti'].try_number}"
        job = remote_log.checks.write_audit_job(folder, selection)
        if quick.size < READ_HERE_BYTES:
            progress = TaskProgress("read", Amount(quick.segments, quick.size), self.log.info)
            limit = remote_log.checks.limit()
            for number in range(job.groups):
                job.run_group(number, remote_log.context.storage, limit, progress)
            progress.conclude()
            return job

        def has_results() -> bool:
            return any(outcome.failure is None for outcome in job.outcomes())

        with self.watch(remote_log, job.files, JobSize(job.groups, quick.segments, quick.size)) as watch:
            self.submit(context, remote_log, job.files, AUDIT_JOB, watch, has_results)
        self.log.info("in total: %s", watch.progress)
        return job


def _show(report: AuditReport, log: Any) -> None:
    log.info("%d segments, %d objects, %d bytes audited", report.segments, report.objects, report.size)
    for notice in report.notices:
        log.warning("%s", notice)


def _summarize(remote_log: Any, context: Context, log: Any, report: AuditReport) -> None:
    summarize(
        remote_log,
        context,
        log,
        segments=report.segments,
        objects=report.objects,
        bytes=report.size,
        anomalies=report.anomaly_count,
        unreferenced=report.unreferenced,
        unread=report.unread,
    )


def fail_for(report: AuditReport, path: str) -> None:
    """Fail if the report at `path` names anomalies; fail with a retry if some segments could not be read."""
    if not report.anomaly_count and not report.unread:
        return
    if not report.anomaly_count:
        raise AirflowException(
            f"{report.unread} segments or documents could not be read, and nothing is known to be wrong with them "
            f"(report: {path}). The next try audits again; if every try fails, check the store with 'tiered-storage "
            "doctor'. " + "; ".join(report.notices)
        )
    shown = report.anomalies[:MOST_ANOMALIES_SHOWN]
    unread = f", {report.unread} segments or documents could not be read" if report.unread else ""
    raise AirflowFailException(
        f"{report.anomaly_count} anomalies{unread} (report: {path}): "
        + "; ".join(f"{anomaly.kind.value} {anomaly.what}: {anomaly.message}" for anomaly in shown)
        + ("; …" if len(shown) < report.anomaly_count else "")
        + "; the DAG repair_remote_log ('tiered-storage repair') repairs what can be repaired: its dry run shows what"
    )


class WatchRemoteLogOperator(RemoteLogOperator):
    """Take the metrics of all topics, keep them for the page, and emit them through Airflow's metrics.

    The task fails without a retry if the offsets of a partition's tiers violate Lz >= Ly >= Lx or Ly >= Ry >= Rx, and
    with a retry if no local log could be looked at. Other tasks fail for what else the metrics show; here it is a
    warning.
    """

    shows_dry_run = True

    def execute(self, context: Context) -> None:
        """Take, keep and emit the metrics; then fail for problems that no other task reports."""
        from tiered_storage.remote_log.metrics.snapshot import Snapshots
        from tiered_storage.remote_log.metrics.stored import keep_metrics

        with self.opened() as remote_log:
            metrics = Snapshots(remote_log.context).take()
            keep_metrics(remote_log.context.work, metrics)
            topics = metrics.topics
            lags = [each.lag for each in topics if each.lag is not None]
            summarize(
                remote_log,
                context,
                self.log,
                topics=len(topics),
                partitions=len(metrics.partitions),
                lag_segments=sum(each.segments for each in lags),
                lag_bytes=sum(each.size for each in lags),
                stuck_copies=sum(each.segments.stuck for each in topics),
                failed_deletions=sum(each.segments.failed_deletions for each in topics),
                violating=[str(each.partition) for each in metrics.partitions if each.violated][:MOST_ANOMALIES_SHOWN],
            )
        emit_metrics(topics, self.cluster)
        for each in topics:
            for trouble in each.troubles:
                self.log.warning("%s", trouble)
        if violating := [each for each in metrics.partitions if each.violated]:
            raise AirflowFailException(_violations(violating))
        if metrics.problem is not None:
            raise AirflowException(f"the local logs could not be looked at: {metrics.problem}")


def _violations(violating: Sequence[PartitionMetrics]) -> str:
    shown = [
        f"{each.partition} ({', '.join(each.violated)}: local {each.offsets.local_start} to {each.offsets.local_end}, "
        f"stable to {each.offsets.stable_end}, remote {each.offsets.remote_start} to {each.offsets.remote_end})"
        for each in violating[:MOST_ANOMALIES_SHOWN]
    ]
    return (
        f"{len(violating)} partitions have offsets that contradict each other: {'; '.join(shown)}. Look at the leader "
        "and its log; trim nothing of these topics before 'tiered-storage audit' finds no anomaly"
    )


class GatewayHealthOperator(RemoteLogOperator):
    """Check the gateway end to end with the canary topic: send a record through it, read that and an old remote one.

    The task fails, with a retry, and names what failed, where, and what to do. It returns what it checked.
    """

    def execute(self, context: Context) -> list[str]:
        """Check the gateway."""
        from tiered_storage.gateway.operation.canary import PARTITION, Canary
        from tiered_storage.remote_log.model import SegmentState

        with self.opened() as remote_log:
            settings = remote_log.context.settings
            topic, access = settings.gateway_canary_topic, remote_log.context.source.access
            if topic is None or not access.get("bootstrap.servers"):
                raise AirflowFailException(
                    "nothing was checked: set gateway.canary.topic, and bootstrap.servers or cluster.connection"
                )
            host = settings.gateway_advertised_host or settings.gateway_listen_host or "127.0.0.1"
            gateway = settings.gateway_canary_bootstrap_servers or f"{host}:{settings.gateway_port}"
            found = remote_log.find_partition(topic, PARTITION)
            log_start = remote_log.context.segments.log_start_offset(found) or 0
            starts = [
                max(segment.start_offset, log_start)
                for segment in remote_log.context.segments.list_remote_log_segments(found)
                if segment.state is SegmentState.COPY_SEGMENT_FINISHED and segment.end_offset >= log_start
            ]
            value = f"{context['run_id']} {context['ti'].try_number}".encode()
            canary = Canary(gateway, access["bootstrap.servers"], topic, access)
            checked = canary.check(value, min(starts, default=None))
        for line in checked:
            self.log.info("%s", line)
        return checked
