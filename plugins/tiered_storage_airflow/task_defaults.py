"""How the DAGs' tasks are tried again and when they end, unless a task says otherwise, and in which pools they run.

Every task is tried again, for in each a second try is safe: it looks again, or takes up what the first one left, under
the same leases. What no second try can repair fails for good by itself (AirflowFailException).
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from tiered_storage_airflow.forms import refuse_unknown_fields

RETRIED: dict[str, Any] = {
    "retries": 3,
    "retry_delay": timedelta(seconds=30),
    "retry_exponential_backoff": 2.0,
    "max_retry_delay": timedelta(minutes=10),
    "execution_timeout": timedelta(minutes=30),
    "pre_execute": refuse_unknown_fields,
}
"""For default_args: three more tries, each after a longer pause, of half an hour at most.

No task begins in a run that was given a field which the form has not.
"""

COPIER = "remote_log_copier"
"""The pool of what copies: Spark jobs that write to the store."""
READER = "remote_log_reader"
"""The pool of what may read much of the store for hours: audits, and restores."""
DELETER = "remote_log_deleter"
"""The pool of what marks, deletes and trims: one at a time."""
METADATA = "remote_log_metadata"
"""The pool of all else that reads or writes the metadata: plans, commits, what concludes a run. They take a moment."""

BY_HAND: dict[str, Any] = {"catchup": False, "is_paused_upon_creation": False}
"""For a DAG that only a person starts: what was asked for begins at once, and does not wait to surprise somebody."""
SCHEDULED: dict[str, Any] = {"catchup": False, "is_paused_upon_creation": True}
"""For a DAG with a schedule: it never begins by itself, whatever Airflow's configuration says."""
