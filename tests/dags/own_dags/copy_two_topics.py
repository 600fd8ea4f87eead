"""Copies two topics, each by a chain of its own: a DAG such as users write."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from airflow.sdk import Param, TaskGroup, dag

from tiered_storage_airflow.operators.remote_log_metadata import (
    AnnounceCopyOperator,
    CommitMetadataOperator,
    PlanCopyOperator,
)
from tiered_storage_airflow.operators.remote_storage import CopySegmentsOperator

DRY_RUN = "{{ params.dry_run }}"


def greet(context: Mapping[str, Any]) -> None:
    """Do what users do before their tasks."""
    context["task"].log.info("about to run %s", context["task"].task_id)


@dag(
    schedule=None,
    catchup=False,
    default_args={"retries": 3, "retry_delay": timedelta(seconds=30), "dry_run": DRY_RUN, "pre_execute": greet},
    params={"dry_run": Param(False, type="boolean")},
)
def copy_two_topics() -> None:
    for topic in ("orders", "payments"):
        with TaskGroup(topic):
            plan = PlanCopyOperator(task_id="plan", topics=topic)
            copied = CopySegmentsOperator(task_id="copy", plan=plan.output, conn_id="spark_default")
            committed = CommitMetadataOperator.partial(task_id="commit", map_index_template="{{ batch_name }}").expand(
                results=copied.output
            )
            committed >> AnnounceCopyOperator(task_id="announce", results=copied.output)


copy_two_topics()
