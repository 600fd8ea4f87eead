"""Bring back deleted records of a topic while their objects exist. Manual only; by default it only shows the plan.

It undoes deletions by expire_remote_segments, delete_records, delete_topic or a disabled topic. The objects stay for
remote.log.deletion.grace.ms. Raise the retention limits first: the next run expires again what is still past them.
"""

from __future__ import annotations

from airflow.sdk import Param

from tiered_storage_airflow.clusters import DEFAULT_ARGS, RUN_TIMEOUT, Cluster, dag_of_each_cluster
from tiered_storage_airflow.forms import fields
from tiered_storage_airflow.operators.deletion import UndeleteOperator


@dag_of_each_cluster(
    "undelete",
    schedule=None,
    catchup=False,
    is_paused_upon_creation=False,
    max_active_runs=1,
    dagrun_timeout=RUN_TIMEOUT,
    tags=["tiered-storage", "deletion"],
    default_args={**DEFAULT_ARGS, "pool": "remote_log_metadata"},
    params={
        "topic": fields.topic_param(),
        "partitions": fields.partitions_param(),
        "topic_id": Param(
            None, type=["null", "string"], title="Topic id", description="One incarnation of the topic; empty: all."
        ),
        "dry_run": fields.dry_run_param("Only show what would come back", default=True),
        "settings": fields.settings_param(),
    },
    doc_md=__doc__,
)
def undelete(_: Cluster) -> None:
    UndeleteOperator(
        task_id="undelete",
        topic="{{ params.topic }}",
        partitions=fields.PARTITIONS,
        topic_id="{{ params.topic_id or '' }}",
        settings=fields.SETTINGS,
        dry_run=fields.DRY_RUN,
    )


undelete()
