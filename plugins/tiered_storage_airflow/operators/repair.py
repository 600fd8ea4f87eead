"""Operators that repair what an audit found, as far as it needs no guess."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import XComArg
from airflow.sdk.exceptions import AirflowFailException

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
from tiered_storage_airflow.runs.scope import is_switched_on
from tiered_storage_airflow.runs.summary import keep_done, summarize
from tiered_storage_airflow.runs.task_context import lease_owner, own_path, task_folder

if TYPE_CHECKING:
    from airflow.sdk import Context

    from tiered_storage.remote_log.model import Finding
    from tiered_storage.remote_log.repair.plan import RepairPlan


class PlanRepairOperator(SelectingOperator, PlanningOperator):
    """Audit, and plan the repairs: copy damaged segments again, and remove what copies left over.

    Has two outputs: the path of the plan's `copies`, for CopySegmentsOperator, and that of all its `repairs`, for
    FinishRepairOperator. A dry run or an empty plan skips the tasks right after it. It fails if only a person can
    repair what is wrong.

    :param deep: run a deep audit, in this task
    :param dry_run: only show the plan
    """

    template_fields: Sequence[str] = (*SelectingOperator.template_fields, "deep")

    def __init__(self, *, deep: bool | str = False, dry_run: bool | str = True, **kwargs: Any) -> None:
        super().__init__(dry_run=dry_run, multiple_outputs=True, **kwargs)
        self.deep = deep

    def execute(self, context: Context) -> dict[str, str]:
        """Audit and plan; log a warning for each decision left to a person."""
        from tiered_storage.remote_log.copy.tasks import CopyPlan
        from tiered_storage.remote_log.progress import Amount, TaskProgress
        from tiered_storage.remote_log.repair.plan import RepairPlan

        deep = is_switched_on(self.deep, "deep")
        with self.opened(outdated=True) as remote_log:
            selection = self.selection(remote_log)
            progress = TaskProgress("read", remote_log.checks.to_read(selection) if deep else Amount(), self.log.info)
            found = remote_log.checks.audit(selection, deep=deep, on_moved=progress)
            progress.conclude()
            plan = remote_log.repairs.plan(found, selection)
            folder = f"runs/{task_folder(context)}"
            outputs = {"copies": f"{folder}/plan.jsonl", "repairs": f"{folder}/repair.jsonl"}
            remote_log.context.work.write(outputs["repairs"], [plan], RepairPlan)
            remote_log.context.work.write(outputs["copies"], [plan.copies], CopyPlan)
            summarize(
                remote_log,
                context,
                self.log,
                anomalies=found.anomaly_count,
                documents=len(plan.documents),
                copies=len(plan.copies.segments),
                copies_to_finish=len(plan.unfinished),
                indexes_to_rebuild=len(plan.without_indexes),
                segments_to_end=len(plan.replaced),
                leftovers=sum(len(leftovers.names) for leftovers in plan.leftovers),
                left_to_a_person=len(plan.advice),
            )
        self._show(plan)
        if self.is_dry_run or plan.is_empty:
            if plan.advice and not self.is_dry_run:
                raise AirflowFailException(_for_a_person(plan.advice))
            self.skip_next_tasks(context)
        return outputs

    def _show(self, plan: RepairPlan) -> None:
        for partition in plan.documents:
            self.log.info("write again: the store's document of %s", partition)
        for segment in plan.copies.segments:
            self.log.info(
                "copy again: %s offsets %d to %d",
                segment.topic_id_partition, segment.base_offset, segment.end_offset,
            )  # fmt: skip
        for unfinished in plan.unfinished:
            self.log.info(
                "finish: %s offsets %d to %d",
                unfinished.segment_id, unfinished.start_offset, unfinished.end_offset,
            )  # fmt: skip
        for lost in plan.without_indexes:
            self.log.info("rebuild indexes: %s offsets %d to %d", lost.segment_id, lost.start_offset, lost.end_offset)
        for damaged in plan.replaced:
            self.log.info("end: %s", damaged.segment_id)
        for leftovers in plan.leftovers:
            for name in leftovers.names:
                self.log.info("remove: %s", name)
        for finding in plan.advice:
            self.log.warning("left to a person: %s %s", finding.partition, finding.message)


class FinishRepairOperator(RemoteLogOperator):
    """Finish whole copies that were never finished, delete damaged segments that new copies replace, remove orphans.

    Fails for what is left to a person. Does nothing if copies could not be begun.

    :param plan: the output `repairs` of PlanRepairOperator
    :param results: what CopySegmentsOperator returned
    """

    template_fields: Sequence[str] = (*RemoteLogOperator.template_fields, "plan", "results")

    def __init__(self, *, plan: str | XComArg, results: Batches | XComArg | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.plan = plan
        self.results = results

    def execute(self, context: Context) -> None:
        """Carry out the rest of the plan, as far as it still holds."""
        from dataclasses import replace

        from tiered_storage.remote_log.copy.tasks import CommitReport, CopyPlan
        from tiered_storage.remote_log.repair.plan import RepairPlan
        from tiered_storage.remote_log.repair.repairs import RepairReport

        def nothing_more(_: CopyPlan) -> CommitReport:
            return CommitReport((), (), (), (), retriable=True)

        with self.opened() as remote_log:
            if failed := not_begun_of(remote_log, context, batches_of(self.results)):
                raise AirflowFailException(not_begun_message(failed))
            [plan] = remote_log.context.work.read(own_path(context, self.plan), RepairPlan)
            copied = replace(plan, copies=replace(plan.copies, segments=()))
            report = remote_log.repairs.carry_out(copied, lease_owner(context), nothing_more)
            keep_done(remote_log, context, "repaired", [report], RepairReport)
            summarize(
                remote_log,
                context,
                self.log,
                written_documents=len(report.documents),
                finished_copies=len(report.finished),
                rebuilt_indexes=len(report.rebuilt),
                ended_segments=len(report.retired),
                removed_objects=len(report.removed),
                failed=len(report.failures),
                left_to_a_person=len(plan.advice),
            )
        for notice in report.notices:
            self.log.warning("%s", notice)
        if troubles := [*report.failures, *plan.advice]:
            raise AirflowFailException(_for_a_person(troubles))


def _for_a_person(findings: Sequence[Finding]) -> str:
    return f"{len(findings)} anomalies need a person: {described(findings)}"
