"""Operators that trim local logs: plan, and remove the planned segments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import XComArg
from airflow.sdk.exceptions import AirflowFailException

from tiered_storage_airflow.operators.remote_log_operator import (
    DeletionPlanOperator,
    RemoteLogOperator,
    fail_for,
    log_source_notices,
    log_stop,
    skip_unless_asked_for_or_armed,
    why_only_planned,
)
from tiered_storage_airflow.runs.scope import whole_number
from tiered_storage_airflow.runs.summary import keep_done, summarize
from tiered_storage_airflow.runs.task_context import effective_now, own_path, task_folder

if TYPE_CHECKING:
    from airflow.sdk import Context

    from tiered_storage.remote_log.jobs.work_area import WorkArea
    from tiered_storage.remote_log.model import Finding
    from tiered_storage.remote_log.retention.local.plan import LocalRetentionPlan


class PlanLocalRetentionOperator(DeletionPlanOperator):
    """Plan which local segments are past local retention and safe in the remote tier, where deletion is allowed.

    A run that asset events started checks the partitions that each event names, with that event's now. Any other run,
    and an event that a person created, checks all partitions with the wall clock. Returns the plan's path. Without
    `max_segments`, the limit of the settings holds.
    """

    def execute(self, context: Context) -> str:
        """Plan for all events within one limit; if two events name a partition, the later now counts."""
        from tiered_storage.remote_log.retention.local.plan import LocalRetentionRun
        from tiered_storage.remote_log.retention.local.planning import Occasion

        self.skip_unless_wanted()
        most = whole_number(self.max_segments, "max_segments")
        with self.opened() as remote_log:
            found = occasions_of(context)
            occasions = [Occasion(now, path and _announced_at(remote_log.context.work, path)) for now, path in found]
            selection = self.selection(remote_log)
            plans, unreadable = remote_log.deletions.plan_local_retention_for(selection, occasions, most)
            path = f"runs/{task_folder(context)}/retention.jsonl"
            run = LocalRetentionRun(tuple(plans), tuple(unreadable))
            remote_log.context.work.write(path, [run], LocalRetentionRun)
            summarize(
                remote_log,
                context,
                self.log,
                partitions=sum(bool(plan.segments) for plan in plans),
                segments=sum(len(plan.segments) for plan in plans),
                bytes=sum(plan.size for plan in plans),
                held_back=sum(plan.held_back is not None for plan in plans),
                left_alone=len(unreadable),
            )
            log_stop(remote_log, self.log)
            log_source_notices(remote_log, self.log)
            only_planned = why_only_planned(remote_log, context)
        self._show(plans, unreadable)
        self.conclude(context, unreadable, "cannot be trimmed", only_planned)
        return path

    def _show(self, plans: Sequence[LocalRetentionPlan], unreadable: Sequence[Finding]) -> None:
        for plan in plans:
            self.log.info(
                "past local retention: %s before offset %d: %d segments, %d bytes",
                plan.topic_id_partition, plan.new_local_start, len(plan.segments), plan.size,
            )  # fmt: skip
            if plan.held_back:
                self.log.warning("%s: %s", plan.topic_id_partition, plan.held_back)
            for note in plan.notes:
                self.log.info("%s: %s", plan.topic_id_partition, note)
        for finding in unreadable:
            self.log.warning("%s is not trimmed: %s", finding.partition, finding.message)


class TrimLocalLogsOperator(RemoteLogOperator):
    """Remove the planned local segments that are still due; fail at the end for those that it could not remove.

    :param plan: what PlanLocalRetentionOperator returned
    """

    template_fields: Sequence[str] = (*RemoteLogOperator.template_fields, "plan")

    def __init__(self, *, plan: str | XComArg, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.plan = plan

    def execute(self, context: Context) -> None:
        """Trim partition by partition; a failed partition does not hold up others."""
        from tiered_storage.remote_log.progress import TaskProgress
        from tiered_storage.remote_log.retention.local.plan import (
            LocalRetentionPlan,
            LocalRetentionRun,
            amount_to_look_at,
        )

        with self.opened() as remote_log:
            skip_unless_asked_for_or_armed(remote_log, context)
            [run] = remote_log.context.work.read(own_path(context, self.plan), LocalRetentionRun)
            progress = TaskProgress("compared in both tiers,", amount_to_look_at(run.plans), self.log.info)
            report = remote_log.deletions.enforce_local_retention(run.plans, progress)
            progress.conclude()
            failures = [*run.left_alone, *report.failures]
            keep_done(remote_log, context, "trimmed", report.trimmed, LocalRetentionPlan)
            summarize(
                remote_log,
                context,
                self.log,
                trimmed_partitions=len(report.trimmed),
                trimmed_segments=sum(len(plan.segments) for plan in report.trimmed),
                trimmed_bytes=sum(plan.size for plan in report.trimmed),
                failed=len(failures),
            )
        for plan in report.trimmed:
            self.log.info("%s begins locally at offset %d", plan.topic_id_partition, plan.new_local_start)
        self.log.info("trimmed %d partitions", len(report.trimmed))
        if report.stopped:
            raise AirflowFailException(report.stopped)
        fail_for(failures, "not trimmed")


def occasions_of(context: Context) -> list[tuple[int, str | None]]:
    """Return the now (ms) of a run and the file that names its partitions (None: all): one pair, or one for each event.

    Raises AirflowFailException if an event's now or path is invalid.
    """
    from tiered_storage.clock import wall_clock

    events = [event for events in (context.get("triggering_asset_events") or {}).values() for event in events]
    announced = [_announced(event.extra) for event in events if {"now", "path"} <= event.extra.keys()]
    now = effective_now(context, wall_clock())
    # A person who creates an event must not be able to make segments look older than they are.
    occasions: list[tuple[int, str | None]] = [(min(moment, now), path) for moment, path in announced]
    if len(announced) < len(events) or not events:
        occasions.append((now, None))
    return occasions


def _announced(extra: Mapping[str, Any]) -> tuple[int, str]:
    now, path = extra["now"], extra["path"]
    if type(now) is not int or not isinstance(path, str) or not path.startswith("runs/"):
        raise AirflowFailException(
            f"nothing was done: an event of the asset has now={now!r:.100} and path={path!r:.100}; it needs a number "
            "of milliseconds and a file of the work area, as the task announce writes them"
        )
    return now, path


def _announced_at(work: WorkArea, path: str) -> frozenset[str] | None:
    """Return the partitions that the task announce named at `path`; None, for all, if the file is gone."""
    from tiered_storage.errors import RemoteObjectNotFoundError
    from tiered_storage.remote_log.model import TopicIdPartition

    try:
        return frozenset(map(str, work.read(path, TopicIdPartition)))
    except RemoteObjectNotFoundError:
        return None
