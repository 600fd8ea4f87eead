"""The results of an export run, of its own and of earlier intervals: what it logs, and when it fails."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowException, AirflowFailException

if TYPE_CHECKING:
    from tiered_storage.errors import TieredStorageError
    from tiered_storage.remote_log.tables.export_job import ExportOutcome, ExportRequest
    from tiered_storage.remote_log.tables.exports import ExportReport
    from tiered_storage.remote_log.tables.late_data import LateIntervals
    from tiered_storage.remote_log.tables.layout import Interval
    from tiered_storage.remote_log.tables.planning import TablePlan
    from tiered_storage.remote_log.tables.reading import BrokenBytes
    from tiered_storage_airflow.runs.summary import Figure


@dataclass(frozen=True, slots=True)
class DoneExport:
    """One exported interval, and its records that could not be decoded."""

    interval: Interval
    plan: TablePlan
    report: ExportReport
    broken: tuple[BrokenBytes, ...]


@dataclass(slots=True)
class LateExports:
    """The earlier intervals that may lack records, and those that a run exported again."""

    found: LateIntervals
    done: list[DoneExport] = field(default_factory=list)
    error: TieredStorageError | AirflowException | None = None
    """Why the task must fail at its end; a retry may succeed."""

    def figures(self) -> dict[str, Figure]:
        """Return the figures for a run's summary."""
        not_reached = sum(bool(each.report.not_reached) for each in self.done)
        return {
            "late_intervals": [each.interval.folder for each in self.done],
            "late_intervals_left": len(self.found.due) - len(self.done),
            "intervals_incomplete": len(self.found.incomplete) + not_reached,
        }


def planned_figures(found: LateIntervals, most: int) -> dict[str, Figure]:
    """Return the figures of a run that would export `most` of the found intervals again."""
    return {
        "late_intervals": [each.interval.folder for each in found.due[:most]],
        "late_intervals_left": len(found.due[most:]),
        "intervals_incomplete": len(found.incomplete),
    }


def is_retriable(error: TieredStorageError | AirflowException) -> bool:
    """Return whether a retry may succeed."""
    if isinstance(error, AirflowException):
        return not isinstance(error, AirflowFailException)
    return error.retriable


MOST_SHOWN = 20
"""The most entries in a message; the run's report has all of them."""


def show_plan(plan: TablePlan, request: ExportRequest, log: Any) -> None:
    """Log what the export reads of each partition."""
    for notice in plan.notices:
        log.warning("%s: %s", notice.partition, notice.message)
    for each in plan.partitions:
        reached = "" if each.has_all(request.table_query.rows) else "; no records after the interval are copied yet"
        log.info(
            "%s: offsets %d to %d are copied; the export reads %d ranges with %d bytes of them%s",
            each.topic_id_partition, each.log_start_offset, each.log_end_offset - 1, len(each.ranges),
            sum(part.size for part in each.ranges), reached,
        )  # fmt: skip
        if request.allow_gaps:
            for first, last in each.gaps:
                log.warning("%s: offsets %d to %d are missing", each.topic_id_partition, first, last)


def show_late(late: LateIntervals, most: int, log: Any) -> None:
    """Log the earlier intervals to export again, at most `most`, and why the others that may lack records stay."""
    for each in late.due[: min(most, MOST_SHOWN)]:
        log.info("%s is exported again: more of its records are copied now", each.interval.folder)
    if len(late.due) > most:
        log.warning("%d more late intervals are left to later runs", len(late.due) - most)
    for left_out in late.incomplete[:MOST_SHOWN]:
        log.info("%s may lack records, and stays as it is: %s", left_out.interval.folder, left_out.reason)


def show_report(report: ExportReport, log: Any) -> None:
    """Log if an export kept the earlier files, changed nothing, or may lack records that are not copied yet."""
    if report.kept is not None:
        log.warning("%s stays as it was exported earlier: %s", report.place, report.kept)
    elif not report.changed:
        log.info("%s already has exactly these files: nothing was changed", report.place)
    if report.not_reached:
        log.warning(
            "no records after the interval are copied yet of partitions %s: a later run of any interval, or another "
            "run of this one, exports what is copied later",
            ", ".join(map(str, report.not_reached)),
        )


def show_dead_letters(broken: Sequence[BrokenBytes], log: Any) -> None:
    """Warn of records that could not be decoded."""
    for each in broken[:MOST_SHOWN]:
        log.warning(
            "dead letter: %s, bytes %d to %d (offsets %d to %d): %s",
            each.object, each.position, each.position + each.size - 1, each.first_offset, each.last_offset,
            each.reason,
        )  # fmt: skip


def fail_for(failures: Sequence[ExportOutcome], place: str) -> None:
    """Fail if a block could not be exported: without a retry if no retry can help.

    A missing segment may have expired since it was planned; the retry plans again.
    """
    from tiered_storage.errors import RemoteObjectNotFoundError

    if not failures:
        return
    reasons = "; ".join(
        f"partition {each.partition} from offset {each.block} on: {each.failure.message}"
        for each in failures[:MOST_SHOWN]
        if each.failure is not None
    )
    message = f"{len(failures)} blocks were not exported, and {place} is unchanged: {reasons}"
    found = [each.failure for each in failures if each.failure is not None]
    if all(each.retriable or each.error == RemoteObjectNotFoundError.__name__ for each in found):
        raise AirflowException(message)
    raise AirflowFailException(message)
