"""Lists the segments of a topic on two clusters: a DAG whose name ends like one of ours, and which serves both."""

from __future__ import annotations

from airflow.sdk import dag

from tiered_storage_airflow.operators.remote_log_metadata import ListSegmentsOperator


@dag(schedule=None, catchup=False)
def nightly__west() -> None:
    ListSegmentsOperator(task_id="of_the_first", topic="orders")
    ListSegmentsOperator(task_id="of_west", topic="orders", cluster="west")


nightly__west()
