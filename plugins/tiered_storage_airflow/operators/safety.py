"""Operators on what makes deleting safe: the one switch that stops all of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowException

from tiered_storage_airflow.operators.remote_log_operator import RemoteLogOperator
from tiered_storage_airflow.run_scope import is_switched_on
from tiered_storage_airflow.run_summary import summarize

if TYPE_CHECKING:
    from airflow.sdk import Context

    from tiered_storage.remote_log.remote_log_manager import RemoteLogManager


class StopDeletionsOperator(RemoteLogOperator):
    """Stop all deletions, local and remote, until somebody lifts that; or lift it.

    Whatever is under way stops within one batch of segments.

    :param lift: allow deletions again, where their topics allow them
    :param reason: why, for whoever meets the stop
    :param by: who says so; empty: this run
    """

    template_fields: Sequence[str] = (*RemoteLogOperator.template_fields, "lift", "reason", "by")

    def __init__(self, *, lift: bool | str = False, reason: str = "", by: str = "", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.lift = lift
        self.reason = reason
        self.by = by

    def execute(self, context: Context) -> bool:
        """Set the switch; returns whether deletions are stopped now."""
        dag_run = context["dag_run"]
        by = self.by or getattr(dag_run, "triggering_user_name", None) or f"{dag_run.dag_id}/{dag_run.run_id}"
        lift = is_switched_on(self.lift, "lift")
        if lift:
            with self.opened() as remote_log:
                remote_log.safety.lift(by)
                self._summarize(remote_log, context, "allowed again, where their topics allow them", by)
            self.log.info("deletions are allowed again, where their topics allow them")
        else:
            self._stop(by, context)
            self.log.warning(
                "all deletions are stopped (%s) until this DAG is run with Lift", self.reason or "no reason"
            )
        return not lift

    def _stop(self, by: str, context: Context) -> None:
        """Stop deletions, whatever is wrong with store and settings, as long as the metadata are in reach."""
        from tiered_storage.clock import wall_clock
        from tiered_storage.errors import TieredStorageError
        from tiered_storage.remote_log.remote_log_parts import stop_by_metadata_alone

        try:
            with self.opened() as remote_log:
                remote_log.safety.stop(self.reason, by)
                self._summarize(remote_log, context, "stopped", by)
        except (TieredStorageError, AirflowException, OSError) as error:
            stop_by_metadata_alone(self.reason, by, wall_clock)
            self.log.warning("%s: that is to be mended; of the stop the metadata alone were told", error)

    def _summarize(self, remote_log: RemoteLogManager, context: Context, deletions: str, by: str) -> None:
        summarize(remote_log, context, self.log, deletions=deletions, by=by, reason=self.reason or "none given")
