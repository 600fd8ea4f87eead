"""What all operators on a remote log share: opening it, selecting partitions, failing for findings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from airflow.sdk import BaseOperator, SkipMixin
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException

from tiered_storage_airflow.forms.fields import refuse_unknown_fields
from tiered_storage_airflow.hooks.remote_log import RemoteLogHook
from tiered_storage_airflow.hooks.remote_log_metadata import RemoteLogMetadataHook
from tiered_storage_airflow.hooks.remote_storage import RemoteStorageHook
from tiered_storage_airflow.links import ReportLink
from tiered_storage_airflow.runs.scope import Overrides, ensure_may_read, is_switched_on, overrides_of, selected
from tiered_storage_airflow.runs.task_context import is_asked_for, own_path

if TYPE_CHECKING:
    from airflow.sdk import Context, XComArg

    from tiered_storage.remote_log.manager import RemoteLogManager
    from tiered_storage.remote_log.model import Finding
    from tiered_storage.remote_log.selection import Selection


Batches = Sequence[Mapping[str, str]]
"""The batches of a copy run: each has a `name`, the `path` of its results, and the path to list what is `committed`."""
NOT_BEGUN = "not_begun"
"""Each also has the path of the partitions whose copies the run could not begin, or an empty text."""


class RemoteLogOperator(BaseOperator):
    """Base of all operators on a remote log.

    No task begins in a run with a field that the DAG's form does not have: a mistyped `dry_run` must not delete. A DAG
    without a form takes anything.

    In a dry run a task changes nothing. If its class `shows_dry_run` it shows its plan; else it skips itself, since the
    plan before it does not skip it if somebody clears it alone.

    :param settings: properties by name that override the file and the environment: a mapping, or its JSON as text.
        Text may come from a form, so it sets only what a form may set. So does a mapping if the task renders templates
        to values (render_template_as_native_obj)
    :param remote_storage_conn_id: the connection with the store's endpoint and secrets; see RemoteStorageHook
    :param remote_log_metadata_conn_id: the connection with the login of the metadata; see RemoteLogMetadataHook
    :param kafka_conn_id: the connection to the cluster's brokers; None: the one that the settings name
    :param dry_run: only show the plan
    :param cluster: the name of another cluster, which has a settings file of its own; None: the first cluster
    """

    template_fields: Sequence[str] = ("settings", "dry_run")
    operator_extra_links = (ReportLink(),)
    shows_dry_run = False

    def __init__(
        self,
        *,
        settings: Overrides = None,
        remote_storage_conn_id: str = RemoteStorageHook.default_conn_name,
        remote_log_metadata_conn_id: str = RemoteLogMetadataHook.default_conn_name,
        kafka_conn_id: str | None = None,
        dry_run: bool | str = False,
        cluster: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.settings = settings
        self.remote_storage_conn_id = remote_storage_conn_id
        self.remote_log_metadata_conn_id = remote_log_metadata_conn_id
        self.kafka_conn_id = kafka_conn_id
        # It hides a method of BaseOperator that Airflow 3 never calls; a template field has its argument's name.
        self.dry_run: bool | str = dry_run  # type: ignore[assignment]
        self.cluster = cluster

    @property
    def is_dry_run(self) -> bool:
        """Whether the run only shows its plan. Raises AirflowFailException if `dry_run` is neither true nor false."""
        return is_switched_on(self.dry_run, "dry_run")

    @property
    def has_settings_of_a_form(self) -> bool:
        """Whether the settings may come from a form: if they are text, or if the task renders templates to values."""
        renders_values = self.render_template_as_native_obj
        if renders_values is None:
            dag = self.get_dag()
            renders_values = dag is not None and dag.render_template_as_native_obj
        return isinstance(self.settings, str) or renders_values

    def pre_execute(self, context: Context) -> None:
        """Fail for an unknown form field; raise AirflowSkipException in a dry run, unless the task shows it."""
        # Here, and not in default_args: a task's own pre_execute would replace it there.
        self.check_form(context)
        super().pre_execute(context)
        if not self.shows_dry_run and self.is_dry_run:
            raise AirflowSkipException(
                "nothing was done: this run only shows its plan (dry_run); trigger a new run without dry_run"
            )

    def check_form(self, context: Context) -> None:
        """Raise AirflowFailException if the run has a field that the DAG's form does not have."""
        refuse_unknown_fields(context)

    @contextmanager
    def opened(self, *, outdated: bool = False) -> Iterator[RemoteLogManager]:
        """Open the remote log for a `with`; `outdated` as RemoteLogContext.open.

        An error in the block that no retry can repair fails the task for good; any other error passes through, and
        Airflow retries.
        """
        from tiered_storage.errors import TieredStorageError

        try:
            hook = RemoteLogHook(
                self.remote_storage_conn_id,
                overrides_of(self.settings, self.cluster, is_form=self.has_settings_of_a_form),
                self.cluster,
                remote_log_metadata_conn_id=self.remote_log_metadata_conn_id,
                kafka_conn_id=self.kafka_conn_id,
            )
            with hook.get_conn(create=True, outdated=outdated) as remote_log:
                yield remote_log
        except TieredStorageError as error:
            if error.retriable:
                raise
            raise AirflowFailException(f"{type(error).__name__}: {error}") from error


class PlanningOperator(RemoteLogOperator, SkipMixin):
    """Base of operators that plan what the next tasks do; a dry run, or an empty plan, skips the tasks right after."""

    shows_dry_run = True

    def skip_next_tasks(self, context: Context) -> None:
        """Skip the tasks right after this one; those after them run or not by their trigger rules."""
        self.skip(ti=context["ti"], tasks=self.get_direct_relatives(upstream=False))


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


TOPIC_FIELDS = ("topic", "topic_id", "partitions", "from_time", "to_time", "allow_gaps")
"""The template fields of TopicReadOperator."""


class TopicReadOperator(RemoteLogOperator):
    """Base of operators that read one topic, or a part of it. Numbers and times may be text; empty: no limit.

    :param topic_id: which incarnation of the topic, where it had several
    :param partitions: numbers of partitions, such as 0,2-4; empty: all
    :param from_time: the earliest time of records (ISO 8601, or ms); `to_time` the end (exclusive)
    :param allow_gaps: read the rest even if offsets are missing between
    """

    template_fields: Sequence[str] = (*RemoteLogOperator.template_fields, *TOPIC_FIELDS)

    def __init__(
        self,
        *,
        topic: str,
        topic_id: str = "",
        partitions: str | None = None,
        from_time: str | None = None,
        to_time: str | None = None,
        allow_gaps: bool | str = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.topic = topic
        self.topic_id = topic_id
        self.partitions = partitions
        self.from_time = from_time
        self.to_time = to_time
        self.allow_gaps = allow_gaps

    @contextmanager
    def opened_to_read(self, context: Context) -> Iterator[RemoteLogManager]:
        """Open the remote log as `opened` does, if the user of the run may read the topic; see ensure_may_read."""
        with self.opened() as remote_log:
            ensure_may_read(remote_log, context, self.topic)
            yield remote_log


class DeletionPlanOperator(SelectingOperator, PlanningOperator):
    """Base of operators that plan what a run deletes.

    A dry run skips the tasks right after it, and so does a run that nobody requested while scheduled.deletion.enable is
    off.

    :param max_segments: the most segments of this run; None: all that are due, or as many as the settings allow
    :param wanted: whether there is anything to plan; else the task skips itself
    """

    template_fields: Sequence[str] = (*SelectingOperator.template_fields, "max_segments", "wanted")

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
        if self.is_dry_run:
            fail_for(unreadable, introduction)
        if only_planned:
            self.log.warning("%s", only_planned)
        if self.is_dry_run or only_planned:
            self.skip_next_tasks(context)


def described(findings: Iterable[Finding]) -> str:
    """Return `findings` as one text, each after the name of its partition if it has one."""
    return "; ".join(map(str, findings))


def batches_of(results: Batches | XComArg | None) -> Batches:
    """Return what CopySegmentsOperator returned; nothing if it was skipped or failed."""
    return cast("Batches", results or ())


def not_begun_of(remote_log: RemoteLogManager, context: Context, batches: Batches) -> list[Finding]:
    """Return the partitions whose copies CopySegmentsOperator, which returned `batches`, could not begin."""
    from tiered_storage.remote_log.model import Finding

    path = batches[0].get(NOT_BEGUN) if batches else None
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
