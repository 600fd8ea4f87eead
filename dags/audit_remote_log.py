"""Audit the remote log, every night: every reference, no gap, every size; every checksum too where asked for.

It changes nothing. A run is red when it found an anomaly; its message and its report name each.
"""

from __future__ import annotations

from datetime import timedelta

import pendulum
from airflow.sdk import CronDataIntervalTimetable, Param, dag

from tiered_storage_airflow.forms import COMMON, common_params
from tiered_storage_airflow.operators.audit import VerifySegmentsOperator
from tiered_storage_airflow.task_defaults import READER, RETRIED, SCHEDULED


@dag(
    schedule=CronDataIntervalTimetable("30 2 * * *", timezone="UTC"),
    start_date=pendulum.datetime(2020, 1, 1, tz="UTC"),
    **SCHEDULED,
    max_active_runs=1,
    tags=["tiered-storage", "audit"],
    default_args={**RETRIED, **COMMON},
    params={
        **common_params(),
        "deep": Param(False, type="boolean", title="Read every byte back and check every checksum"),
    },
    doc_md=__doc__,
)
def audit_remote_log() -> None:
    VerifySegmentsOperator(task_id="audit", deep="{{ params.deep }}", pool=READER, execution_timeout=timedelta(hours=6))


audit_remote_log()
