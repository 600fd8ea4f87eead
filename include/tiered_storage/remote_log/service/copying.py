"""The copier's tasks: plan, copy and commit what is due of a few partitions.

`copy_in_threads` is a copy run in this process, as commands have it too: the steps of a run from Airflow, with threads
in place of Spark.

A task copies a bounded part of each partition in a run of its own, and is then due again at once. So leases are held
briefly, partitions with a backlog take turns, and a stop waits for little. Partitions do not wait for a run that takes
long: they are due again, for another thread. One whose copy hung is copied alone the next time.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from threading import Event
from typing import Final, TypeAlias

from tiered_storage.errors import MetadataUnavailableError, TieredStorageError
from tiered_storage.kafka_log.files.kafka_uuid import random_uuid
from tiered_storage.remote_log.copy.job import CopyJob
from tiered_storage.remote_log.copy.start import BegunCopy
from tiered_storage.remote_log.copy.tasks import CommitReport, CopyPlan, PlannedSegment
from tiered_storage.remote_log.jobs.groups import GROUP_BYTES, JobFolder, JobThreads
from tiered_storage.remote_log.jobs.progress import JobSize, JobWatch
from tiered_storage.remote_log.jobs.throttle import QuotaLimit, copy_quota
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.model import Lease, TopicIdPartition
from tiered_storage.remote_log.progress import Progress
from tiered_storage.remote_log.service.chosen_partitions import only
from tiered_storage.remote_log.service.pools import Ended, TroubleLog, by_partition
from tiered_storage.remote_log.service.schedule import Outcome, PartitionSchedule, TaskKind

_log = logging.getLogger(__name__)

RUN_BYTES: Final = GROUP_BYTES
"""How many bytes one run copies at most, beyond its first segment."""
FOLDER: Final = "runs/service"
_PROGRESS_SECONDS: Final = 5.0

Watching: TypeAlias = Callable[[JobFolder, JobSize, Callable[[], None]], AbstractContextManager[JobWatch]]
"""Watches a job while it runs; calls its last argument once if no byte moves any more."""


def copy_in_threads(
    remote_log: RemoteLogManager,
    begun: BegunCopy,
    folder: str,
    workers: int,
    watching: Watching,
    *,
    progress_seconds: float,
    limit: QuotaLimit | None = None,
) -> tuple[CommitReport, bool]:
    """Copy and commit in this process, and release the leases; also return whether copies hung.

    The job's files are in `folder` of the work area. `limit` is shared with other runs; None: the run has the quota of
    the settings for itself. The report's failures include what could not be begun. Threads of hung copies still run.
    """
    context, given_up = remote_log.context, Event()
    with remote_log.held(begun, lambda: not given_up.is_set()):
        job = remote_log.write_copy_job(folder, begun)
        _, description = CopyJob.read(context.work, job.files.folder)
        shared = QuotaLimit(description.quota) if limit is None else limit

        def run_group(number: int) -> None:
            storage, clock, access = context.storage, context.clock, context.source.access
            job.run_group(number, storage, description.sizes, clock, progress_seconds, shared, access)

        threads = JobThreads(job.groups, workers, run_group)

        def give_up() -> None:
            given_up.set()
            threads.give_up()

        with watching(job.files, job.size_of(begun.tasks), give_up) as watch:
            threads.run()
        report = remote_log.commit_copy(job.outcomes(watch.stuck))
    return replace(report, failures=(*begun.failed, *report.failures)), watch.stuck is not None


@dataclass(frozen=True, slots=True)
class CopyRun:
    """What one run copies; `cut` are the partitions of which more is due."""

    plan: CopyPlan
    partitions: tuple[TopicIdPartition, ...]
    cut: frozenset[TopicIdPartition]


@dataclass(frozen=True, slots=True)
class _Copied:
    """Why partitions of a run failed, and whether a retry may help soon: not if that is mixed, or a copy hung.

    `noted` is what else a person should know of them.
    """

    failed: dict[TopicIdPartition, list[str]]
    is_retriable: bool
    has_hung: bool = False
    noted: dict[TopicIdPartition, list[str]] = field(default_factory=dict)

    def outcome(self, partition: TopicIdPartition) -> Outcome | None:
        """Return how the partition's task ended; None if it did not fail."""
        if not self.failed[partition]:
            return None
        return Outcome.FAILED if self.is_retriable and not self.has_hung else Outcome.BROKEN


class CopyTasks:
    """Copies for a service, as the lease holder `owner`. Its threads share one quota."""

    def __init__(
        self, remote_log: RemoteLogManager, schedule: PartitionSchedule, owner: str, troubles: TroubleLog
    ) -> None:
        """Copy nothing yet."""
        self._remote_log = remote_log
        self._schedule = schedule
        self._owner = owner
        self._troubles = troubles
        self._limit = QuotaLimit(copy_quota(remote_log.context.settings))
        self._lock = threading.Lock()
        self._held: dict[str, list[Lease]] = {}
        self._free_folders: list[str] = []
        self._suspects: set[TopicIdPartition] = set()
        """Failed in the last run of theirs, which hung."""
        self.hung = 0
        """How many copies hung so far; each may still keep a thread."""

    def __call__(self, partitions: Sequence[TopicIdPartition], ended: Ended) -> None:
        """Copy what is due of `partitions`; see Work."""
        chosen, selection = only(self._remote_log, partitions)
        plan = chosen.plan_copy(selection)
        unreadable = by_partition(partitions, plan.unreadable)
        # Notices of no partition are of what waits: nothing to act on.
        seen = by_partition(partitions, (*plan.troubles, *(each for each in plan.notices if each.partition)))
        runs = deque(copy_runs(plan, self._suspects.copy()))
        for each in set(partitions).difference(*(run.partitions for run in runs)):
            self._troubles.report(TaskKind.COPY, {each: seen[each]})
            ended(each, Outcome.FAILED if unreadable[each] else Outcome.DONE)

        def leave_the_rest() -> None:
            while runs:
                for each in runs.popleft().partitions:
                    ended(each, Outcome.MORE)

        while runs:
            run = runs.popleft()
            wanted = [each for each in run.partitions if self._schedule.is_wanted(each, TaskKind.COPY)]
            for each in set(run.partitions).difference(wanted):
                ended(each, Outcome.DONE)
            if wanted:
                chosen_run = replace(run, plan=_of(run.plan, wanted), partitions=tuple(wanted))
                found = self._copy(chosen_run, leave_the_rest)
                shown = {each: [*seen[each], *found.noted.get(each, ()), *found.failed[each]] for each in wanted}
                self._troubles.report(TaskKind.COPY, shown)
                for each in wanted:
                    more = Outcome.MORE if each in run.cut else Outcome.DONE
                    ended(each, found.outcome(each) or (Outcome.FAILED if unreadable[each] else more))

    def give_back(self) -> None:
        """Release the leases of runs that have not ended, for a process that is about to end."""
        with self._lock:
            held = [lease for leases in self._held.values() for lease in leases]
        if held:
            _log.warning("copies of %s are given up: the next run takes them", _named(held))
            self._remote_log.context.leases.release_many(held)

    def _copy(self, run: CopyRun, on_slow: Callable[[], None]) -> _Copied:
        """Copy one run; return why partitions failed. Calls `on_slow`, from another thread, while it takes long.

        Raises what would fail for all others too.
        """
        try:
            begun = self._remote_log.begin_copy(run.plan, self._owner)
        except MetadataUnavailableError:
            raise
        except TieredStorageError as error:
            return _Copied({each: [str(error)] for each in run.partitions}, error.retriable)
        for finding in begun.left:
            _log.info("%s is left to the next task: %s", finding.partition, finding.reason)
        if not begun.tasks:
            return _Copied(by_partition(run.partitions, begun.failed), is_retriable=True)
        report, has_hung = self._carry_out(begun, on_slow)
        if report.committed:
            size = sum(segment.size for segment in report.committed)
            of = _named(segment.topic_id_partition for segment in report.committed)
            _log.info("copied %d segments, %d bytes, of %s", len(report.committed), size, of)
        failed = by_partition(run.partitions, report.failures)
        with self._lock:
            self._suspects.difference_update(run.partitions)
            if has_hung:
                self._suspects.update(each for each in run.partitions if failed[each])
        noted = by_partition(run.partitions, (*report.damages, *report.notices))
        return _Copied(failed, report.retriable, has_hung, noted)

    def _carry_out(self, begun: BegunCopy, on_slow: Callable[[], None]) -> tuple[CommitReport, bool]:
        """Copy and commit; also return whether copies hung."""
        with self._lock:
            folder = self._free_folders.pop() if self._free_folders else f"{FOLDER}/{random_uuid()}"
            self._held[folder] = begun.leases
        try:
            report, has_hung = copy_in_threads(
                self._remote_log, begun, folder, 1, partial(self._watched, on_slow),
                progress_seconds=_PROGRESS_SECONDS, limit=self._limit,
            )  # fmt: skip
        finally:
            with self._lock:
                del self._held[folder]
        with self._lock:
            self.hung += has_hung
        if not has_hung:
            self._clean_up(folder)
        return report, has_hung

    def _clean_up(self, folder: str) -> None:
        """Remove a run's files: a service would fill the work area. Use the folder again, unless files are left."""
        try:
            self._remote_log.context.work.remove(folder)
        except (TieredStorageError, OSError) as error:
            _log.warning("files of a copy are left in %s of the work area: %s", folder, error)
        else:
            with self._lock:
                self._free_folders.append(folder)

    def _watched(
        self, on_slow: Callable[[], None], files: JobFolder, size: JobSize, give_up: Callable[[], None]
    ) -> JobWatch:
        def report(progress: Progress) -> None:
            _log.info("copied so far: %s", progress)
            on_slow()

        return JobWatch(
            files, size, stuck_after_ms=self._remote_log.context.settings.copy_stuck_after_ms, on_stuck=give_up,
            report=report,
        )  # fmt: skip


def copy_runs(plan: CopyPlan, alone: Collection[TopicIdPartition] = ()) -> Iterator[CopyRun]:
    """Yield the runs that do the first part of `plan`, each of a few partitions and about RUN_BYTES.

    Of a partition's segments only the first RUN_BYTES are taken, and at least one: later ones that a copy rolls have to
    be planned again. Those to copy `alone` come last, each in a run of its own.
    """
    waiting: list[TopicIdPartition] = []
    size = 0
    firsts = {each: _first(segments) for each, segments in plan.by_partition.items()}
    lineages = [each.topic_id_partition for each in plan.lineages if each.topic_id_partition not in firsts]
    cut = frozenset(each for each, first in firsts.items() if len(first) < len(plan.by_partition[each]))
    chosen = replace(plan, segments=tuple(one for first in firsts.values() for one in first))
    for partition in sorted((*lineages, *firsts), key=lambda each: each in alone):
        if waiting and (size >= RUN_BYTES or partition in alone):
            yield CopyRun(_of(chosen, waiting), tuple(waiting), cut)
            waiting, size = [], 0
        waiting.append(partition)
        size += sum(segment.size for segment in firsts.get(partition, ()))
    if waiting:
        yield CopyRun(_of(chosen, waiting), tuple(waiting), cut)


def _first(segments: Sequence[PlannedSegment]) -> list[PlannedSegment]:
    taken, size = list[PlannedSegment](), 0
    for segment in segments:
        if taken and size + segment.size > RUN_BYTES:
            break
        taken.append(segment)
        size += segment.size
    return taken


def _of(plan: CopyPlan, partitions: Sequence[TopicIdPartition]) -> CopyPlan:
    """Return what `plan` has of `partitions`."""
    wanted = set(partitions)
    return CopyPlan(
        tuple(each for each in plan.segments if each.topic_id_partition in wanted),
        lineages=tuple(each for each in plan.lineages if each.topic_id_partition in wanted),
    )


def _named(found: Iterable[Lease | TopicIdPartition]) -> str:
    names = sorted({str(each.topic_id_partition if isinstance(each, Lease) else each) for each in found})
    more = f" and {len(names) - 3} more partitions" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more
