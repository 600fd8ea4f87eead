"""Operators that end the life of remote segments: plan, mark, delete."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import SkipMixin, XComArg
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from tiered_storage_airflow.operators.remote_log_operator import RemoteLogOperator, SelectingOperator
from tiered_storage_airflow.run_scope import is_switched_on
from tiered_storage_airflow.run_summary import summarize
from tiered_storage_airflow.run_time import lease_owner, run_folder, run_now

if TYPE_CHECKING:
    from airflow.sdk import Context


class PlanExpiryOperator(SelectingOperator, SkipMixin):
    """Plan which remote segments are past total retention, in topics where deletion is allowed.

    Returns the plan's path; a dry run skips everything behind it. An empty plan does not: deletions that failed
    earlier are tried again.

    :param dry_run: only show the plan
    """

    template_fields: Sequence[str] = (*SelectingOperator.template_fields, "is_dry_run")

    def __init__(self, *, dry_run: bool | str = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.is_dry_run = dry_run

    def execute(self, context: Context) -> str:
        """Look at every partition that has remote segments."""
        from tiered_storage.clock import wall_clock
        from tiered_storage.remote_log.expiry import ExpiryPlan

        only_show = is_switched_on(self.is_dry_run, "dry_run")
        with self.opened() as remote_log:
            selection = self.selection(remote_log)
            plans, unreadable = remote_log.deletions.plan_expiry(selection, run_now(context, wall_clock()))
            path = f"runs/{run_folder(context)}/expiry.jsonl"
            remote_log.work.write(path, plans, ExpiryPlan)
            for plan in plans:
                self.log.info(
                    "past retention: %s before offset %d: %d segments, %d bytes",
                    plan.topic_id_partition, plan.new_log_start, len(plan.segments), plan.size,
                )  # fmt: skip
            for finding in unreadable:
                self.log.warning("nothing of %s expires for now: %s", finding.partition, finding.message)
            summarize(
                remote_log,
                context,
                self.log,
                partitions=len(plans),
                segments=sum(len(plan.segments) for plan in plans),
                bytes=sum(plan.size for plan in plans),
                left_alone=len(unreadable),
            )
        if only_show:
            self.skip(ti=context["ti"], tasks=self.get_flat_relatives(upstream=False))
        return path


class MarkDeletedOperator(RemoteLogOperator):
    """Move our log starts and mark what lies below them DELETE_SEGMENT_STARTED.

    :param plan: what PlanExpiryOperator returned
    """

    template_fields: Sequence[str] = (*RemoteLogOperator.template_fields, "plan")

    def __init__(self, *, plan: str | XComArg, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.plan: str = plan  # type: ignore[assignment]  # Airflow puts the value in before execute

    def execute(self, context: Context) -> None:
        """Mark; a partition that somebody else works on is left to the next run."""
        from tiered_storage.remote_log.expiry import ExpiryPlan

        with self.opened() as remote_log:
            plans = remote_log.work.read(self.plan, ExpiryPlan)
            done, left = remote_log.deletions.mark_expired(plans, lease_owner(context))
        for finding in left:
            self.log.warning("%s is left to the next run: %s", finding.partition, finding.message)
        self.log.info("marked in %d partitions", len(done))


class DeleteSegmentsOperator(SelectingOperator):
    """Delete the objects of all segments that are marked, also those that earlier runs could not delete."""

    def execute(self, context: Context) -> None:
        """Delete; fail at the end for what the store would not delete, so that a retry takes it up."""
        with self.opened() as remote_log:
            report = remote_log.deletions.delete_marked(lease_owner(context), self.selection(remote_log))
            for finding in report.left:
                self.log.warning("%s is left to the next run: %s", finding.partition, finding.message)
            summarize(
                remote_log,
                context,
                self.log,
                deleted_segments=len(report.deleted),
                deleted_bytes=sum(each.size for each in report.deleted),
                failed=len(report.failures),
                left=len(report.left),
            )
        self.log.info("deleted %d segments, %d bytes", len(report.deleted), sum(each.size for each in report.deleted))
        if report.stopped:
            raise AirflowFailException(report.stopped)
        if report.failures:
            raise AirflowException(
                "not deleted, the next try takes them up: " + "; ".join(f.message for f in report.failures)
            )
