"""Bring a topic back from the store, into a log directory of a stopped broker or into a running cluster.

Only by hand, and only a plan unless Only show the plan is switched off. A directory gets all of it or nothing; a
cluster gets the committed records, each once, and a file tells their new offsets. Clear a failed run to let it go on.
"""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import dag

from tiered_storage_airflow.forms import DRY_RUN, SETTINGS
from tiered_storage_airflow.operators.restore import PlanRestoreOperator, RestoreOperator
from tiered_storage_airflow.restore_form import CHOSEN, FORM, TAKEN
from tiered_storage_airflow.task_defaults import BY_HAND, METADATA, READER, RETRIED


@dag(
    schedule=None,
    **BY_HAND,
    max_active_runs=1,
    tags=["tiered-storage", "restore"],
    default_args={**RETRIED, "pool": METADATA, **TAKEN, **CHOSEN, "settings": SETTINGS, "dry_run": DRY_RUN},
    params=FORM,
    doc_md=__doc__,
)
def restore_topic() -> None:
    plan = PlanRestoreOperator(task_id="plan")  # type: ignore[call-arg]  # default_args have the topic
    plan >> RestoreOperator(task_id="restore", pool=READER, execution_timeout=timedelta(hours=6))


restore_topic()
