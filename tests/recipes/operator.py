"""An operator that counts remote segments, as an example; recipes/dag.py schedules it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tiered_storage_airflow.operators.remote_log_operator import RemoteLogOperator

if TYPE_CHECKING:
    from airflow.sdk import Context


class CountSegmentsOperator(RemoteLogOperator):
    """Count the remote segments of all partitions."""

    def execute(self, context: Context) -> int:  # noqa: ARG002 -- Airflow passes it
        """Return their number, in every state but deleted."""
        with self.opened() as remote_log:
            metadata = remote_log.context.segments
            return sum(
                sum(metadata.count_remote_log_segments(partition).values()) for partition in metadata.list_partitions()
            )
