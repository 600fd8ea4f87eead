"""Copy closed segments to the remote tier, every five minutes.

A backfill over a past window copies the segments that were closed by the window's end. A second run changes nothing.
"""

from __future__ import annotations

from datetime import timedelta

import pendulum
from airflow.sdk import CronDataIntervalTimetable

from tiered_storage_airflow.clusters import DEFAULT_ARGS, RUN_TIMEOUT, Cluster, dag_of_each_cluster
from tiered_storage_airflow.forms import fields
from tiered_storage_airflow.operators.remote_log_metadata import (
    AnnounceCopyOperator,
    CommitMetadataOperator,
    ConcludeCopyOperator,
    PlanCopyOperator,
)
from tiered_storage_airflow.operators.remote_storage import CopySegmentsOperator


@dag_of_each_cluster(
    "copy_segments",
    schedule=CronDataIntervalTimetable("*/5 * * * *", timezone="UTC"),
    start_date=pendulum.datetime(2020, 1, 1, tz="UTC"),
    catchup=False,
    is_paused_upon_creation=True,
    max_active_runs=1,
    dagrun_timeout=RUN_TIMEOUT,
    tags=["tiered-storage", "copy"],
    default_args={**DEFAULT_ARGS, "pool": "remote_log_metadata"},
    params={
        **fields.common_params(),
        "max_segments": fields.max_segments_param("copy.max.segments.per.run of the settings"),
        "dry_run": fields.dry_run_param("Only show the plan"),
    },
    doc_md=__doc__,
    in_copy_queues=True,
)
def copy_segments(cluster: Cluster) -> None:
    plan = PlanCopyOperator(
        task_id="plan", max_segments=fields.MAX_SEGMENTS,
        topics=fields.TOPICS, partitions=fields.PARTITIONS, must_match=fields.MUST_MATCH,
        settings=fields.SETTINGS, dry_run=fields.DRY_RUN,
    )  # fmt: skip
    copied = CopySegmentsOperator(
        task_id="copy", plan=plan.output, settings=fields.SETTINGS, dry_run=fields.DRY_RUN,
        conn_id="spark_default", pool=cluster.pool("remote_log_copier"), execution_timeout=timedelta(hours=1),
    )  # fmt: skip
    committed = CommitMetadataOperator.partial(
        task_id="commit_metadata", plan=plan.output, map_index_template="{{ batch_name }}",
        settings=fields.SETTINGS, dry_run=fields.DRY_RUN,
    ).expand(results=copied.output)  # fmt: skip
    # Announces what was committed even if other partitions failed; skips itself if nothing was committed.
    announced = AnnounceCopyOperator(
        task_id="announce", results=copied.output, outlets=[cluster.remote_log], trigger_rule="all_done",
        settings=fields.SETTINGS, dry_run=fields.DRY_RUN,
    )  # fmt: skip
    # This leaf fails the run if a partition failed, or if the run left out something that was requested.
    concluded = ConcludeCopyOperator(
        task_id="all_committed", plan=plan.output, results=copied.output, trigger_rule="none_failed",
        topics=fields.TOPICS, partitions=fields.PARTITIONS, must_match=fields.MUST_MATCH,
        settings=fields.SETTINGS, dry_run=fields.DRY_RUN,
    )  # fmt: skip
    # A dry run or an empty plan skips the tasks right after it: announce, which runs whatever failed, must be one.
    plan >> announced
    committed >> [announced, concluded]


copy_segments()
