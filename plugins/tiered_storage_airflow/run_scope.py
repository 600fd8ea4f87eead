"""The remote log as one run of a DAG sees it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from airflow.sdk.exceptions import AirflowFailException

from tiered_storage_airflow.hooks.remote_log import RemoteLogHook

if TYPE_CHECKING:
    from airflow.sdk import Context

    from tiered_storage.remote_log.remote_log_manager import RemoteLogManager


@contextmanager
def remote_log_of(context: Context) -> Iterator[RemoteLogManager]:
    """Open the remote log for a `with`, with the settings of the run (`params.settings`) over all others.

    What goes wrong in the block and no retry can mend fails the task for good; the rest passes through and is retried.
    """
    from tiered_storage.errors import TieredStorageError  # noqa: PLC0415 - a DAG file is parsed every few seconds

    try:
        with RemoteLogHook(overrides=context["params"].get("settings")).get_conn() as remote_log:
            yield remote_log
    except TieredStorageError as error:
        if error.retriable:
            raise
        raise AirflowFailException(f"{type(error).__name__}: {error}") from error
