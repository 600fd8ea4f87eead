"""Trim local logs: segments past local retention that the remote tier holds.

The event of a committed copy starts a run for the partitions that it names. Every hour a run checks all partitions,
since segments also age while nothing is copied. It deletes oldest first, only if local deletion is allowed for the
topic, and in a log directory only while no broker holds it. Beside a running cluster the brokers delete, by
DeleteRecords, what every consumer group has read. A manual run checks all partitions. Runs started by the schedule
or by an event only plan until scheduled.deletion.enable is set; see plan_deletions.
"""

from __future__ import annotations

from datetime import timedelta

import pendulum
from airflow.sdk import AssetOrTimeSchedule, CronTriggerTimetable

from tiered_storage_airflow.clusters import DEFAULT_ARGS, RUN_TIMEOUT, Cluster, dag_of_each_cluster
from tiered_storage_airflow.forms import fields
from tiered_storage_airflow.operators.local_retention import PlanLocalRetentionOperator, TrimLocalLogsOperator


@dag_of_each_cluster(
    "enforce_local_retention",
    schedule=lambda cluster: AssetOrTimeSchedule(
        timetable=CronTriggerTimetable("20 * * * *", timezone="UTC"), assets=[cluster.remote_log]
    ),
    start_date=pendulum.datetime(2020, 1, 1, tz="UTC"),
    catchup=False,
    is_paused_upon_creation=True,
    max_active_runs=1,
    dagrun_timeout=RUN_TIMEOUT,
    tags=["tiered-storage", "retention"],
    default_args={**DEFAULT_ARGS, "pool": "remote_log_metadata"},
    params={
        **fields.common_params(),
        "max_segments": fields.max_segments_param("local.retention.max.segments.per.run of the settings"),
        "dry_run": fields.dry_run_param("Only show what would be deleted"),
    },
    doc_md=__doc__,
)
def enforce_local_retention(cluster: Cluster) -> None:
    plan = PlanLocalRetentionOperator(
        task_id="plan", max_segments=fields.MAX_SEGMENTS,
        topics=fields.TOPICS, partitions=fields.PARTITIONS, must_match=fields.MUST_MATCH,
        settings=fields.SETTINGS, dry_run=fields.DRY_RUN,
    )  # fmt: skip
    TrimLocalLogsOperator(
        task_id="trim", plan=plan.output, settings=fields.SETTINGS, dry_run=fields.DRY_RUN,
        pool=cluster.pool("remote_log_deleter"), execution_timeout=timedelta(hours=1),
    )  # fmt: skip


enforce_local_retention()
