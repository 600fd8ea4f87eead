"""The default arguments of all tasks of our DAGs, and how long a run may take."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

DEFAULT_ARGS: dict[str, Any] = {
    "retries": 3,
    "retry_delay": timedelta(seconds=30),
    "retry_exponential_backoff": 2.0,
    "max_retry_delay": timedelta(minutes=10),
    "execution_timeout": timedelta(minutes=30),
}
"""For default_args: three retries, each after a longer pause, and a time limit of half an hour for most tasks.

A retry of any task is safe: it looks again, or continues the work of the first try under the same leases. Errors that
no retry can repair fail the task for good (AirflowFailException).
"""

RUN_TIMEOUT = timedelta(hours=18)
LONG_RUN_TIMEOUT = timedelta(days=2)
"""For dagrun_timeout: how long a run may take, and one with a task that may read for hours.

Both are longer than all tries of all tasks of such a run may take, one after the other, with their pauses. So the
timeout ends no work that is within the limits of its task, but a run whose task waits for what never comes, such as a
queue without a worker or a pool that does not exist: by max_active_runs, no later run could begin. A run that is ended
loses nothing: the next one plans its work again, once its leases have ended (lease.duration.ms).
"""
