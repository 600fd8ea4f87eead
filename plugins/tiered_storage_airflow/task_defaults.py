"""What all tasks of the DAGs here have in common; each DAG's file says the rest."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from tiered_storage_airflow.forms import refuse_unknown_fields

DEFAULT_ARGS: dict[str, Any] = {
    "retries": 3,
    "retry_delay": timedelta(seconds=30),
    "retry_exponential_backoff": 2.0,
    "max_retry_delay": timedelta(minutes=10),
    "execution_timeout": timedelta(minutes=30),
    "pre_execute": refuse_unknown_fields,
}
"""For default_args: three more tries, each after a longer pause; half an hour for a task that names no other time.

A second try of every task is safe: it looks again, or takes up what the first one left, under the same leases. What no
second try can repair fails for good by itself (AirflowFailException). No task begins in a run that was given a field
which the form has not.
"""
