"""What came of a run's exports: of its own interval, and of earlier ones of which more had been copied."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow.sdk.exceptions import AirflowException, AirflowFailException

if TYPE_CHECKING:
    from tiered_storage.errors import TieredStorageError
    from tiered_storage.remote_log.tables.exports import ExportReport
    from tiered_storage.remote_log.tables.late_data import GivenUpInterval, LateInterval, LateIntervals
    from tiered_storage.remote_log.tables.layout import Interval
    from tiered_storage.remote_log.tables.planning import TablePlan
    from tiered_storage.remote_log.tables.reading import BrokenBytes
    from tiered_storage_airflow.run_summary import Figure


@dataclass(frozen=True, slots=True)
class DoneExport:
    """One interval that was exported, and what of it could not be decoded."""

    interval: Interval
    plan: TablePlan
    report: ExportReport
    broken: tuple[BrokenBytes, ...]


@dataclass(slots=True)
class LateExports:
    """The earlier intervals that are not whole, which of them were exported again, and which cannot be."""

    found: LateIntervals
    done: list[DoneExport] = field(default_factory=list)
    given_up: list[GivenUpInterval] = field(default_factory=list)
    error: TieredStorageError | AirflowException | None = None

    def fail(self, error: TieredStorageError | AirflowException) -> None:
        """Keep why the task has to fail in the end; what another try may mend goes before what none can."""
        if self.error is None or (_is_retriable(error) and not _is_retriable(self.error)):
            self.error = error

    @property
    def left(self) -> list[LateInterval]:
        """Those that are still to be exported again: by another try, or by the runs to come."""
        over = {*(each.interval for each in self.done), *(each.interval for each in self.given_up)}
        return [each for each in self.found.due if each.interval not in over]

    def figures(self) -> dict[str, Figure]:
        """Return what a run's summary says of them."""
        waiting = len(self.found.waiting) + sum(bool(each.report.not_reached) for each in self.done)
        return {
            "late_intervals": [each.interval.folder for each in self.done],
            "late_intervals_left": len(self.left),
            "intervals_waiting": waiting,
            "intervals_given_up": len(self.found.given_up) + len(self.given_up),
        }


def planned_figures(found: LateIntervals, most: int) -> dict[str, Figure]:
    """Return the same figures of what would be exported again, of `most` intervals."""
    return {
        "late_intervals": [each.interval.folder for each in found.due[:most]],
        "late_intervals_left": len(found.due[most:]),
        "intervals_waiting": len(found.waiting),
        "intervals_given_up": len(found.given_up),
    }


def is_for_good(error: TieredStorageError | AirflowException) -> bool:
    """Whether no further try exports that interval: a gap, a refusal, a block that cannot be read.

    Not so of what is wrong with the store or the metadata altogether, or with this try: that fails the task.
    """
    from tiered_storage.errors import RemoteMetadataError, RemoteStorageRefusedError

    return not _is_retriable(error) and not isinstance(error, (RemoteMetadataError, RemoteStorageRefusedError))


def _is_retriable(error: TieredStorageError | AirflowException) -> bool:
    if isinstance(error, AirflowException):
        return not isinstance(error, AirflowFailException)
    return error.retriable
