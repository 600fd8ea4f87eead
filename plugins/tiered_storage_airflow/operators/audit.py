"""Operators that hold the store against the metadata: the quick audit, in the task, and the deep one, by Spark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowFailException

from tiered_storage_airflow.operators.remote_log_operator import SelectingOperator
from tiered_storage_airflow.operators.spark_groups import SPARK_JOBS
from tiered_storage_airflow.run_scope import is_switched_on
from tiered_storage_airflow.run_summary import summarize
from tiered_storage_airflow.run_time import run_folder

if TYPE_CHECKING:
    from airflow.sdk import Context

    from tiered_storage.remote_log.audit_report import AuditReport

AUDIT_JOB = SPARK_JOBS / "audit_segments.py"
MOST_ANOMALIES_SHOWN = 20
"""So many fit into a message; the report has them all."""


class VerifySegmentsOperator(SelectingOperator):
    """Audit the remote log: references, contiguity, sizes, and every checksum where `deep`.

    :param deep: read every byte back, in this task; AuditDeeplyOperator does so by Spark
    """

    template_fields: Sequence[str] = (*SelectingOperator.template_fields, "deep")

    def __init__(self, *, deep: bool | str = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.deep = deep

    def execute(self, context: Context) -> str:
        """Audit; returns the report's path and fails, without a retry, for every anomaly."""
        from tiered_storage.remote_log.audit_report import AuditReport

        deep = is_switched_on(self.deep, "deep")
        with self.opened() as remote_log:
            report = remote_log.checks.audit(self.selection(remote_log), deep=deep)
            path = f"runs/{run_folder(context)}/audit.jsonl"
            remote_log.work.write(path, [report], AuditReport)
            _summarize(remote_log, context, self.log, report)
        _show(report, self.log)
        fail_for(report, path)
        return path


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
    )


def fail_for(report: AuditReport, path: str) -> None:
    """Raise AirflowFailException where the report, kept at `path`, names anomalies."""
    if not report.anomalies:
        return
    shown = report.anomalies[:MOST_ANOMALIES_SHOWN]
    raise AirflowFailException(
        f"{report.anomaly_count} anomalies (report: {path}): "
        + "; ".join(f"{anomaly.kind.value} {anomaly.what}: {anomaly.message}" for anomaly in shown)
        + ("; …" if len(shown) < report.anomaly_count else "")
    )
