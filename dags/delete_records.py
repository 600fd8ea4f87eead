"""Delete the records of a partition before an offset, in both tiers. Manual only; by default it only shows the plan.

Remote deletion must be allowed for the topic. Readers stop seeing the records at once. The first runs of
expire_remote_segments and enforce_local_retention after remote.log.deletion.grace.ms delete the segments that lie
entirely before the offset. Until then the DAG undelete brings them back.
"""

from __future__ import annotations

from airflow.sdk import Param

from tiered_storage_airflow.clusters import DEFAULT_ARGS, RUN_TIMEOUT, Cluster, dag_of_each_cluster
from tiered_storage_airflow.forms import fields
from tiered_storage_airflow.operators.deletion import PlanRecordDeletionOperator
from tiered_storage_airflow.operators.expiry import MarkDeletedOperator


@dag_of_each_cluster(
    "delete_records",
    schedule=None,
    catchup=False,
    is_paused_upon_creation=False,
    max_active_runs=1,
    dagrun_timeout=RUN_TIMEOUT,
    tags=["tiered-storage", "deletion"],
    default_args={**DEFAULT_ARGS, "pool": "remote_log_metadata"},
    params={
        "topic": fields.topic_param(),
        "partition": Param(0, type="integer", minimum=0, maximum=2**31 - 1, title="Partition"),
        "before": Param(
            0,
            type="integer",
            minimum=-1,
            maximum=fields.LARGEST_NUMBER,
            title="Before",
            description="The first offset to keep; -1: the end.",
        ),
        "dry_run": fields.dry_run_param("Only show what would be deleted", default=True),
        "settings": fields.settings_param(),
    },
    doc_md=__doc__,
)
def delete_records(cluster: Cluster) -> None:
    plan = PlanRecordDeletionOperator(
        task_id="plan",
        topic="{{ params.topic }}",
        partition="{{ params.partition }}",
        before="{{ params.before }}",
        settings=fields.SETTINGS,
        dry_run=fields.DRY_RUN,
    )
    MarkDeletedOperator(
        task_id="mark_deleted",
        plan=plan.output,
        pool=cluster.pool("remote_log_deleter"),
        settings=fields.SETTINGS,
        dry_run=fields.DRY_RUN,
    )


delete_records()
