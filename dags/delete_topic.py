"""Delete everything remote of one incarnation of a topic. Manual only; by default it only shows the plan.

The topic must be disabled, and its remote deletion allowed. Local segments stay. Readers stop seeing the remote
records at once. The first run of expire_remote_segments after remote.log.deletion.grace.ms deletes the objects. Until
then the DAG undelete brings them back.
"""

from __future__ import annotations

from airflow.sdk import Param

from tiered_storage_airflow.clusters import DEFAULT_ARGS, RUN_TIMEOUT, Cluster, dag_of_each_cluster
from tiered_storage_airflow.forms import fields
from tiered_storage_airflow.operators.deletion import MarkTopicDeletedOperator, PlanTopicDeletionOperator


@dag_of_each_cluster(
    "delete_topic",
    schedule=None,
    catchup=False,
    is_paused_upon_creation=False,
    max_active_runs=1,
    dagrun_timeout=RUN_TIMEOUT,
    tags=["tiered-storage", "deletion"],
    default_args={**DEFAULT_ARGS, "pool": "remote_log_metadata"},
    params={
        "topic": fields.topic_param(),
        "topic_id": Param(
            None,
            type=["null", "string"],
            title="Topic id",
            description="The incarnation; needed if the topic had several.",
        ),
        "dry_run": fields.dry_run_param("Only show what would be deleted", default=True),
        "confirmation": fields.reason_param("Confirmation", "The topic's name again, to delete it."),
        "settings": fields.settings_param(),
    },
    doc_md=__doc__,
)
def delete_topic(cluster: Cluster) -> None:
    plan = PlanTopicDeletionOperator(
        task_id="plan",
        topic="{{ params.topic }}",
        topic_id="{{ params.topic_id or '' }}",
        settings=fields.SETTINGS,
        dry_run=fields.DRY_RUN,
    )
    MarkTopicDeletedOperator(
        task_id="mark_deleted",
        plan=plan.output,
        topic="{{ params.topic }}",
        confirmation="{{ params.confirmation or '' }}",
        settings=fields.SETTINGS,
        dry_run=fields.DRY_RUN,
        pool=cluster.pool("remote_log_deleter"),
    )


delete_topic()
