"""Operators that export topics as tables: plan an export to Parquet, and export with Spark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowException, AirflowFailException

from tiered_storage_airflow.operators.export_results import (
    DoneExport,
    LateExports,
    fail_for,
    is_retriable,
    planned_figures,
    show_dead_letters,
    show_late,
    show_plan,
    show_report,
)
from tiered_storage_airflow.operators.remote_log_operator import TOPIC_FIELDS, PlanningOperator, TopicReadOperator
from tiered_storage_airflow.operators.spark_groups import SPARK_JOBS, SparkGroupsOperator
from tiered_storage_airflow.runs.scope import is_switched_on, required_number
from tiered_storage_airflow.runs.summary import keep_done, summarize
from tiered_storage_airflow.runs.task_context import data_interval, is_backfill, task_folder, task_lease_owner

if TYPE_CHECKING:
    from airflow.sdk import Context

    from tiered_storage.remote_log.manager import RemoteLogManager
    from tiered_storage.remote_log.tables.export_job import ExportJob, ExportRequest
    from tiered_storage.remote_log.tables.exports import BegunExport

EXPORT_JOB = SPARK_JOBS / "export_parquet.py"
EXPORT_HERE_BYTES = 256 << 20
"""Below this size the task exports without Spark, which takes longer to start."""
LATE_INTERVALS = 10
"""The most earlier intervals with late records that a run exports again; the next runs export the others."""
LATE_TRIES = 3
"""A run tries at most this many times the requested number of late intervals: failures must not delay earlier ones."""

_FIELDS = (*TOPIC_FIELDS, "isolation", "codec", "max_disorder_minutes", "late_intervals")


class _ExportOperator(TopicReadOperator):
    """The request that both operators take; every value may be text from a form's template."""

    def __init__(
        self,
        *,
        topic: str = "",
        isolation: str = "read_committed",
        codec: str = "zstd",
        max_disorder_minutes: int | str = 60,
        late_intervals: int | str = LATE_INTERVALS,
        **kwargs: Any,
    ) -> None:
        super().__init__(topic=topic, **kwargs)
        self.isolation = isolation
        self.codec = codec
        self.max_disorder_minutes = max_disorder_minutes
        self.late_intervals = late_intervals

    def request(self, remote_log: RemoteLogManager, context: Context) -> ExportRequest:
        """Return the requested export. Fails if its interval is not known, or has not ended yet."""
        from tiered_storage.clock import as_date
        from tiered_storage.remote_log.selection import parse_partitions
        from tiered_storage.remote_log.tables.export_job import ExportRequest
        from tiered_storage.remote_log.tables.layout import Interval
        from tiered_storage.remote_log.tables.query import RowFilter, TableQuery

        if self.isolation not in {"read_committed", "read_uncommitted"}:
            raise AirflowFailException(f"isolation is {self.isolation!r}: read_committed or read_uncommitted")
        rows = RowFilter(
            committed_only=self.isolation == "read_committed",
            disorder_ms=60_000 * required_number(self.max_disorder_minutes, "max_disorder_minutes"),
        )
        query = TableQuery(self.topic, self.topic_id or None, parse_partitions(self.partitions or None), rows=rows)
        interval, now = Interval(*self._times(context)), remote_log.context.clock()
        if interval.end > now:
            raise AirflowFailException(
                f"nothing was done: the interval ends at {as_date(interval.end)}, and it is {as_date(now)} now. An "
                "export into the future would block later exports that overlap it: give an end that has passed"
            )
        return ExportRequest(
            query,
            interval,
            remote_log.context.settings.export_url,
            self.codec,
            allow_gaps=is_switched_on(self.allow_gaps, "allow_gaps"),
        )

    def most_late(self, context: Context) -> int:
        """Return the most earlier intervals that the run exports again.

        That is 0 in a backfill: each of its runs has an interval of its own.
        """
        most = required_number(self.late_intervals, "late_intervals")
        return 0 if is_backfill(context) else most

    def _times(self, context: Context) -> tuple[int, int]:
        from tiered_storage.remote_log.restore.request import parse_time

        begin, end = parse_time("from_time", self.from_time), parse_time("to_time", self.to_time)
        if (begin is None) != (end is None):
            raise AirflowFailException("from_time and to_time go together: give both, or neither")
        interval = data_interval(context) if begin is None or end is None else (begin, end)
        if interval is None:
            raise AirflowFailException(
                "the run has no data interval, as one that was triggered without a logical date: fill in from_time and "
                "to_time"
            )
        return interval


class PlanExportOperator(_ExportOperator, PlanningOperator):
    """Show which records of a topic an export would read; a dry run, or no topic, skips the tasks right after it.

    :param from_time: the earliest time of records; empty: the run's data interval
    :param isolation: read_committed or read_uncommitted
    :param codec: the files' codec: zstd, snappy, lz4, gzip or none
    :param max_disorder_minutes: by how much a record may be earlier than the first one of its batch
    :param late_intervals: the most earlier intervals to export again because more was copied since
    :param dry_run: only show the plan
    """

    template_fields: Sequence[str] = (*PlanningOperator.template_fields, *_FIELDS)

    def execute(self, context: Context) -> None:
        """Read the metadata, earlier exports, and small parts of the store for times and transactions."""
        from tiered_storage.remote_log.tables.late_data import LateIntervals

        if not self.topic:
            self.log.info("no topic is named, neither by the form nor by a Variable: nothing is exported")
            self.skip_next_tasks(context)
            return
        with self.opened_to_read(context) as remote_log:
            request = self.request(remote_log, context)
            plan = remote_log.tables.plan(request.table_query)
            show_plan(plan, request, self.log)
            if not request.allow_gaps:
                plan.ensure_no_gaps()
            ranges = list(plan.ranges())
            most = self.most_late(context)
            late = remote_log.tables.late_intervals(request, plan) if most else LateIntervals()
            show_late(late, most, self.log)
            summarize(
                remote_log, context, self.log, partitions=len(plan.partitions), segments=len(ranges),
                bytes=sum(each.size for each in ranges), interval=request.interval.folder,
                **planned_figures(late, most),
            )  # fmt: skip
        if self.is_dry_run:
            self.skip_next_tasks(context)


class ExportTopicOperator(_ExportOperator, SparkGroupsOperator):
    """Export an interval of a topic to Parquet below export.url, with one Spark job unless it is small.

    Workers write under temporary names. At the end the task renames all files or none, under a lease of its own. A
    second run over the same records changes nothing. Records that cannot be decoded go to the interval's dead letters:
    the run reports how many, and succeeds. Takes the parameters of PlanExportOperator.
    """

    template_fields: Sequence[str] = (*SparkGroupsOperator.template_fields, *_FIELDS)

    def execute(self, context: Context) -> str:  # type: ignore[override]
        """Export; return the place of the interval's folder."""
        with self.opened_to_read(context) as remote_log:
            request = self.request(remote_log, context)
            most = self.most_late(context)
            done = self._export(context, remote_log, request, _folder(context))
            self._report_done(remote_log, context, done)
            # A task that is ending has no time for late intervals: later runs export them.
            if not most or self.is_ending:
                return done.report.place
            late = LateExports(remote_log.tables.late_intervals(request, done.plan))
            show_late(late.found, most, self.log)
            self._export_late(context, remote_log, late, most)
            self._report_done(remote_log, context, done, late)
            if late.error is not None:
                raise late.error
        return done.report.place

    def _export(
        self, context: Context, remote_log: RemoteLogManager, request: ExportRequest, folder: str
    ) -> DoneExport:
        with remote_log.tables.export(request, task_lease_owner(context)) as begun:
            show_plan(begun.plan, request, self.log)
            job = begun.write_job(folder)
            self._run(context, remote_log, begun, job)
            outcomes = list(job.outcomes())
            report = begun.commit(outcomes)
        broken = tuple(each for outcome in outcomes for each in outcome.broken)
        show_dead_letters(broken, self.log)
        fail_for(report.failures, report.place)
        show_report(report, self.log)
        return DoneExport(request.interval, begun.plan, report, broken)

    def _export_late(self, context: Context, remote_log: RemoteLogManager, late: LateExports, most: int) -> None:
        """Export `most` of the earlier intervals again, with at most LATE_TRIES times as many tries.

        If an interval cannot be exported, it is logged and left to later runs; `late.error` keeps why until the run's
        end. A task that is ending begins no further one.
        """
        from tiered_storage.errors import LeaseHeldError, TieredStorageError

        for number, request in enumerate(late.found.due[: LATE_TRIES * most]):
            if len(late.done) == most or self.is_ending:
                break
            folder = f"{_folder(context)}/late-{number}"
            try:
                late.done.append(self._export(context, remote_log, request, folder))
            except (TieredStorageError, AirflowException) as error:
                self.log.warning("%s was not exported again: %s", request.interval.folder, error)
                if late.error is None and is_retriable(error) and not isinstance(error, LeaseHeldError):
                    late.error = error

    def _run(self, context: Context, remote_log: RemoteLogManager, begun: BegunExport, job: ExportJob) -> None:
        size = job.size_of(begun.tasks)
        if size.bytes < EXPORT_HERE_BYTES:
            self._run_here(remote_log, job, size.pieces, size.bytes)
            return

        def has_results() -> bool:
            return any(outcome.failure is None for outcome in job.outcomes())

        with self.watch(remote_log, job.files, size) as watch:
            self.submit(context, remote_log, job.files, EXPORT_JOB, watch, has_results)
        self.log.info("in total: %s", watch.progress)

    def _run_here(self, remote_log: RemoteLogManager, job: ExportJob, pieces: int, size: int) -> None:
        from contextlib import closing

        from tiered_storage.remote_log.jobs.throttle import QuotaLimit
        from tiered_storage.remote_log.progress import Amount, TaskProgress
        from tiered_storage.remote_log.storage.clients.opening import open_object_client
        from tiered_storage.remote_log.tables.export_job import ExportJobDescription

        progress = TaskProgress("exported", Amount(pieces, size), self.log.info)
        description = job.files.description(ExportJobDescription)
        limit = QuotaLimit(description.quota)
        with closing(open_object_client(description.export_url, remote_log.context.options)) as target:
            for number in range(job.groups):
                job.run_group(number, remote_log.context.storage, target, description, progress, limit)
        progress.conclude()

    def _report_done(
        self, remote_log: RemoteLogManager, context: Context, done: DoneExport, late: LateExports | None = None
    ) -> None:
        from tiered_storage.remote_log.tables.reading import BrokenBytes

        report = done.report
        every = [done] if late is None else [done, *late.done]
        broken = [each for one in every for each in one.broken]
        keep_done(remote_log, context, "dead-letters", broken, BrokenBytes)
        summarize(
            remote_log, context, self.log, into=report.place, files=report.files, records=report.rows,
            bytes=report.size, dead_letters=report.dead_letters, partitions_not_reached=len(report.not_reached),
            changed="yes" if report.changed else "no", kept=report.kept or "no",
            **({} if late is None else late.figures()),
        )  # fmt: skip


def _folder(context: Context) -> str:
    # One level below a copy's files: page.segment_page looks for a segment's copy in the less deep folders first.
    return f"runs/{task_folder(context)}/{context['ti'].try_number}/export"
