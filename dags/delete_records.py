"""Delete the records of a partition before an offset, in both tiers. By hand only; it just shows unless asked for more.

Remote deletion has to be allowed for the topic. Readers see no more of the records at once; the first runs of
expire_remote_segments and enforce_local_retention after remote.log.deletion.grace.ms remove the segments that lie
wholly before the offset. Until then the DAG undelete brings them back.
"""

from __future__ import annotations

from airflow.sdk import Param, dag

from tiered_storage_airflow.forms import (
    DRY_RUN,
    LARGEST_NUMBER,
    SETTINGS,
    dry_run_param,
    settings_param,
    topic_param,
)
from tiered_storage_airflow.operators.deletion import PlanRecordDeletionOperator
from tiered_storage_airflow.operators.expiry import MarkDeletedOperator
from tiered_storage_airflow.task_defaults import BY_HAND, DELETER, METADATA, RETRIED


@dag(
    schedule=None,
    **BY_HAND,
    max_active_runs=1,
    tags=["tiered-storage", "deletion"],
    default_args={**RETRIED, "pool": METADATA, "settings": SETTINGS, "dry_run": DRY_RUN},
    params={
        "topic": topic_param(),
        "partition": Param(0, type="integer", minimum=0, maximum=2**31 - 1, title="Partition"),
        "before": Param(
            0,
            type="integer",
            minimum=-1,
            maximum=LARGEST_NUMBER,
            title="Before",
            description="The first offset that stays; -1: the end.",
        ),
        "dry_run": dry_run_param("Only show what would go", default=True),
        "settings": settings_param(),
    },
    doc_md=__doc__,
)
def delete_records() -> None:
    plan = PlanRecordDeletionOperator(
        task_id="plan",
        topic="{{ params.topic }}",
        partition="{{ params.partition }}",
        before="{{ params.before }}",
    )
    MarkDeletedOperator(task_id="mark_deleted", plan=plan.output, pool=DELETER)


delete_records()
