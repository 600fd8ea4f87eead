"""Counts remote segments every hour: an example of a DAG file, which reads like a list of steps."""

from __future__ import annotations

from airflow.sdk import dag

from recipes.operator import CountSegmentsOperator
from tiered_storage_airflow.runs.task_defaults import DEFAULT_ARGS


@dag(schedule="@hourly", catchup=False, tags=["tiered-storage"], default_args=DEFAULT_ARGS, doc_md=__doc__)
def count_segments() -> None:
    CountSegmentsOperator(task_id="count")


count_segments()
