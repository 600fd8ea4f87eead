"""Operators on what makes deleting safe: the one switch that stops all of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tiered_storage_airflow.operators.remote_log_operator import RemoteLogOperator
from tiered_storage_airflow.run_scope import is_switched_on
from tiered_storage_airflow.run_summary import summarize

if TYPE_CHECKING:
    from airflow.sdk import Context


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
        with self.opened() as remote_log:
            if lift:
                remote_log.safety.lift(by)
            else:
                remote_log.safety.stop(self.reason, by)
            summarize(
                remote_log,
                context,
                self.log,
                deletions="allowed again, where their topics allow them" if lift else "stopped",
                by=by,
                reason=self.reason or "none given",
            )
        if lift:
            self.log.info("deletions are allowed again, where their topics allow them")
        else:
            self.log.warning(
                "all deletions are stopped (%s) until this DAG is run with Lift", self.reason or "no reason"
            )
        return not lift
