"""End the life of what is past total retention, every hour, and clean up after copies that never finished.

Our log start moves first, so that no reader is shown what goes; then segments are marked, then their objects are
deleted. Nothing goes unless remote deletion was allowed for the topic. A backfill takes its window's end as now.
"""

from __future__ import annotations

from datetime import timedelta

import pendulum
from airflow.sdk import CronDataIntervalTimetable, Param, dag

from tiered_storage_airflow.operators.remote_log_metadata import MarkDeletedOperator, PlanExpiryOperator
from tiered_storage_airflow.operators.remote_storage import DeleteSegmentsOperator
from tiered_storage_airflow.topic_choice import TOPICS, topics_param


@dag(
    schedule=CronDataIntervalTimetable("0 * * * *", timezone="UTC"),
    start_date=pendulum.datetime(2020, 1, 1, tz="UTC"),
    catchup=False,
    max_active_runs=1,
    tags=["tiered-storage", "retention"],
    default_args={"retries": 3, "retry_delay": timedelta(seconds=30), "retry_exponential_backoff": 2.0},
    params={
        "topics": topics_param(),
        "dry_run": Param(False, type="boolean", title="Only show the plan"),
        "settings": Param({}, type="object", title="Settings", description="Properties by name, for this run only."),
    },
    doc_md=__doc__,
)
def expire_remote_segments() -> None:
    plan = PlanExpiryOperator(task_id="plan", topics=TOPICS)
    marked = MarkDeletedOperator(task_id="mark_deleted", plan=plan.output)
    deleted = DeleteSegmentsOperator(task_id="delete", pool="remote_log_deleter", execution_timeout=timedelta(hours=1))
    marked >> deleted


expire_remote_segments()
