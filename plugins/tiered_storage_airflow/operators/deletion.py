"""Operators that delete a named topic or a partition's records, undo deletions, and stop all deletions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import XComArg
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from tiered_storage_airflow.forms.fields import warn_of_unknown_fields
from tiered_storage_airflow.hooks.remote_log_metadata import RemoteLogMetadataHook
from tiered_storage_airflow.operators.remote_log_operator import (
    PlanningOperator,
    RemoteLogOperator,
    fail_for_left,
    log_stop,
)
from tiered_storage_airflow.runs.scope import is_switched_on, required_number
from tiered_storage_airflow.runs.summary import keep_done, summarize
from tiered_storage_airflow.runs.task_context import lease_owner, own_path, task_folder

if TYPE_CHECKING:
    from datetime import datetime

    from airflow.sdk import Context

    from tiered_storage.remote_log.manager import RemoteLogManager


class PlanTopicDeletionOperator(PlanningOperator):
    """Plan the deletion of everything remote of one incarnation of a topic; local segments stay.

    Returns the plan's path; a dry run skips the tasks right after it.

    :param topic: the topic's exact name
    :param topic_id: which incarnation of the topic, where it had several
    :param dry_run: only show the plan
    """

    template_fields: Sequence[str] = (*RemoteLogOperator.template_fields, "topic", "topic_id")

    def __init__(self, *, topic: str, topic_id: str | None = None, dry_run: bool | str = True, **kwargs: Any) -> None:
        super().__init__(dry_run=dry_run, **kwargs)
        self.topic = topic
        self.topic_id = topic_id

    def execute(self, context: Context) -> str:
        """Find the incarnation and all its remote segments. Fails if it may not be deleted."""
        from tiered_storage.remote_log.retention.topic_deletion import TopicDeletionPlan

        with self.opened() as remote_log:
            if not self.is_dry_run:
                remote_log.deletions.permissions.ensure_running()
            plan = remote_log.deletions.plan_topic_deletion(self.topic, self.topic_id or None)
            path = f"runs/{task_folder(context)}/topic-deletion.jsonl"
            remote_log.context.work.write(path, [plan], TopicDeletionPlan)
            for one in plan.partitions:
                self.log.info(
                    "would be deleted: %s: %d segments, %d bytes", one.topic_id_partition, one.segments, one.size
                )
            summarize(
                remote_log,
                context,
                self.log,
                topic=self.topic,
                topic_id=plan.topic_id,
                partitions=len(plan.partitions),
                segments=sum(one.segments for one in plan.partitions),
                bytes=sum(one.size for one in plan.partitions),
            )
            log_stop(remote_log, self.log)
        if self.is_dry_run:
            self.skip_next_tasks(context)
        return path


class MarkTopicDeletedOperator(RemoteLogOperator):
    """Mark one incarnation of a topic for deletion: readers stop seeing it, and the next expiry runs delete it.

    Until its objects are deleted, an UndeleteOperator can bring it back.

    :param plan: what PlanTopicDeletionOperator returned
    :param topic: the topic's exact name
    :param confirmation: the same name again, as the user typed it
    """

    template_fields: Sequence[str] = (*RemoteLogOperator.template_fields, "plan", "topic", "confirmation")

    def __init__(self, *, plan: str | XComArg, topic: str, confirmation: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.plan = plan
        self.topic = topic
        self.confirmation = confirmation

    def execute(self, context: Context) -> None:
        """Mark; fail for partitions that could not be marked, with a retry if that may help."""
        from tiered_storage.remote_log.model import TopicIdPartition
        from tiered_storage.remote_log.retention.topic_deletion import TopicDeletionPlan

        if self.confirmation != self.topic:
            raise AirflowFailException(
                f"nothing was deleted: the confirmation is {self.confirmation!r}; it must be the topic's name, "
                f"{self.topic!r}"
            )
        with self.opened() as remote_log:
            [plan] = remote_log.context.work.read(own_path(context, self.plan), TopicDeletionPlan)
            marked, left = remote_log.deletions.mark_topic_deleted(plan, lease_owner(context))
            keep_done(remote_log, context, "marked", marked, TopicIdPartition)
            summarize(remote_log, context, self.log, marked_partitions=len(marked), not_marked=len(left))
        self.log.info("marked %d partitions; the next runs of expire_remote_segments delete them", len(marked))
        fail_for_left(left, "not marked")


class UndeleteOperator(RemoteLogOperator):
    """Bring back a topic's segments marked for deletion while their objects exist. Fails for deleted objects.

    :param topic: the topic's exact name
    :param partitions: numbers of partitions, such as 0,2-4; empty: all
    :param topic_id: which incarnation of the topic; empty: all
    :param dry_run: only show what would come back
    """

    template_fields: Sequence[str] = (*RemoteLogOperator.template_fields, "topic", "partitions", "topic_id")
    shows_dry_run = True

    def __init__(
        self,
        *,
        topic: str,
        partitions: str | None = None,
        topic_id: str | None = None,
        dry_run: bool | str = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(dry_run=dry_run, **kwargs)
        self.topic = topic
        self.partitions = partitions
        self.topic_id = topic_id

    def execute(self, context: Context) -> None:
        """Bring back partition by partition; a failed partition does not hold up others."""
        from tiered_storage.remote_log.selection import parse_partitions

        only_show = self.is_dry_run
        with self.opened() as remote_log:
            done, left = remote_log.deletions.undelete(
                self.topic,
                lease_owner(context),
                parse_partitions(self.partitions or None),
                topic_id=self.topic_id or None,
                dry_run=only_show,
            )
            for each in done:
                self.log.info(
                    "%s: %s: %d segments, %d bytes, readable from offset %d on",
                    "would come back" if only_show else "brought back",
                    each.topic_id_partition, len(each.segments), each.size, each.log_start_offset,
                )  # fmt: skip
            for kept in sorted({each.kept for each in done if each.is_replaced and not only_show}):
                self.log.info("%s", kept)
            summarize(
                remote_log,
                context,
                self.log,
                topic=self.topic,
                partitions=len(done),
                segments=sum(len(each.segments) for each in done),
                bytes=sum(each.size for each in done),
                second_copies=sum(each.second_copies for each in done),
                left=len(left),
            )
        fail_for_left(left, "not brought back")


class PlanRecordDeletionOperator(PlanningOperator):
    """Plan the deletion of a partition's records before an offset.

    Returns the plan's path, for MarkDeletedOperator. A dry run or an empty plan skips the tasks
    right after it.

    :param topic: the topic's exact name
    :param partition: the partition's number
    :param before: the first offset that stays; -1: the end of the stable records
    :param dry_run: only show the plan
    """

    template_fields: Sequence[str] = (*RemoteLogOperator.template_fields, "topic", "partition", "before")

    def __init__(
        self, *, topic: str, partition: int | str, before: int | str, dry_run: bool | str = True, **kwargs: Any
    ) -> None:
        super().__init__(dry_run=dry_run, **kwargs)
        self.topic = topic
        self.partition = partition
        self.before = before

    def execute(self, context: Context) -> str:
        """Plan. Fails if the partition does not have the offset, or if remote deletion is not allowed."""
        from tiered_storage.remote_log.retention.expiry import ExpiryRun
        from tiered_storage.remote_log.retention.expiry_planning import TO_THE_END

        before = required_number(self.before, "before", least=TO_THE_END)
        with self.opened() as remote_log:
            number = required_number(self.partition, "partition")
            partition = remote_log.find_partition(self.topic, number, names_near=True)
            if not self.is_dry_run:
                remote_log.deletions.permissions.ensure_running()
            plan = remote_log.deletions.plan_record_deletion(partition, before)
            path = f"runs/{task_folder(context)}/expiry.jsonl"
            remote_log.context.work.write(path, [ExpiryRun(() if plan is None else (plan,))], ExpiryRun)
            summarize(
                remote_log,
                context,
                self.log,
                partition=str(partition),
                new_log_start="as it is" if plan is None else plan.new_log_start,
                segments=0 if plan is None else len(plan.segments),
                bytes=0 if plan is None else plan.size,
            )
            log_stop(remote_log, self.log)
        if self.is_dry_run or plan is None:
            self.skip_next_tasks(context)
        return path


class StopDeletionsOperator(RemoteLogOperator):
    """Stop all deletions, local and remote, until somebody lifts the stop; or lift it.

    A deletion under way stops within one batch of segments. Anybody who may trigger the DAG may stop. Only a user
    named in `admins` of the rights file may lift, and Airflow must report that user as having triggered the run. A run
    lifts only a stop made before the run was triggered, so that clearing an old run lifts no later stop. An unknown
    form field is only a warning: a mistyped one must not prevent a stop.

    :param lift: allow deletions again, where their topics allow them
    :param reason: why, shown wherever a deletion is refused
    :param by: a name to record besides the user who triggered the run
    """

    template_fields: Sequence[str] = (*RemoteLogOperator.template_fields, "lift", "reason", "by")

    def __init__(self, *, lift: bool | str = False, reason: str = "", by: str = "", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.lift = lift
        self.reason = reason
        self.by = by

    def check_form(self, context: Context) -> None:
        """Warn of a field that the DAG's form does not have."""
        warn_of_unknown_fields(context)

    def execute(self, context: Context) -> bool:
        """Set the switch; return whether deletions are stopped now. Raises AirflowFailException for a refused lift."""
        dag_run = context["dag_run"]
        # Neither the form nor the REST API sets this name: Airflow records the user who is logged in.
        user = getattr(dag_run, "triggering_user_name", None)
        triggered_by = user or f"{dag_run.dag_id}/{dag_run.run_id}"
        by = f"{self.by} ({triggered_by})" if self.by else triggered_by
        # Invalid text must not prevent a stop.
        self.reason = self.reason.encode(errors="replace").decode()
        lift = is_switched_on(self.lift, "lift")
        if lift:
            with self.opened() as remote_log:
                _ensure_admin(remote_log, user)
                # A stop may come at any moment: this run holds up no other.
                remote_log.context.safety.lift(by, before=int(dag_run.run_after.timestamp() * 1000))
                _ensure_lifted(remote_log, dag_run.run_after)
                self._summarize(remote_log, context, "allowed again, where their topics allow them", by)
            self.log.info("deletions are allowed again, where their topics allow them")
        else:
            self._stop(by, context)
            self.log.warning(
                "all deletions are stopped (%s) until an admin runs this DAG with Lift", self.reason or "no reason"
            )
        return not lift

    def _stop(self, by: str, context: Context) -> None:
        """Stop the cluster's deletions if its metadata can be reached, whatever is wrong with store and settings.

        Raises AirflowFailException, after the stop, if the store belongs to other metadata: those still delete.
        """
        from tiered_storage.errors import OutdatedMetadataError, TieredStorageError

        outdated = None
        try:
            with self.opened(outdated=True) as remote_log:
                try:
                    remote_log.context.safety.stop(self.reason, by)
                except OutdatedMetadataError as error:
                    outdated = str(error)
                self._summarize(remote_log, context, "stopped", by)
        except (TieredStorageError, AirflowException, OSError) as error:
            self._stop_by_metadata_alone(by)
            self.log.warning("deletions are stopped, but only the metadata record it; repair this error: %s", error)
        if outdated is not None:
            raise AirflowFailException(outdated)

    def _stop_by_metadata_alone(self, by: str) -> None:
        from tiered_storage.clock import wall_clock
        from tiered_storage.remote_log.context import stop_by_metadata_alone
        from tiered_storage.settings.settings import WHERE_METADATA_ARE, load_cluster_settings

        # A form may not say where the metadata are, and its text may be what is invalid.
        overrides = self.settings if isinstance(self.settings, Mapping) and not self.has_settings_of_a_form else None
        where = load_cluster_settings(self.cluster, overrides=overrides, only=WHERE_METADATA_ARE)
        hook = RemoteLogMetadataHook(self.remote_log_metadata_conn_id, self.cluster)
        stop_by_metadata_alone(hook.with_login(where), self.reason, by, wall_clock)

    def _summarize(self, remote_log: RemoteLogManager, context: Context, deletions: str, by: str) -> None:
        summarize(remote_log, context, self.log, deletions=deletions, by=by, reason=self.reason or "none given")


def _ensure_admin(remote_log: RemoteLogManager, user: str | None) -> None:
    """Raise AirflowFailException unless the rights file names `user` an admin."""
    from tiered_storage.errors import ConfigurationError
    from tiered_storage.settings.read_rights import load_read_rights

    path = remote_log.context.settings.read_service_rights_file
    try:
        admins = None if path is None else load_read_rights(path).admins
    except ConfigurationError as error:
        raise _refused_lift(f"nobody is an admin: {error}: correct the file") from error
    if admins is None:
        line = f"'admins: [{user or 'LOGIN'}]'"
        raise _refused_lift(f"read.service.rights.file names no file: set it to a file with the line {line}")
    if not user:
        raise _refused_lift(f"Airflow does not report who triggered this run: trigger it as one of 'admins' in {path}")
    if user not in admins:
        raise _refused_lift(f"the user {user} may only stop them: trigger the run as one of 'admins' in {path}")


def _refused_lift(why: str) -> AirflowFailException:
    return AirflowFailException(
        f"deletions stay stopped, and only an admin may lift the stop: {why}, or run 'tiered-storage stop-deletions "
        "--lift' on a machine that has the settings file"
    )


def _ensure_lifted(remote_log: RemoteLogManager, triggered_at: datetime) -> None:
    """Raise AirflowFailException if deletions are still stopped, by a stop made after the run was triggered."""
    stop = remote_log.context.safety.stopped()
    if stop is not None:
        raise AirflowFailException(
            f"deletions stay stopped: {stop.stopped_by} stopped them ({stop.reason or 'no reason'}) after this run was "
            f"triggered at {triggered_at:%Y-%m-%d %H:%M:%S %Z}: trigger a new run to lift that stop"
        )
