"""Delete remote segments past total retention, every hour, and clean up after copies that never finished.

A run first moves the global log start, so that readers no longer see the expired segments, and then marks them. The
first run after remote.log.deletion.grace.ms deletes their objects. It deletes only if remote deletion is allowed for
the topic. A backfill takes its window's end as now. Scheduled runs only plan until scheduled.deletion.enable is set;
see plan_deletions.
"""

from __future__ import annotations

from datetime import timedelta

import pendulum
from airflow.sdk import CronDataIntervalTimetable

from tiered_storage_airflow.clusters import DEFAULT_ARGS, RUN_TIMEOUT, Cluster, dag_of_each_cluster
from tiered_storage_airflow.forms import fields
from tiered_storage_airflow.operators.expiry import DeleteSegmentsOperator, MarkDeletedOperator, PlanExpiryOperator


@dag_of_each_cluster(
    "expire_remote_segments",
    schedule=CronDataIntervalTimetable("0 * * * *", timezone="UTC"),
    start_date=pendulum.datetime(2020, 1, 1, tz="UTC"),
    catchup=False,
    is_paused_upon_creation=True,
    max_active_runs=1,
    dagrun_timeout=RUN_TIMEOUT,
    tags=["tiered-storage", "retention"],
    default_args={**DEFAULT_ARGS, "pool": "remote_log_metadata"},
    params={
        **fields.common_params(),
        "max_segments": fields.max_segments_param(),
        "dry_run": fields.dry_run_param("Only show the plan"),
    },
    doc_md=__doc__,
)
def expire_remote_segments(cluster: Cluster) -> None:
    plan = PlanExpiryOperator(
        task_id="plan", max_segments=fields.MAX_SEGMENTS,
        topics=fields.TOPICS, partitions=fields.PARTITIONS, must_match=fields.MUST_MATCH,
        settings=fields.SETTINGS, dry_run=fields.DRY_RUN,
    )  # fmt: skip
    marked = MarkDeletedOperator(
        task_id="mark_deleted", plan=plan.output, is_reported_later=True, pool=cluster.pool("remote_log_deleter"),
        settings=fields.SETTINGS, dry_run=fields.DRY_RUN,
    )  # fmt: skip
    DeleteSegmentsOperator(
        task_id="delete", not_marked=marked.output,
        topics=fields.TOPICS, partitions=fields.PARTITIONS, must_match=fields.MUST_MATCH,
        settings=fields.SETTINGS, dry_run=fields.DRY_RUN,
        pool=cluster.pool("remote_log_deleter"), execution_timeout=timedelta(hours=1),
    )  # fmt: skip


expire_remote_segments()
