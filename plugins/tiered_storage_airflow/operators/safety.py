"""Operators on what makes deleting safe: the one switch that stops all of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowException, AirflowFailException

from tiered_storage_airflow.operators.remote_log_operator import RemoteLogOperator
from tiered_storage_airflow.run_scope import is_switched_on
from tiered_storage_airflow.run_summary import summarize

if TYPE_CHECKING:
    from datetime import datetime

    from airflow.sdk import Context

    from tiered_storage.remote_log.manager import RemoteLogManager


class StopDeletionsOperator(RemoteLogOperator):
    """Stop all deletions, local and remote, until somebody lifts that; or lift it.

    Whatever is under way stops within one batch of segments. Anybody who may trigger the DAG may stop. Only a user
    whom Airflow reports as having triggered the run, and whom `admins` of the rights file names, may lift; and only a
    stop that was made before the run was triggered, so that clearing an old run lifts no later stop.

    :param lift: allow deletions again, where their topics allow them
    :param reason: why, for whoever meets the stop
    :param by: a name to record beside the user who triggered the run
    """

    template_fields: Sequence[str] = (*RemoteLogOperator.template_fields, "lift", "reason", "by")

    def __init__(self, *, lift: bool | str = False, reason: str = "", by: str = "", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.lift = lift
        self.reason = reason
        self.by = by

    def execute(self, context: Context) -> bool:
        """Set the switch; returns whether deletions are stopped now. Raises AirflowFailException for a refused lift."""
        dag_run = context["dag_run"]
        # Neither the form nor the REST API sets this name: Airflow writes down who is logged in.
        user = getattr(dag_run, "triggering_user_name", None)
        triggered_by = user or f"{dag_run.dag_id}/{dag_run.run_id}"
        by = f"{self.by} ({triggered_by})" if self.by else triggered_by
        # A stop goes through, whatever the words are.
        self.reason = self.reason.encode(errors="replace").decode()
        lift = is_switched_on(self.lift, "lift")
        if lift:
            with self.opened() as remote_log:
                _ensure_admin(remote_log, user)
                _ensure_earlier_stop(remote_log, dag_run.run_after)
                remote_log.safety.lift(by)
                self._summarize(remote_log, context, "allowed again, where their topics allow them", by)
            self.log.info("deletions are allowed again, where their topics allow them")
        else:
            self._stop(by, context)
            self.log.warning(
                "all deletions are stopped (%s) until an admin runs this DAG with Lift", self.reason or "no reason"
            )
        return not lift

    def _stop(self, by: str, context: Context) -> None:
        """Stop deletions, whatever is wrong with store and settings, as long as the metadata are in reach.

        Raises AirflowFailException, after the stop, if other metadata are the store's: theirs go on deleting.
        """
        from tiered_storage.clock import wall_clock
        from tiered_storage.errors import OutdatedMetadataError, TieredStorageError
        from tiered_storage.remote_log.context import stop_by_metadata_alone

        outdated = None
        try:
            with self.opened(outdated=True) as remote_log:
                try:
                    remote_log.safety.stop(self.reason, by)
                except OutdatedMetadataError as error:
                    outdated = str(error)
                self._summarize(remote_log, context, "stopped", by)
        except (TieredStorageError, AirflowException, OSError) as error:
            stop_by_metadata_alone(self.reason, by, wall_clock)
            self.log.warning("%s: that is to be mended; of the stop the metadata alone were told", error)
        if outdated is not None:
            raise AirflowFailException(outdated)

    def _summarize(self, remote_log: RemoteLogManager, context: Context, deletions: str, by: str) -> None:
        summarize(remote_log, context, self.log, deletions=deletions, by=by, reason=self.reason or "none given")


def _ensure_admin(remote_log: RemoteLogManager, user: str | None) -> None:
    """Raise AirflowFailException unless the rights file names `user` an admin."""
    from tiered_storage.errors import ConfigurationError
    from tiered_storage.settings.read_rights import load_read_rights

    path = remote_log.settings.read_service_rights_file
    try:
        admins = None if path is None else load_read_rights(path).admins
    except ConfigurationError as error:
        raise _refused_lift(f"nobody is an admin: {error}: mend the file") from error
    if admins is None:
        line = f"'admins: [{user or 'LOGIN'}]'"
        raise _refused_lift(f"read.service.rights.file names no file: set it to a file with the line {line}")
    if not user:
        raise _refused_lift(f"Airflow does not tell who triggered this run: trigger it as one of 'admins' in {path}")
    if user not in admins:
        raise _refused_lift(f"the user {user} may only stop them: trigger the run as one of 'admins' in {path}")


def _refused_lift(why: str) -> AirflowFailException:
    return AirflowFailException(
        f"deletions stay stopped, only an admin may lift that: {why}, or run 'tiered-storage stop-deletions --lift' "
        "where the settings are"
    )


def _ensure_earlier_stop(remote_log: RemoteLogManager, triggered_at: datetime) -> None:
    """Raise AirflowFailException where the present stop was made after the run was triggered."""
    stop = remote_log.safety.stopped()
    if stop is not None and stop.said_at > triggered_at.timestamp() * 1000:
        raise AirflowFailException(
            f"deletions stay stopped: {stop.said_by} stopped them ({stop.reason or 'no reason'}) after this run was "
            f"triggered at {triggered_at:%Y-%m-%d %H:%M:%S %Z}: trigger a new run to lift that stop"
        )
