"""Trim local logs: segments past local retention that the remote tier holds.

Runs on the event of a committed copy, for the partitions that it names, and every hour for all: segments grow old also
where nothing new is copied. Deletes only where local deletion was allowed for the topic, oldest first, while no
broker has the directory. A manual run looks at all partitions.
"""

from __future__ import annotations

from datetime import timedelta

import pendulum
from airflow.sdk import AssetOrTimeSchedule, CronTriggerTimetable, Param, dag

from tiered_storage_airflow.assets import REMOTE_LOG
from tiered_storage_airflow.operators.remote_storage import EnforceLocalRetentionOperator
from tiered_storage_airflow.topic_choice import TOPICS, topics_param


@dag(
    schedule=AssetOrTimeSchedule(timetable=CronTriggerTimetable("20 * * * *", timezone="UTC"), assets=[REMOTE_LOG]),
    start_date=pendulum.datetime(2020, 1, 1, tz="UTC"),
    catchup=False,
    max_active_runs=1,
    tags=["tiered-storage", "retention"],
    default_args={"retries": 3, "retry_delay": timedelta(seconds=30), "retry_exponential_backoff": 2.0},
    params={
        "topics": topics_param(),
        "dry_run": Param(False, type="boolean", title="Only show what would go"),
        "settings": Param({}, type="object", title="Settings", description="Properties by name, for this run only."),
    },
    doc_md=__doc__,
)
def enforce_local_retention() -> None:
    EnforceLocalRetentionOperator(task_id="trim", topics=TOPICS, execution_timeout=timedelta(hours=1))


enforce_local_retention()
