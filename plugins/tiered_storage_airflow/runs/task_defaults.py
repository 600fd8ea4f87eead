"""The default arguments of all tasks of our DAGs."""

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
