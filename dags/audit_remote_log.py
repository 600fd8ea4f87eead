"""Audit the remote log, every night: every reference, no gap, every size; every checksum too where asked for.

It changes nothing. A run is red when it found an anomaly; its message and its report name each.
"""

from __future__ import annotations

from datetime import timedelta

import pendulum
from airflow.sdk import CronDataIntervalTimetable, Param, dag

from tiered_storage_airflow.operators.remote_storage import VerifySegmentsOperator
from tiered_storage_airflow.topic_choice import TOPICS, topics_param


@dag(
    schedule=CronDataIntervalTimetable("30 2 * * *", timezone="UTC"),
    start_date=pendulum.datetime(2020, 1, 1, tz="UTC"),
    catchup=False,
    max_active_runs=1,
    tags=["tiered-storage", "audit"],
    params={
        "topics": topics_param(),
        "deep": Param(False, type="boolean", title="Read every byte back and check every checksum"),
        "settings": Param({}, type="object", title="Settings", description="Properties by name, for this run only."),
    },
    doc_md=__doc__,
)
def audit_remote_log() -> None:
    VerifySegmentsOperator(
        task_id="audit", topics=TOPICS, deep="{{ params.deep }}", execution_timeout=timedelta(hours=6)
    )


audit_remote_log()
