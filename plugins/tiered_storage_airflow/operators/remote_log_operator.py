"""What all operators on a remote log share: opening it, selecting partitions, failing for findings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator, SkipMixin
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException

from tiered_storage_airflow.forms.fields import refuse_unknown_fields
from tiered_storage_airflow.hooks.remote_storage import RemoteStorageHook
from tiered_storage_airflow.links import ReportLink
from tiered_storage_airflow.runs.scope import Overrides, is_switched_on, opened_remote_log, selected
from tiered_storage_airflow.runs.task_context import is_asked_for, own_path

if TYPE_CHECKING:
    from airflow.sdk import Context

    from tiered_storage.remote_log.manager import RemoteLogManager
    from tiered_storage.remote_log.model import Finding
    from tiered_storage.remote_log.selection import Selection


class RemoteLogOperator(BaseOperator):
    """Base of all operators on a remote log.

    No task begins in a run with a field that the DAG's form does not have: a mistyped `dry_run` must not delete. A DAG
    without a form takes anything.

    In a dry run a task changes nothing. If its class `shows_dry_run` it shows its plan; else it skips itself, since the
    plan before it does not skip it if somebody clears it alone.

    :param settings: properties by name that override the file and the environment: a mapping, or its JSON as text.
        Text may come from a form, so it sets only what a form may set
    :param remote_storage_conn_id: the connection with the store's endpoint and secrets
    :param dry_run: only show the plan
    :param cluster: the name of another cluster, which has a settings file of its own; None: the first cluster
    """

    # Not dry_run: BaseOperator has a method of that name.
    template_fields: Sequence[str] = ("settings", "is_dry_run")
    operator_extra_links = (ReportLink(),)
    shows_dry_run = False

    def __init__(
        self,
        *,
        settings: Overrides = None,
        remote_storage_conn_id: str = RemoteStorageHook.default_conn_name,
        dry_run: bool | str = False,
        cluster: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.cluster = cluster
        self.is_dry_run = dry_run
        self.settings = settings
        # Airflow may render a text template to a mapping; it still counts as form input.
        self._is_form = isinstance(settings, str)
        self.remote_storage_conn_id = remote_storage_conn_id

    def pre_execute(self, context: Context) -> None:
        """Fail for an unknown form field; raise AirflowSkipException in a dry run, unless the task shows it."""
        # Here, and not in default_args: a task's own pre_execute would replace it there.
        self.check_form(context)
        super().pre_execute(context)
        if not self.shows_dry_run and is_switched_on(self.is_dry_run, "dry_run"):
            raise AirflowSkipException(
                "nothing was done: this run only shows its plan (dry_run); trigger a new run without dry_run"
            )

    def check_form(self, context: Context) -> None:
        """Raise AirflowFailException if the run has a field that the DAG's form does not have."""
        refuse_unknown_fields(context)

    def opened(self, *, outdated: bool = False) -> AbstractContextManager[RemoteLogManager]:
        """Open the remote log for a `with`; see opened_remote_log."""
        return opened_remote_log(
            self.settings, self.remote_storage_conn_id, self.cluster, is_form=self._is_form, outdated=outdated
        )


class SelectingOperator(RemoteLogOperator):
    """Base of operators on selected partitions.

    :param topics: a regular expression (RE2) over whole topic names
    :param partitions: numbers of partitions, such as 0,2-4; empty: all
    :param must_match: whether it is an error if no known partition matches
    """

    template_fields: Sequence[str] = (*RemoteLogOperator.template_fields, "topics", "partitions", "must_match")

    def __init__(
        self, *, topics: str = ".*", partitions: str | None = None, must_match: bool | str = True, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.topics = topics
        self.partitions = partitions
        self.must_match = must_match

    def selection(self, remote_log: RemoteLogManager) -> Selection:
        """Return what is selected. Raises ConfigurationError; see selected."""
        return selected(remote_log, self.topics, self.partitions, self.must_match)


class DeletionPlanOperator(SelectingOperator, SkipMixin):
    """Base of operators that plan what a run deletes.

    A dry run skips the tasks right after it, and so does a run that nobody requested while scheduled.deletion.enable is
    off.

    :param max_segments: the most segments of this run; None: all that are due, or as many as the settings allow
    :param wanted: whether there is anything to plan; else the task skips itself
    """

    template_fields: Sequence[str] = (*SelectingOperator.template_fields, "max_segments", "wanted")
    shows_dry_run = True

    def __init__(self, *, max_segments: int | str | None = None, wanted: bool | str = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.max_segments = max_segments
        self.wanted = wanted

    def skip_unless_wanted(self) -> None:
        """Raise AirflowSkipException if nothing is to be planned."""
        if not is_switched_on(self.wanted, "wanted"):
            raise AirflowSkipException("this run does not plan this tier")

    def conclude(
        self, context: Context, unreadable: Sequence[Finding], introduction: str, only_planned: str | None
    ) -> None:
        """Fail a dry run for what is `unreadable`; skip the next tasks in a dry run and if `only_planned`."""
        only_shows = is_switched_on(self.is_dry_run, "dry_run")
        if only_shows:
            fail_for(unreadable, introduction)
        if only_planned:
            self.log.warning("%s", only_planned)
        if only_shows or only_planned:
            self.skip(ti=context["ti"], tasks=self.get_direct_relatives(upstream=False))


def described(findings: Iterable[Finding]) -> str:
    """Return `findings` as one text, each after the name of its partition if it has one."""
    return "; ".join(map(str, findings))


def not_begun_of(remote_log: RemoteLogManager, context: Context, path: str) -> list[Finding]:
    """Return the partitions whose copies could not be begun; `path` is CopySegmentsOperator's `not_begun`."""
    from tiered_storage.remote_log.model import Finding

    return remote_log.context.work.read(own_path(context, path), Finding) if path else []


def not_begun_message(failed: Sequence[Finding]) -> str:
    """Return the message for partitions whose copies a run could not begin."""
    return f"nothing could be copied of {len(failed)} partitions: {described(failed)}"


def log_stop(remote_log: RemoteLogManager, log: Any) -> None:
    """Log why a run would delete nothing, such as a stop or a wrong clock: a plan shows due segments even then."""
    why = remote_log.deletions.why_nothing_is_deleted()
    if why is not None:
        log.warning("nothing of this plan can be deleted now: %s", why)


def log_source_notices(remote_log: RemoteLogManager, log: Any) -> None:
    """Log what the source reports besides partitions, such as a wrong clock: deletion by age depends on it."""
    for notice in remote_log.context.source.notices:
        log.warning("%s", notice)


def why_only_planned(remote_log: RemoteLogManager, context: Mapping[str, Any]) -> str | None:
    """Return why the run deletes nothing (nobody requested it, and scheduled deletion is off); None if it deletes."""
    if is_asked_for(context) or remote_log.context.settings.scheduled_deletion_enable:
        return None
    return (
        "nothing is deleted: runs that a schedule or an asset event starts delete only if scheduled.deletion.enable is "
        "true. Once the DAG plan_deletions shows what you expect, set it in the settings file (TIERED_STORAGE_CONFIG) "
        "or as TIERED_STORAGE_SCHEDULED_DELETION_ENABLE in Airflow's environment"
    )


def skip_unless_asked_for_or_armed(remote_log: RemoteLogManager, context: Mapping[str, Any]) -> None:
    """Raise AirflowSkipException if the run may delete nothing, even for a task that somebody cleared alone."""
    why = why_only_planned(remote_log, context)
    if why is not None:
        raise AirflowSkipException(why)


def fail_for(findings: Sequence[Finding], introduction: str) -> None:
    """Fail for `findings` if there are any, with a retry if one of them may pass by itself."""
    from tiered_storage.remote_log.model import TransientFinding

    if any(isinstance(finding, TransientFinding) for finding in findings):
        raise AirflowException(f"{introduction}: {described(findings)}")
    if findings:
        raise AirflowFailException(f"{introduction}: {described(findings)}")


def fail_for_left(left: Sequence[Finding], introduction: str) -> None:
    """Fail for what is `left` of a requested deletion, with a retry if one finding may pass by itself."""
    from tiered_storage.remote_log.model import TransientFinding

    if any(isinstance(finding, TransientFinding) for finding in left):
        raise AirflowException(
            f"{introduction}: {described(left)}; the next try retries; if every try fails, trigger the DAG again"
        )
    if left:
        raise AirflowFailException(f"{introduction}: {described(left)}; trigger the DAG again after the repair")
