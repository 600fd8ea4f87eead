"""Repair what an audit finds, as far as nothing has to be guessed. Only by hand, and only shown unless asked for more.

What is damaged in the store is copied again where the local log still has it; whole copies that nobody finished, and
nothing else holds, are finished; what other copies and deletions left there goes. Whatever else is wrong is named, and
left to a person.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import Param, XComArg, dag

from tiered_storage_airflow.forms import COMMON, DRY_RUN, common_params, dry_run_param
from tiered_storage_airflow.operators.remote_log_metadata import CommitMetadataOperator
from tiered_storage_airflow.operators.remote_storage import CopySegmentsOperator
from tiered_storage_airflow.operators.repair import FinishRepairOperator, PlanRepairOperator
from tiered_storage_airflow.task_defaults import BY_HAND, COPIER, DELETER, METADATA, READER, RETRIED


@dag(
    schedule=None,
    **BY_HAND,
    max_active_runs=1,
    tags=["tiered-storage", "repair"],
    default_args={**RETRIED, **COMMON, "pool": METADATA, "dry_run": DRY_RUN},
    params={
        **common_params(),
        "deep": Param(False, type="boolean", title="Look for what is wrong by reading every byte back"),
        "dry_run": dry_run_param("Only show the plan", default=True),
    },
    doc_md=__doc__,
)
def repair_remote_log() -> None:
    plan = PlanRepairOperator(
        task_id="plan", deep="{{ params.deep }}", pool=READER, execution_timeout=timedelta(hours=6)
    )
    copied = CopySegmentsOperator(
        task_id="copy", plan=XComArg(plan, key="copies"), pool=COPIER, execution_timeout=timedelta(hours=1)
    )
    committed = CommitMetadataOperator.partial(task_id="commit_metadata", map_index_template="{{ batch_name }}").expand(
        results=copied.output
    )
    finished = FinishRepairOperator(
        task_id="finish",
        plan=XComArg(plan, key="repairs"),
        not_begun="{{ ti.xcom_pull(task_ids='copy', key='not_begun') or '' }}",
        pool=DELETER,
        trigger_rule="none_failed",
    )
    committed >> finished


repair_remote_log()
