"""Operators that give topics as tables: the plan of an export to Parquet, and the export, by Spark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator, SkipMixin
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from tiered_storage_airflow.operators.remote_log_operator import RemoteLogOperator
from tiered_storage_airflow.operators.spark_groups import SPARK_JOBS, SparkGroupsOperator
from tiered_storage_airflow.run_scope import is_switched_on
from tiered_storage_airflow.run_summary import keep_done, summarize
from tiered_storage_airflow.run_time import data_interval, lease_owner, run_folder

if TYPE_CHECKING:
    from airflow.sdk import Context

    from tiered_storage.remote_log.remote_log_manager import RemoteLogManager
    from tiered_storage.remote_log.remote_log_tables import BegunExport, ExportReport, ExportRequest
    from tiered_storage.remote_log.tables.export_job import ExportJob, ExportOutcome
    from tiered_storage.remote_log.tables.planning import TablePlan

EXPORT_JOB = SPARK_JOBS / "export_parquet.py"
EXPORT_HERE_BYTES = 256 << 20
"""Less is exported in the task sooner than Spark starts."""
MOST_SHOWN = 20
"""So many fit into a message; the run's report has them all."""

_FIELDS = (
    "topic", "topic_id", "partitions", "from_time", "to_time", "isolation", "codec", "max_disorder_minutes",
    "allow_gaps",
)  # fmt: skip


class _Asked(BaseOperator):
    """What both operators are asked for; all may be text, as a form's templates give it."""

    def __init__(
        self,
        *,
        topic: str = "",
        topic_id: str = "",
        partitions: str | None = None,
        from_time: str | None = None,
        to_time: str | None = None,
        isolation: str = "read_committed",
        codec: str = "zstd",
        max_disorder_minutes: int | str = 60,
        allow_gaps: bool | str = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.topic = topic
        self.topic_id = topic_id
        self.partitions = partitions
        self.from_time = from_time
        self.to_time = to_time
        self.isolation = isolation
        self.codec = codec
        self.max_disorder_minutes = max_disorder_minutes
        self.allow_gaps = allow_gaps

    def request(self, remote_log: RemoteLogManager, context: Context) -> ExportRequest:
        """Return the export that is meant. Fails where it is not said of which time."""
        from tiered_storage.remote_log.remote_log_tables import ExportRequest
        from tiered_storage.remote_log.selection import parse_partitions
        from tiered_storage.remote_log.tables.layout import Interval
        from tiered_storage.remote_log.tables.query import RowFilter, TableQuery

        if self.isolation not in {"read_committed", "read_uncommitted"}:
            raise AirflowFailException(f"isolation is {self.isolation!r}: read_committed or read_uncommitted")
        rows = RowFilter(
            committed_only=self.isolation == "read_committed",
            disorder_ms=60_000 * _minutes(self.max_disorder_minutes),
        )
        query = TableQuery(self.topic, self.topic_id or None, parse_partitions(self.partitions or None), rows=rows)
        return ExportRequest(
            query,
            Interval(*self._times(context)),
            remote_log.settings.export_url,
            self.codec,
            allow_gaps=is_switched_on(self.allow_gaps, "allow_gaps"),
        )

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


class PlanExportOperator(_Asked, RemoteLogOperator, SkipMixin):
    """Show what of a topic an export would read; a dry run, or no topic, skips everything behind it.

    :param topic: the topic's name
    :param topic_id: which life of it, where it had several
    :param partitions: numbers of partitions, such as 0,2-4; empty: all
    :param from_time: the earliest time of records (ISO 8601, or ms); empty: the run's data interval
    :param to_time: the end (exclusive)
    :param isolation: read_committed or read_uncommitted
    :param codec: of the files: zstd, snappy, lz4, gzip or none
    :param max_disorder_minutes: by how much a record may be earlier than the first one of its batch
    :param allow_gaps: export what is there though offsets are missing between
    :param dry_run: only show the plan
    """

    template_fields: Sequence[str] = (*RemoteLogOperator.template_fields, *_FIELDS, "is_dry_run")

    def __init__(self, *, dry_run: bool | str = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.is_dry_run = dry_run

    def execute(self, context: Context) -> None:
        """Look at the metadata, and for times and transactions at small parts of the store."""
        only_show = is_switched_on(self.is_dry_run, "dry_run")
        if not self.topic:
            self.log.info("no topic is named, neither by the form nor by a Variable: nothing is exported")
            self.skip(ti=context["ti"], tasks=self.get_flat_relatives(upstream=False))
            return
        with self.opened() as remote_log:
            request = self.request(remote_log, context)
            plan = remote_log.tables.plan(request.table_query)
            _show(plan, request, self.log)
            if not request.allow_gaps:
                plan.ensure_no_gaps()
            ranges = list(plan.ranges())
            summarize(
                remote_log, context, self.log, partitions=len(plan.partitions), segments=len(ranges),
                bytes=sum(each.size for each in ranges), interval=request.interval.folder,
            )  # fmt: skip
        if only_show:
            self.skip(ti=context["ti"], tasks=self.get_flat_relatives(upstream=False))


class ExportTopicOperator(_Asked, SparkGroupsOperator):
    """Export an interval of a topic to Parquet below export.url, with one Spark job unless it is little.

    Workers write under temporary names; the task gives all files their names at the end, under a lease of its own, or
    none. A second run over the same records changes nothing. What cannot be decoded goes to the interval's dead
    letters: the run tells how much, and is green. Takes what PlanExportOperator does.
    """

    template_fields: Sequence[str] = (*SparkGroupsOperator.template_fields, *_FIELDS)

    def execute(self, context: Context) -> str:  # type: ignore[override]
        """Export; returns the place of the interval's folder."""
        from tiered_storage.remote_log.tables.reading import BrokenBytes

        folder = f"runs/{run_folder(context)}/{context['ti'].try_number}"
        with self.opened() as remote_log:
            request = self.request(remote_log, context)
            with remote_log.tables.export(request, lease_owner(context)) as begun:
                _show(begun.plan, request, self.log)
                job = begun.write_job(folder)
                self._run(context, remote_log, begun, job)
                outcomes = list(job.outcomes())
                report = begun.commit(outcomes)
            broken = [each for outcome in outcomes for each in outcome.broken]
            keep_done(remote_log, context, "dead-letters", broken, BrokenBytes)
            for each in broken[:MOST_SHOWN]:
                self.log.warning(
                    "dead letter: %s, bytes %d to %d (offsets %d to %d): %s",
                    each.object, each.position, each.position + each.size - 1, each.first_offset, each.last_offset,
                    each.reason,
                )  # fmt: skip
            _fail_for(report.failures, report.place)
            self._tell(remote_log, context, report)
        return report.place

    def _run(self, context: Context, remote_log: RemoteLogManager, begun: BegunExport, job: ExportJob) -> None:
        size = job.size_of(begun.tasks)
        if size.bytes < EXPORT_HERE_BYTES:
            self._run_here(remote_log, job, size.pieces, size.bytes)
            return

        def has_results() -> bool:
            return any(outcome.failure is None for outcome in job.outcomes())

        with self.watch(remote_log, job.files, size) as watch:
            self.submit(context, remote_log, job.files, EXPORT_JOB, watch, has_results)
        self.log.info("in the end: %s", watch.progress)

    def _run_here(self, remote_log: RemoteLogManager, job: ExportJob, pieces: int, size: int) -> None:
        from contextlib import closing

        from tiered_storage.remote_log.storage.opening import open_object_client
        from tiered_storage.remote_log.tables.export_job import ExportJobDescription
        from tiered_storage.remote_log.task_progress import Amount, TaskProgress

        progress = TaskProgress("exported", Amount(pieces, size), self.log.info)
        description = job.files.description(ExportJobDescription)
        with closing(open_object_client(description.export_url, remote_log.options)) as target:
            for number in range(job.groups):
                job.run_group(number, remote_log.storage, target, description, progress)
        progress.conclude()

    def _tell(self, remote_log: RemoteLogManager, context: Context, report: ExportReport) -> None:
        if report.kept is not None:
            self.log.warning("%s stays as it was exported before: %s", report.place, report.kept)
        elif not report.changed:
            self.log.info("%s has these very files already: nothing was changed", report.place)
        if report.not_reached:
            self.log.warning(
                "what is copied of partitions %s ends before the interval does: what is copied later is exported by "
                "another run over the same interval",
                ", ".join(map(str, report.not_reached)),
            )
        summarize(
            remote_log, context, self.log, into=report.place, files=report.files, records=report.rows,
            bytes=report.size, dead_letters=report.dead_letters, partitions_not_reached=len(report.not_reached),
            changed="yes" if report.changed else "no", kept=report.kept or "no",
        )  # fmt: skip


def _show(plan: TablePlan, request: ExportRequest, log: Any) -> None:
    for notice in plan.notices:
        log.warning("%s: %s", notice.partition, notice.message)
    for each in plan.partitions:
        reached = "" if each.reaches(request.interval.end) else "; that ends before the interval does"
        log.info(
            "%s: copied are offsets %d to %d; of these %d ranges with %d bytes are read%s",
            each.topic_id_partition, each.log_start_offset, each.log_end_offset - 1, len(each.ranges),
            sum(part.size for part in each.ranges), reached,
        )  # fmt: skip
        if request.allow_gaps:
            for first, last in each.gaps:
                log.warning("%s: offsets %d to %d are missing", each.topic_id_partition, first, last)


def _fail_for(failures: Sequence[ExportOutcome], place: str) -> None:
    """Fail where a block could not be exported: for good where no further try can mend that.

    What is not there may have expired since it was planned; the next try plans anew.
    """
    from tiered_storage.errors import RemoteObjectNotFoundError

    if not failures:
        return
    told = "; ".join(
        f"partition {each.partition} from offset {each.block} on: {each.failure.message}"
        for each in failures[:MOST_SHOWN]
        if each.failure is not None
    )
    message = f"{len(failures)} blocks were not exported, and {place} is as it was: {told}"
    found = [each.failure for each in failures if each.failure is not None]
    if all(each.retriable or each.error == RemoteObjectNotFoundError.__name__ for each in found):
        raise AirflowException(message)
    raise AirflowFailException(message)


def _minutes(value: int | str) -> int:
    text = str(value).strip()
    if not (text.isascii() and text.isdigit()):
        raise AirflowFailException(f"max_disorder_minutes is {value!r}, and can only be a whole number")
    return int(text)
