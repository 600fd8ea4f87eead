"""Copy one topic after your own load, then check it: the operators of Remote Log in a DAG of your own.

Put such a file into any DAGs folder whose Airflow has Remote Log installed. It needs the settings file that the other
DAGs use (TIERED_STORAGE_CONFIG) and Airflow's connection to Spark, spark_default.
"""

from __future__ import annotations

from datetime import timedelta

import pendulum
from airflow.sdk import dag, task

from tiered_storage_airflow.operators.audit import VerifySegmentsOperator
from tiered_storage_airflow.operators.remote_log_metadata import CommitMetadataOperator, PlanCopyOperator
from tiered_storage_airflow.operators.remote_storage import CopySegmentsOperator


@dag(
    schedule="@daily",
    start_date=pendulum.datetime(2026, 1, 1, tz="UTC"),
    catchup=False,
    default_args={
        "retries": 3,
        "retry_delay": timedelta(seconds=30),
        # Only for this DAG. All other settings come from the settings file.
        "settings": {"copy.stuck.after.ms": 300_000},
    },
    tags=["example"],
)
def copy_one_topic() -> None:
    @task
    def load() -> None:
        """Fill the topic here."""

    # If nothing is due, the copy tasks are skipped and the check still runs.
    plan = PlanCopyOperator(task_id="plan", topics="orders", partitions="0-9", must_match=False)
    copied = CopySegmentsOperator(task_id="copy", plan=plan.output)
    committed = CommitMetadataOperator.partial(task_id="commit", map_index_template="{{ batch_name }}").expand(
        results=copied.output
    )
    checked = VerifySegmentsOperator(task_id="check", topics="orders", must_match=False, trigger_rule="none_failed")
    load() >> plan
    committed >> checked


copy_one_topic()
