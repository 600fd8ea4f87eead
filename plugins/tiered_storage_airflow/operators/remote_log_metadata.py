"""Operators on the RemoteLogMetadataManager: plan, commit, announce, conclude, list.

Tasks pass each other only paths in the work area, each in the folder of the task that wrote it. The files there are the
library's own messages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset, XComArg
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException

from tiered_storage_airflow.operators.remote_log_operator import (
    Batches,
    PlanningOperator,
    RemoteLogOperator,
    SelectingOperator,
    batches_of,
    described,
    not_begun_message,
    not_begun_of,
)
from tiered_storage_airflow.runs.scope import whole_number
from tiered_storage_airflow.runs.stats import count
from tiered_storage_airflow.runs.summary import summarize
from tiered_storage_airflow.runs.task_context import effective_now, own_path, task_folder, window_end

if TYPE_CHECKING:
    from airflow.sdk import Context

    from tiered_storage.remote_log.copy.tasks import CopyOutcome, CopyPlan
    from tiered_storage.remote_log.model import Finding, RemoteLogSegmentMetadata


class PlanCopyOperator(SelectingOperator, PlanningOperator):
    """Plan what a copy run copies; the task's log is the dry run's output.

    Returns the plan's path. A dry run or an empty plan skips the tasks right after it; those after them run or not by
    their trigger rules. Airflow lets a mapped task skip none: give `dry_run` to every task.

    :param max_segments: the most segments of this run; None: the limit of the settings
    :param dry_run: only show the plan
    """

    template_fields: Sequence[str] = (*SelectingOperator.template_fields, "max_segments")

    def __init__(self, *, max_segments: int | str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.max_segments = max_segments

    def execute(self, context: Context) -> str:
        """Find the partitions, plan, and write the plan."""
        from tiered_storage.remote_log.copy.tasks import CopyPlan

        most = whole_number(self.max_segments, "max_segments")
        with self.opened() as remote_log:
            selection = self.selection(remote_log)
            plan = remote_log.plan_copy(selection, window_end(context), most)
            path = f"runs/{task_folder(context)}/plan.jsonl"
            remote_log.context.work.write(path, [plan], CopyPlan)
            self._show(plan)
            summarize(
                remote_log,
                context,
                self.log,
                due_segments=len(plan.segments),
                due_bytes=plan.size,
                refused=len(plan.refused),
                unreadable=len(plan.unreadable),
                alarms=len(plan.alarms),
            )
        if plan.is_empty and not self.is_dry_run:
            _fail_for(plan.troubles, "nothing is due, but")
        if plan.is_empty or self.is_dry_run:
            self.skip_next_tasks(context)
        return path

    def _show(self, plan: CopyPlan) -> None:
        for segment in plan.segments:
            self.log.info(
                "due: %s offsets %d to %d, %d bytes",
                segment.topic_id_partition, segment.base_offset, segment.end_offset, segment.size,
            )  # fmt: skip
        for finding in (*plan.notices, *plan.troubles):
            self.log.warning("%s %s", finding.partition, finding.message)
        self.log.info(
            "%d segments of %d partitions are due: %d bytes", len(plan.segments), len(plan.partitions), plan.size
        )


class CommitMetadataOperator(RemoteLogOperator):
    """Make the copies of one batch of partitions visible to readers, and name those that failed.

    The task commits healthy partitions even if others failed, and fails after that. It retries only if the local log
    could not be read: a retry cannot help a failed copy, which the next run plans again. Returns the path of the list
    of committed segments.

    :param results: one element of what CopySegmentsOperator returned: the batch's name and its paths
    :param plan: what PlanCopyOperator returned. If the task fails, it repeats the plan's alarms: no later task of the
    run reports them then, and no later plan finds records that a gap has lost. Empty: it repeats none
    """

    template_fields: Sequence[str] = (*RemoteLogOperator.template_fields, "results", "plan")

    def __init__(self, *, results: Mapping[str, str], plan: str | XComArg = "", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.results = results
        self.plan = plan

    def execute(self, context: Context) -> str:
        """Commit, write the list of what became visible, and fail for what did not."""
        from tiered_storage.remote_log.copy.tasks import CopyOutcome, CopyPlan
        from tiered_storage.remote_log.model import RemoteLogSegmentMetadata

        context["batch_name"] = self.results["name"]  # type: ignore[typeddict-unknown-key]  # for map_index_template
        with self.opened() as remote_log:
            outcomes = remote_log.context.work.read(own_path(context, self.results["path"]), CopyOutcome)
            report = remote_log.commit_copy(outcomes)
            path = own_path(context, self.results["committed"])
            remote_log.context.work.write(path, report.committed, RemoteLogSegmentMetadata)
            repeats = not report.is_whole and self.plan
            plans = remote_log.context.work.read(own_path(context, self.plan), CopyPlan) if repeats else []
        for segment in report.committed:
            self.log.info(
                "committed: %s offsets %d to %d", segment.topic_id_partition, segment.start_offset, segment.end_offset
            )
        for notice in report.notices:
            self.log.warning("%s %s", notice.partition, notice.message)
        if report.is_whole:
            return path
        alarms = [alarm for plan in plans for alarm in plan.alarms]
        troubles = [*report.failures, *report.damages, *alarms]
        message = _sentence(troubles, f"{len(report.committed)} segments committed, but")
        raise AirflowException(message) if report.is_undecided else AirflowFailException(message)


class AnnounceCopyOperator(RemoteLogOperator):
    """Emit one asset event for the run: how many partitions got segments, the file that names them, and the run's now.

    Skips itself if nothing was committed.

    :param results: what CopySegmentsOperator returned
    """

    template_fields: Sequence[str] = (*RemoteLogOperator.template_fields, "results")

    def __init__(self, *, results: Batches | XComArg | None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.results = results

    def execute(self, context: Context) -> None:
        """Collect what every batch committed, and put it in the event."""
        from tiered_storage.clock import wall_clock
        from tiered_storage.remote_log.copy.tasks import CopyOutcome
        from tiered_storage.remote_log.model import RemoteLogSegmentMetadata, TopicIdPartition

        path = f"runs/{task_folder(context)}/announced.jsonl"
        with self.opened() as remote_log:
            work = remote_log.context.work
            batches = batches_of(self.results)
            committed = [
                segment
                for batch in batches
                for segment in work.read_if_there(own_path(context, batch["committed"]), RemoteLogSegmentMetadata)
            ]
            copied = [
                outcome
                for batch in batches
                for outcome in work.read_if_there(own_path(context, batch["path"]), CopyOutcome)
            ]
            failed = {str(each.task.metadata.topic_id_partition) for each in copied if each.finished is None}
            failed |= {each.partition for each in not_begun_of(remote_log, context, batches)}
            partitions = sorted({segment.topic_id_partition for segment in committed})
            work.write(path, partitions, TopicIdPartition)
            summarize(
                remote_log,
                context,
                self.log,
                begun_segments=len(copied),
                committed_segments=len(committed),
                committed_bytes=sum(segment.size for segment in committed),
                partitions=len(partitions),
                failed_partitions=sorted(failed),
            )
        _count_copies(copied, committed, self.cluster)
        if not committed:
            raise AirflowSkipException("nothing was committed, so nothing is announced")
        extra: dict[str, Any] = {
            "partitions": len(partitions),
            "path": path,
            "now": effective_now(context, wall_clock()),
        }
        for outlet in self.outlets:
            if isinstance(outlet, Asset):
                context["outlet_events"][outlet].extra = extra
        self.log.info("announced: %s", extra)


class ConcludeCopyOperator(SelectingOperator):
    """Fail a run that left out something requested, or a backfill whose window is not wholly copied.

    Only a backfill promises a whole window. Another run that held the leases may never copy what the backfill left to
    it: its window may end earlier. Retries check whether another run has committed it since.

    :param plan: what PlanCopyOperator returned, for the same topics and partitions
    :param results: what CopySegmentsOperator returned
    """

    template_fields: Sequence[str] = (*SelectingOperator.template_fields, "plan", "results")

    def __init__(self, *, plan: str | XComArg, results: Batches | XComArg | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.plan = plan
        self.results = results

    def execute(self, context: Context) -> None:
        """Fail for copies that could not be planned or begun, and for what a backfill's window still lacks."""
        from tiered_storage.remote_log.copy.tasks import CopyPlan

        end = window_end(context)
        with self.opened() as remote_log:
            [plan] = remote_log.context.work.read(own_path(context, self.plan), CopyPlan)
            failed = not_begun_of(remote_log, context, batches_of(self.results))
            selection = self.selection(remote_log)
            lacking = () if end is None else remote_log.plan_copy(selection, end).segments
        if failed:
            raise AirflowFailException(not_begun_message([*failed, *plan.troubles]))
        _fail_for(plan.troubles, "all that could be copied is committed, but")
        if lacking:
            names = ", ".join(sorted({str(segment.topic_id_partition) for segment in lacking}))
            raise AirflowException(
                f"{len(lacking)} segments of this window are not committed, of {names}: another run held their leases; "
                "if that run does not copy them, run the backfill again over failed runs"
            )


class ListSegmentsOperator(RemoteLogOperator):
    """Return the remote segments of one topic, in every state but deleted, as plain values.

    :param topic: the topic's name
    """

    template_fields: Sequence[str] = (*RemoteLogOperator.template_fields, "topic")

    def __init__(self, *, topic: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.topic = topic

    def execute(self, context: Context) -> str:
        """Write the list to the work area and return its path."""
        from tiered_storage.remote_log.model import RemoteLogSegmentMetadata

        with self.opened() as remote_log:
            segments = [
                segment
                for partition in remote_log.context.segments.list_partitions()
                if partition.topic == self.topic
                for segment in remote_log.context.segments.list_remote_log_segments(partition)
            ]
            path = f"runs/{task_folder(context)}/segments.jsonl"
            remote_log.context.work.write_report(path, segments, RemoteLogSegmentMetadata)
        return path


def _count_copies(
    copied: Sequence[CopyOutcome], committed: Sequence[RemoteLogSegmentMetadata], cluster: str | None
) -> None:
    """Count the copies of the run for Airflow's metrics: all, those that failed, and the bytes that were committed."""
    topics = [each.task.metadata.topic_id_partition.topic for each in copied if not each.is_unused]
    sizes = Counter[str]()
    for segment in committed:
        sizes[segment.topic_id_partition.topic] += segment.size
    done = Counter(segment.topic_id_partition.topic for segment in committed)
    count(cluster, copy_requests=Counter(topics), copy_errors=Counter(topics) - done, copy_bytes=sizes)


def _fail_for(findings: Sequence[Finding], introduction: str) -> None:
    if findings:
        raise AirflowFailException(_sentence(findings, f"{introduction} {len(findings)} need a person"))


def _sentence(findings: Sequence[Finding], introduction: str) -> str:
    return f"{introduction}: {described(findings)}"
