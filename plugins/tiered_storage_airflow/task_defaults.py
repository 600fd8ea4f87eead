"""How the DAGs' tasks are tried again and when they end, unless a task says otherwise."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

RETRIED: dict[str, Any] = {
    "retries": 3,
    "retry_delay": timedelta(seconds=30),
    "retry_exponential_backoff": 2.0,
    "max_retry_delay": timedelta(minutes=10),
    "execution_timeout": timedelta(minutes=30),
}
"""For default_args: three more tries, each after a longer pause, of half an hour at most."""

ONCE: dict[str, Any] = {"retries": 0, "execution_timeout": timedelta(minutes=30)}
"""For default_args of what a person asked for and has to look at: no second try."""
