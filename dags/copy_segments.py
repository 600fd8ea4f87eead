"""Copy closed segments to the remote tier, every five minutes.

A backfill over a past window copies what was closed by the window's end; running it twice changes nothing.
"""

from __future__ import annotations

from datetime import timedelta

import pendulum
from airflow.sdk import CronDataIntervalTimetable, dag

from tiered_storage_airflow.assets import REMOTE_LOG
from tiered_storage_airflow.forms import COMMON, DRY_RUN, MAX_SEGMENTS, common_params, dry_run_param, max_segments_param
from tiered_storage_airflow.operators.remote_log_metadata import (
    AnnounceCopyOperator,
    CommitMetadataOperator,
    ConcludeCopyOperator,
    PlanCopyOperator,
)
from tiered_storage_airflow.operators.remote_storage import CopySegmentsOperator
from tiered_storage_airflow.task_defaults import COPIER, METADATA, RETRIED, SCHEDULED

NOT_BEGUN = "{{ ti.xcom_pull(task_ids='copy', key='not_begun') or '' }}"


@dag(
    schedule=CronDataIntervalTimetable("*/5 * * * *", timezone="UTC"),
    start_date=pendulum.datetime(2020, 1, 1, tz="UTC"),
    **SCHEDULED,
    max_active_runs=1,
    tags=["tiered-storage", "copy"],
    default_args={**RETRIED, **COMMON, "pool": METADATA, "dry_run": DRY_RUN},
    params={
        **common_params(),
        "max_segments": max_segments_param("copy.max.segments.per.run of the settings"),
        "dry_run": dry_run_param("Only show the plan"),
    },
    doc_md=__doc__,
)
def copy_segments() -> None:
    # A dry run or an empty plan skips the rest: no Spark, no event.
    plan = PlanCopyOperator(task_id="plan", max_segments=MAX_SEGMENTS)
    copied = CopySegmentsOperator(task_id="copy", plan=plan.output, pool=COPIER, execution_timeout=timedelta(hours=1))
    committed = CommitMetadataOperator.partial(task_id="commit_metadata", map_index_template="{{ batch_name }}").expand(
        results=copied.output
    )
    # What was committed is announced though others failed (nothing committed: it skips itself) ...
    announced = AnnounceCopyOperator(
        task_id="announce", results=copied.output, not_begun=NOT_BEGUN, outlets=[REMOTE_LOG], trigger_rule="all_done",
    )  # fmt: skip
    # ... and this leaf keeps the run red when they did, or when something that was asked for was left out.
    concluded = ConcludeCopyOperator(
        task_id="all_committed", plan=plan.output, not_begun=NOT_BEGUN, trigger_rule="none_failed"
    )
    committed >> [announced, concluded]


copy_segments()
