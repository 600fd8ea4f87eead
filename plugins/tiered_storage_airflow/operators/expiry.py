"""Operators that expire remote segments: plan, mark, delete."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import XComArg
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from tiered_storage_airflow.operators.remote_log_operator import (
    DeletionPlanOperator,
    RemoteLogOperator,
    SelectingOperator,
    described,
    fail_for_left,
    log_source_notices,
    log_stop,
    skip_unless_asked_for_or_armed,
    why_only_planned,
)
from tiered_storage_airflow.runs.scope import whole_number
from tiered_storage_airflow.runs.stats import count
from tiered_storage_airflow.runs.summary import keep_done, summarize
from tiered_storage_airflow.runs.task_context import effective_now, lease_owner, own_path, task_folder

if TYPE_CHECKING:
    from airflow.sdk import Context

    from tiered_storage.remote_log.manager import RemoteLogManager
    from tiered_storage.remote_log.selection import Selection


class PlanExpiryOperator(DeletionPlanOperator):
    """Plan which remote segments are past total retention, in topics where deletion is allowed.

    Returns the plan's path. An empty plan skips nothing: the next tasks retry deletions that failed earlier.
    Partitions that cannot be read make a dry run fail; else the plan keeps them for the task that ends the run.
    """

    def execute(self, context: Context) -> str:
        """Look at every partition that has remote segments."""
        from tiered_storage.clock import wall_clock
        from tiered_storage.remote_log.retention.expiry import ExpiryRun

        self.skip_unless_wanted()
        most = whole_number(self.max_segments, "max_segments")
        with self.opened() as remote_log:
            selection = self.selection(remote_log)
            plans, unreadable = remote_log.deletions.plan_expiry(selection, effective_now(context, wall_clock()), most)
            path = f"runs/{task_folder(context)}/expiry.jsonl"
            remote_log.context.work.write(path, [ExpiryRun(tuple(plans), tuple(unreadable))], ExpiryRun)
            for plan in plans:
                self.log.info(
                    "past retention: %s before offset %d: %d segments, %d bytes, and %d never copied, %d bytes",
                    plan.topic_id_partition, plan.new_log_start, len(plan.segments), plan.size,
                    plan.never_copied_segments, plan.never_copied_bytes,
                )  # fmt: skip
            for due in remote_log.deletions.pending_deletions(selection):
                self.log.info(
                    "marked earlier, and due: %s: %d segments, %d orphaned copies, %d bytes%s",
                    due.topic_id_partition, due.segments, due.leftovers, due.size,
                    "; the whole partition is deleted" if due.as_a_whole else "",
                )  # fmt: skip
            waiting = tell_waiting(remote_log, selection, self.log)
            for finding in unreadable:
                self.log.warning("nothing of %s can expire now: %s", finding.partition, finding.message)
            summarize(
                remote_log,
                context,
                self.log,
                partitions=len(plans),
                segments=sum(len(plan.segments) for plan in plans),
                bytes=sum(plan.size for plan in plans),
                never_copied_segments=sum(plan.never_copied_segments for plan in plans),
                waiting_segments=waiting,
                left_alone=len(unreadable),
            )
            log_stop(remote_log, self.log)
            log_source_notices(remote_log, self.log)
            only_planned = why_only_planned(remote_log, context)
        self.conclude(context, unreadable, "cannot expire", only_planned)
        return path


class MarkDeletedOperator(RemoteLogOperator):
    """Move global log starts and mark the segments below them DELETE_SEGMENT_STARTED.

    Returns, for DeleteSegmentsOperator, the path of the list of what the plan and this task left out.

    :param plan: what PlanExpiryOperator or PlanRecordDeletionOperator returned
    :param is_reported_later: whether a DeleteSegmentsOperator fails for what this task leaves out, and the next run
        takes a partition that another run holds; otherwise this task fails after the rest is done
    """

    template_fields: Sequence[str] = (*RemoteLogOperator.template_fields, "plan")

    def __init__(self, *, plan: str | XComArg, is_reported_later: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.plan = plan
        self.is_reported_later = is_reported_later

    def execute(self, context: Context) -> str:
        """Mark all that can be marked. Fails for partitions that no later task reports, with a retry if it may help."""
        from tiered_storage.remote_log.model import Finding, LeaseHeldFinding, TopicIdPartition
        from tiered_storage.remote_log.retention.expiry import ExpiryRun

        with self.opened() as remote_log:
            skip_unless_asked_for_or_armed(remote_log, context)
            [run] = remote_log.context.work.read(own_path(context, self.plan), ExpiryRun)
            done, left = remote_log.deletions.mark_expired(run.plans, lease_owner(context))
            refused = [finding for finding in left if not isinstance(finding, LeaseHeldFinding)]
            path = f"runs/{task_folder(context)}/not-marked.jsonl"
            remote_log.context.work.write(path, [*run.left_alone, *refused], Finding)
            keep_done(remote_log, context, "marked", done, TopicIdPartition)
            summarize(remote_log, context, self.log, marked_partitions=len(done), not_marked=len(left))
        for finding in left:
            self.log.warning("%s is not marked: %s", finding.partition, finding.message)
        self.log.info("marked in %d partitions", len(done))
        if not self.is_reported_later:
            fail_for_left([*run.left_alone, *left], "not deleted")
        return path


class DeleteSegmentsOperator(SelectingOperator):
    """Delete the objects of all marked segments, including those that earlier runs could not delete.

    :param not_marked: what MarkDeletedOperator returned, to fail at the end for what it left out; empty: fail only for
        what this task leaves
    """

    template_fields: Sequence[str] = (*SelectingOperator.template_fields, "not_marked")

    def __init__(self, *, not_marked: str | XComArg = "", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.not_marked = not_marked

    def execute(self, context: Context) -> None:
        """Delete; fail at the end for objects that the store did not delete, so that a retry deletes them.

        Then fail for segments that were not marked: the next run plans them again.
        """
        from tiered_storage.remote_log.model import Finding, LeaseHeldFinding, RemoteLogSegmentMetadata
        from tiered_storage.remote_log.progress import TaskProgress

        with self.opened() as remote_log:
            skip_unless_asked_for_or_armed(remote_log, context)
            selection = self.selection(remote_log)
            progress = TaskProgress("deleted", remote_log.deletions.marked(selection), self.log.info)
            report = remote_log.deletions.delete_marked(lease_owner(context), selection, on_moved=progress)
            progress.conclude()
            not_expired = (
                remote_log.context.work.read(own_path(context, self.not_marked), Finding) if self.not_marked else []
            )
            keep_done(remote_log, context, "deleted", report.deleted, RemoteLogSegmentMetadata)
            keep_done(remote_log, context, "not-deleted", (*report.failures, *report.left), Finding)
            failures = [*report.failures, *(each for each in report.left if not isinstance(each, LeaseHeldFinding))]
            for finding in report.left:
                self.log.warning("%s is left to the next run: %s", finding.partition, finding.message)
            summarize(
                remote_log,
                context,
                self.log,
                deleted_segments=len(report.deleted),
                deleted_bytes=sum(each.size for each in report.deleted),
                waiting_segments=tell_waiting(remote_log, selection, self.log),
                failed=len(report.failures),
                left=len(report.left) + len(not_expired),
            )
        deleted = Counter(each.segment_id.topic_id_partition.topic for each in report.deleted)
        failed = Counter(each.partition.rpartition("-")[0] for each in report.failures)
        count(self.cluster, delete_requests=deleted + failed, delete_errors=failed)
        self.log.info("deleted %d segments, %d bytes", len(report.deleted), sum(each.size for each in report.deleted))
        if report.stopped:
            raise AirflowFailException(report.stopped)
        if failures:
            raise AirflowException("not deleted, and the next try retries: " + "; ".join(f.message for f in failures))
        if not_expired:
            raise AirflowFailException(f"not expired; after a repair the next run retries: {described(not_expired)}")


def tell_waiting(remote_log: RemoteLogManager, selection: Selection, log: Any) -> int:
    """Log which marked segments wait for the end of their grace time, and until when; return how many."""
    from tiered_storage.clock import as_date

    waiting = [due for due in remote_log.deletions.pending_deletions(selection) if due.waiting]
    for due in waiting:
        log.info(
            "marked, and deleted by the first run after %s: %s: %d segments, %d bytes; until then the DAG undelete "
            "brings them back",
            as_date(due.all_due_at or 0), due.topic_id_partition, due.waiting, due.waiting_size,
        )  # fmt: skip
    return sum(due.waiting for due in waiting)
