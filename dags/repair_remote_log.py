"""Repair what an audit finds, as far as it needs no guess. Manual only; by default it only shows the plan.

A run copies damaged segments again if the local log still has them. It finishes whole copies that were never finished
if no other segment holds their records. It deletes what other copies and deletions left in the store. It names every
other anomaly and leaves it to a person.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import Param, XComArg

from tiered_storage_airflow.clusters import DEFAULT_ARGS, LONG_RUN_TIMEOUT, Cluster, dag_of_each_cluster
from tiered_storage_airflow.forms import fields
from tiered_storage_airflow.operators.remote_log_metadata import CommitMetadataOperator
from tiered_storage_airflow.operators.remote_storage import CopySegmentsOperator
from tiered_storage_airflow.operators.repair import FinishRepairOperator, PlanRepairOperator


@dag_of_each_cluster(
    "repair_remote_log",
    schedule=None,
    catchup=False,
    is_paused_upon_creation=False,
    max_active_runs=1,
    dagrun_timeout=LONG_RUN_TIMEOUT,
    tags=["tiered-storage", "repair"],
    default_args={**DEFAULT_ARGS, "pool": "remote_log_metadata"},
    params={
        **fields.common_params(),
        "deep": Param(False, type="boolean", title="Deep: read every byte back"),
        "dry_run": fields.dry_run_param("Only show the plan", default=True),
    },
    doc_md=__doc__,
)
def repair_remote_log(cluster: Cluster) -> None:
    plan = PlanRepairOperator(
        task_id="plan", deep="{{ params.deep }}",
        topics=fields.TOPICS, partitions=fields.PARTITIONS, must_match=fields.MUST_MATCH,
        settings=fields.SETTINGS, dry_run=fields.DRY_RUN,
        pool=cluster.pool("remote_log_reader"), execution_timeout=timedelta(hours=6),
    )  # fmt: skip
    copied = CopySegmentsOperator(
        task_id="copy", plan=XComArg(plan, key="copies"), settings=fields.SETTINGS, dry_run=fields.DRY_RUN,
        conn_id="spark_default", pool=cluster.pool("remote_log_copier"), execution_timeout=timedelta(hours=1),
    )  # fmt: skip
    committed = CommitMetadataOperator.partial(
        task_id="commit_metadata", map_index_template="{{ batch_name }}",
        settings=fields.SETTINGS, dry_run=fields.DRY_RUN,
    ).expand(results=copied.output)  # fmt: skip
    finished = FinishRepairOperator(
        task_id="finish",
        plan=XComArg(plan, key="repairs"),
        results=copied.output,
        settings=fields.SETTINGS,
        dry_run=fields.DRY_RUN,
        pool=cluster.pool("remote_log_deleter"),
        trigger_rule="none_failed",
    )
    committed >> finished


repair_remote_log()
