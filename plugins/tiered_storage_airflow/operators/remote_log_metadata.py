"""Operators on the RemoteLogMetadataManager: plan, commit, announce, list, mark deleted.

Between tasks travel only paths in the work area; what is at them are the library's own messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset, BaseOperator, SkipMixin, XComArg
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException

from tiered_storage_airflow.run_scope import remote_log_of
from tiered_storage_airflow.run_time import lease_owner, run_folder, run_now, window_end

if TYPE_CHECKING:
    from airflow.sdk import Context

    from tiered_storage.remote_log.copy_messages import CopyOutcome
    from tiered_storage.remote_log.copy_plan import Finding
    from tiered_storage.remote_log.remote_log_manager import RemoteLogManager


class PlanCopyOperator(BaseOperator, SkipMixin):
    """Plan what a copy run moves; its log is the dry run's output.

    Returns the plan's path. A dry run (`params.dry_run`) or an empty plan skips everything behind it.

    :param topics: a regular expression over whole topic names
    :param max_segments: at most so many in this run; None: as the settings say
    """

    template_fields: Sequence[str] = ("topics",)

    def __init__(self, *, topics: str = ".*", max_segments: int | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.topics = topics
        self.max_segments = max_segments

    def execute(self, context: Context) -> str | None:
        """Discover, plan, write the plan down."""
        from tiered_storage.remote_log.copy_plan import CopyPlan
        from tiered_storage.remote_log.selection import Selection

        with remote_log_of(context) as remote_log:
            plan = remote_log.plan_copy(Selection(self.topics), window_end(context), self.max_segments)
            path = f"runs/{run_folder(context)}/plan.jsonl"
            remote_log.work.write(path, [plan], CopyPlan)
        self._show(plan)
        if context["params"].get("dry_run"):
            self._skip_the_rest(context)
            return path
        if plan.is_empty:
            _fail_for([*plan.refused, *plan.unreadable], "nothing is due, but")
            self._skip_the_rest(context)
        return path

    def _show(self, plan: Any) -> None:
        for segment in plan.segments:
            self.log.info(
                "due: %s offsets %d to %d, %d bytes",
                segment.topic_id_partition, segment.base_offset, segment.end_offset, segment.size,
            )  # fmt: skip
        for finding in (*plan.notices, *plan.refused, *plan.unreadable):
            self.log.warning("%s %s", finding.partition, finding.message)
        self.log.info(
            "%d segments of %d partitions are due: %d bytes", len(plan.segments), len(plan.partitions), plan.size
        )

    def _skip_the_rest(self, context: Context) -> None:
        self.skip(ti=context["ti"], tasks=self.get_flat_relatives(upstream=False))


class CommitMetadataOperator(BaseOperator):
    """Make the copies of one batch of partitions visible to readers, and name those that failed.

    Healthy partitions are committed though others fail; then the task is red. It is tried again only where the local
    log could not be looked at: a copy that failed stays one, and the next run plans it anew. Returns the path of what
    was committed.

    :param results: one element of what CopySegmentsOperator returned: the batch's name and its path
    """

    template_fields: Sequence[str] = ("results",)

    def __init__(self, *, results: dict[str, str], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.results = results

    def execute(self, context: Context) -> str:
        """Commit, write down what became visible, fail for what did not."""
        from tiered_storage.remote_log.copy_messages import CopyOutcome
        from tiered_storage.remote_log.model import RemoteLogSegmentMetadata

        context["batch_name"] = self.results["name"]  # type: ignore[typeddict-unknown-key]  # for map_index_template
        with remote_log_of(context) as remote_log:
            outcomes = remote_log.work.read(self.results["path"], CopyOutcome)
            report = remote_log.commit_copy(outcomes)
            path = committed_path(self.results["path"])
            remote_log.work.write(path, report.committed, RemoteLogSegmentMetadata)
            undecided = _has_undecided(remote_log, outcomes)
        for segment in report.committed:
            self.log.info(
                "committed: %s offsets %d to %d", segment.topic_id_partition, segment.start_offset, segment.end_offset
            )
        for notice in report.notices:
            self.log.warning("%s %s", notice.partition, notice.message)
        if report.is_whole:
            return path
        message = _sentence([*report.failures, *report.damages], f"{len(report.committed)} segments committed, but")
        raise AirflowException(message) if undecided else AirflowFailException(message)


class AnnounceCopyOperator(BaseOperator):
    """Emit one asset event for the run, naming the partitions that got something and the time to take as now.

    Skips itself where nothing was committed.

    :param results: what CopySegmentsOperator returned
    """

    template_fields: Sequence[str] = ("results",)

    def __init__(self, *, results: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.results = results

    def execute(self, context: Context) -> None:
        """Collect what every batch committed and put it in the event."""
        from tiered_storage.clock import wall_clock
        from tiered_storage.remote_log.model import RemoteLogSegmentMetadata

        with remote_log_of(context) as remote_log:
            committed = [
                segment
                for batch in self.results or []
                for segment in remote_log.work.read_if_there(committed_path(batch["path"]), RemoteLogSegmentMetadata)
            ]
        if not committed:
            raise AirflowSkipException("nothing was committed, so nothing is announced")
        partitions = sorted({str(segment.topic_id_partition) for segment in committed})
        extra: dict[str, Any] = {"partitions": partitions, "now": run_now(context, wall_clock())}
        for outlet in self.outlets:
            if isinstance(outlet, Asset):
                context["outlet_events"][outlet].extra = extra
        self.log.info("announced: %s", extra)


class ConcludeCopyOperator(BaseOperator):
    """Keep a run red whose plan had to leave something out that somebody asked for, or whose window is not all copied.

    Only a backfill promises a whole window. What it left to another run, which held the leases, may never be taken by
    that one: its window may end earlier. Retries see whether somebody has committed it meanwhile.

    :param plan: what PlanCopyOperator returned
    :param topics: the regular expression that was planned for
    """

    template_fields: Sequence[str] = ("plan", "topics")

    def __init__(self, *, plan: str | XComArg, topics: str = ".*", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.plan: str = plan  # type: ignore[assignment]  # Airflow puts the value in before execute
        self.topics = topics

    def execute(self, context: Context) -> None:
        """Fail for every refused topic and unreadable partition, and for what a backfill's window still lacks."""
        from tiered_storage.remote_log.copy_plan import CopyPlan
        from tiered_storage.remote_log.selection import Selection

        end = window_end(context)
        with remote_log_of(context) as remote_log:
            [plan] = remote_log.work.read(self.plan, CopyPlan)
            lacking = () if end is None else remote_log.plan_copy(Selection(self.topics), end).segments
        _fail_for([*plan.refused, *plan.unreadable], "all that could be copied is committed, but")
        if lacking:
            names = ", ".join(sorted({str(segment.topic_id_partition) for segment in lacking}))
            raise AirflowException(
                f"{len(lacking)} segments of this window are not committed, of {names}: another run held their leases; "
                "where that one does not take them, run the backfill again over failed runs"
            )


class PlanExpiryOperator(BaseOperator, SkipMixin):
    """Plan which remote segments are past total retention, in topics where deletion is allowed.

    Returns the plan's path; a dry run skips everything behind it. An empty plan does not: deletions that failed
    earlier are tried again.

    :param topics: a regular expression over whole topic names
    """

    template_fields: Sequence[str] = ("topics",)

    def __init__(self, *, topics: str = ".*", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.topics = topics

    def execute(self, context: Context) -> str:
        """Look at every partition that has remote segments."""
        from tiered_storage.clock import wall_clock
        from tiered_storage.remote_log.expiry import ExpiryPlan
        from tiered_storage.remote_log.selection import Selection

        with remote_log_of(context) as remote_log:
            plans, unreadable = remote_log.deletions.plan_expiry(Selection(self.topics), run_now(context, wall_clock()))
            path = f"runs/{run_folder(context)}/expiry.jsonl"
            remote_log.work.write(path, plans, ExpiryPlan)
        for plan in plans:
            self.log.info(
                "past retention: %s before offset %d: %d segments, %d bytes",
                plan.topic_id_partition, plan.new_log_start, len(plan.segments), plan.size,
            )  # fmt: skip
        for finding in unreadable:
            self.log.warning("nothing of %s expires for now: %s", finding.partition, finding.message)
        if context["params"].get("dry_run"):
            self.skip(ti=context["ti"], tasks=self.get_flat_relatives(upstream=False))
        return path


class MarkDeletedOperator(BaseOperator):
    """Move our log starts and mark what lies below them DELETE_SEGMENT_STARTED.

    :param plan: what PlanExpiryOperator returned
    """

    template_fields: Sequence[str] = ("plan",)

    def __init__(self, *, plan: str | XComArg, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.plan: str = plan  # type: ignore[assignment]  # Airflow puts the value in before execute

    def execute(self, context: Context) -> None:
        """Mark; a partition that somebody else works on is left to the next run."""
        from tiered_storage.remote_log.expiry import ExpiryPlan

        with remote_log_of(context) as remote_log:
            plans = remote_log.work.read(self.plan, ExpiryPlan)
            done, left = remote_log.deletions.mark_expired(plans, lease_owner(context))
        for finding in left:
            self.log.warning("%s is left to the next run: %s", finding.partition, finding.message)
        self.log.info("marked in %d partitions", len(done))


class ListSegmentsOperator(BaseOperator):
    """Return the remote segments of one topic's partitions, every state but the deleted ones, as plain values.

    :param topic: the topic's name
    """

    template_fields: Sequence[str] = ("topic",)

    def __init__(self, *, topic: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.topic = topic

    def execute(self, context: Context) -> str:
        """Write the list to the work area and return its path."""
        from tiered_storage.remote_log.model import RemoteLogSegmentMetadata

        with remote_log_of(context) as remote_log:
            segments = [
                segment
                for partition in remote_log.segments.list_partitions()
                if partition.topic == self.topic
                for segment in remote_log.segments.list_remote_log_segments(partition)
            ]
            path = f"runs/{run_folder(context)}/segments.jsonl"
            remote_log.work.write(path, segments, RemoteLogSegmentMetadata)
        return path


def committed_path(results_path: str) -> str:
    """Return where the commit of the batch at `results_path` is written down."""
    return results_path.removesuffix(".jsonl") + ".committed.jsonl"


def _has_undecided(remote_log: RemoteLogManager, outcomes: Sequence[CopyOutcome]) -> bool:
    """Whether a commit left copies as they were; what was neither committed nor marked for deletion may still be."""
    from tiered_storage.remote_log.model import SegmentState

    ids = {outcome.task.metadata.segment_id for outcome in outcomes}
    return any(
        segment.segment_id in ids and segment.state is SegmentState.COPY_SEGMENT_STARTED
        for partition in {segment_id.topic_id_partition for segment_id in ids}
        for segment in remote_log.segments.list_remote_log_segments(partition)
    )


def _fail_for(findings: Sequence[Finding], introduction: str) -> None:
    if findings:
        raise AirflowFailException(_sentence(findings, f"{introduction} {len(findings)} need a person"))


def _sentence(findings: Sequence[Finding], introduction: str) -> str:
    return f"{introduction}: " + "; ".join(f"{finding.partition}: {finding.message}" for finding in findings)
