"""The copy of many segments as a job in groups (jobs/groups.py) that can run in parallel.

Its folder holds:

    job.json                 CopyJobDescription
    tasks-{group}.jsonl      CopyTask lines
    begun-{group}-{id}       empty: a worker has begun the group
    result-{group}.jsonl     CopyOutcome lines
    progress-{group}.jsonl   how far the group is (jobs/progress.py)
    commit-{batch}.jsonl     the outcomes of a batch of partitions, for one commit
    committed-{batch}.jsonl  what that commit made visible: RemoteLogSegmentMetadata lines
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import closing, suppress
from dataclasses import dataclass, field
from itertools import groupby, islice
from typing import Self

from tiered_storage.clock import Clock, wall_clock
from tiered_storage.kafka_log.producers.producer_history import ProducerHistory
from tiered_storage.remote_log.copy.copier import CopySizes, copy_segment
from tiered_storage.remote_log.copy.segment_roller import SegmentRoller, left_out
from tiered_storage.remote_log.copy.tasks import CopyOutcome, CopyTask
from tiered_storage.remote_log.jobs.groups import GroupResults, JobDescription, JobFailure, JobFolder, grouped
from tiered_storage.remote_log.jobs.progress import PROGRESS_SECONDS, JobSize, ProgressLog
from tiered_storage.remote_log.jobs.throttle import QuotaLimit, copy_quota
from tiered_storage.remote_log.jobs.work_area import WorkArea
from tiered_storage.remote_log.jobs.worker import JobAccess, opened_job
from tiered_storage.remote_log.model import TopicIdPartition
from tiered_storage.remote_log.storage.remote_storage_manager import RemoteStorageManager
from tiered_storage.settings.settings import Settings

_log = logging.getLogger(__name__)

NO_LIMIT = QuotaLimit()
NO_ACCESS: Mapping[str, str] = {}
COPIES_AT_ONCE = 2
"""Copies that a worker makes at once: while one waits for the disk or the store, the other is read and checked."""
LEAST_PRIORITY = 19
"""A value for `nice`: the higher, the lower the priority."""


@dataclass(frozen=True, slots=True)
class CopyJobDescription(JobDescription):
    """What a worker needs besides its tasks: the sizes of a copy."""

    sizes: CopySizes


@dataclass(frozen=True, slots=True)
class CopyJob:
    """One try of a copy run, in its folder."""

    files: JobFolder
    groups: int

    @classmethod
    def write(
        cls,
        work: WorkArea,
        folder: str,
        tasks: Sequence[CopyTask],
        settings: Settings,
    ) -> Self:
        """Lay the job out in the work area."""
        files = JobFolder.of(work, folder)
        groups = list(copy_groups(tasks))
        for number, group in enumerate(groups):
            files.write_tasks(number, group, CopyTask)
        sizes = CopySizes(
            settings.copy_window_bytes,
            settings.index_interval_bytes,
            settings.remote_log_index_chunk_bytes,
            settings.remote_log_metadata_custom_metadata_max_bytes,
        )
        group_bytes = tuple(sum(task.size for task in group) for group in groups)
        files.describe(CopyJobDescription(len(groups), sizes, quota=copy_quota(settings), group_bytes=group_bytes))
        return cls(files, len(groups))

    @classmethod
    def read(cls, work: WorkArea, folder: str) -> tuple[Self, CopyJobDescription]:
        """Return the job that `write` laid out, and what its workers need."""
        files = JobFolder.of(work, folder)
        description = files.description(CopyJobDescription)
        return cls(files, description.groups), description

    def run_group(
        self,
        number: int,
        storage: RemoteStorageManager,
        sizes: CopySizes,
        clock: Clock,
        progress_seconds: float = PROGRESS_SECONDS,
        limit: QuotaLimit = NO_LIMIT,
        access: Mapping[str, str] = NO_ACCESS,
    ) -> int:
        """Copy the segments of one group, in order and within `limit`; return how many succeeded.

        `access` is the way to the source, see SegmentSource.

        After a failure it skips the rest of that partition: readers must never find a gap. It reports its progress
        every `progress_seconds`. It copies nothing of a group that another worker began: Spark may have lost that
        worker while it still writes objects, and two attempts must not write the same object.
        """
        tasks = self.files.tasks(number, CopyTask)
        if not self.files.claim(number, tasks[0].metadata.segment_id.id):
            _log.warning(
                "%s: another worker began group %d and may still be copying it, so this one skips it: the next run "
                "copies what is left, under new segment ids",
                self.files.folder,
                number,
            )
            return 0
        results = GroupResults(self.files, number, CopyOutcome)
        sizes = sizes.within(limit.bytes_per_second)
        history, received = ProducerHistory(), limit.another()
        copied = 0
        with ProgressLog(self.files, number, progress_seconds) as progress:

            def fetched(size: int) -> None:
                # A segment is fetched whole before its first byte is sent, so the limit on sending would not spare the
                # brokers.
                progress.fetched(size)
                received.spend(size)

            def copy(task: CopyTask) -> CopyOutcome:
                return copy_segment(task, storage, sizes, clock, history, progress.moved, limit)

            with closing(SegmentRoller(tasks, access, storage, clock, fetched, sizes.window)) as roller:
                for outcome in _copied(tasks, lambda task: roller.copy(task, copy), limit):
                    results.add(outcome)
                    progress.ended()
                    copied += outcome.failure is None
                results.write()
        return copied

    def size_of(self, tasks: Sequence[CopyTask]) -> JobSize:
        """Return the size of the work for `tasks`, those of this job."""
        return JobSize(self.groups, len(tasks), sum(task.size for task in tasks))

    def outcomes(self, ended: JobFailure | None = None) -> Iterator[CopyOutcome]:
        """Yield how every task ended; one without a result ended with its worker, or by the failure `ended`.

        Skips results of other tasks: an earlier attempt in the same folder wrote them.
        """
        for number in range(self.groups):
            tasks = {task.metadata.segment_id: task for task in self.files.tasks(number, CopyTask)}
            for outcome in self.files.results(number, CopyOutcome):
                if tasks.get(outcome.task.metadata.segment_id) == outcome.task:
                    del tasks[outcome.task.metadata.segment_id]
                    yield outcome
            for task in tasks.values():
                yield CopyOutcome(task, None, ended)

    def write_batches(
        self, work: WorkArea, partitions_a_batch: int, ended: JobFailure | None = None
    ) -> list[dict[str, str]]:
        """Sort all outcomes into batches of whole partitions; return the name and paths of each.

        `path` has the batch's outcomes, `committed` is the path for its commit. The outcomes go to `work`, the work
        area of all runs: no worker can sign what is committed. `ended` is the failure of tasks without a result, if
        known.
        """
        by_partition = sorted(self.outcomes(ended), key=_partition_of_outcome)
        partitions = [list(group) for _, group in groupby(by_partition, _partition_of_outcome)]
        batches: list[dict[str, str]] = []
        for first in range(0, len(partitions), partitions_a_batch):
            chosen = partitions[first : first + partitions_a_batch]
            path = self.files.path("commit", len(batches))
            work.write(path, [outcome for partition in chosen for outcome in partition], CopyOutcome)
            committed = self.files.path("committed", len(batches))
            batches.append({"name": _batch_name(chosen), "path": path, "committed": committed})
        return batches


def copy_groups(tasks: Iterable[CopyTask]) -> Iterator[list[CopyTask]]:
    """Yield `tasks` in groups of whole partitions, the segments of each by their offsets."""
    ordered = sorted(tasks, key=lambda task: (task.metadata.topic_id_partition, task.metadata.start_offset))
    return grouped(ordered, _partition_of, lambda task: task.size)


def _copied(
    tasks: Iterable[CopyTask], copy: Callable[[CopyTask], CopyOutcome], limit: QuotaLimit
) -> Iterator[CopyOutcome]:
    """Yield how each of `tasks` ended, each partition's in order, with COPIES_AT_ONCE under way.

    If `limit` limits them, copies run at the lowest priority on this machine.

    A copy that hangs takes one of these places and holds up only its own partition. A copy that raises ends all, after
    the copies under way have ended.
    """
    lanes = (_Lane(deque(of_partition)) for _, of_partition in groupby(tasks, _partition_of))
    entered: list[_Lane] = []
    busy: set[Future[CopyOutcome]] = set()
    broken: list[Future[CopyOutcome]] = []

    def free_lane() -> _Lane | None:
        for lane in entered:
            if lane.can_begin:
                return lane
        entered.extend(islice(lanes, 1))
        return entered[-1] if entered and entered[-1].can_begin else None

    begin = None if limit.is_unlimited else _lower_priority
    with ThreadPoolExecutor(COPIES_AT_ONCE, initializer=begin) as pool:
        while True:
            while not broken and len(busy) < COPIES_AT_ONCE and (lane := free_lane()) is not None:
                busy.add(lane.begin(pool, copy))
            if not busy:
                break
            done, busy = wait(busy, return_when=FIRST_COMPLETED)
            broken += [copying for copying in done if copying.exception() is not None]
            for lane in entered:
                yield from lane.ended()
            entered = [lane for lane in entered if not lane.is_over]
    for copying in broken:
        copying.result()


def _lower_priority() -> None:
    """Give this thread the least priority on its processors: a broker may run beside it."""
    # Where this is forbidden, a copy takes its turn as others do.
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LEAST_PRIORITY)


@dataclass(slots=True)
class _Lane:
    """One partition's tasks, waiting and under way, each in order."""

    waiting: deque[CopyTask]
    under_way: deque[tuple[CopyTask, Future[CopyOutcome]]] = field(default_factory=deque)
    failure: JobFailure | None = None

    @property
    def can_begin(self) -> bool:
        """Whether another copy may begin: no copy failed, and fewer than COPIES_AT_ONCE are under way."""
        return self.failure is None and bool(self.waiting) and len(self.under_way) < COPIES_AT_ONCE

    @property
    def is_over(self) -> bool:
        return not self.waiting and not self.under_way

    def begin(self, pool: ThreadPoolExecutor, copy: Callable[[CopyTask], CopyOutcome]) -> Future[CopyOutcome]:
        """Begin the next copy."""
        task = self.waiting.popleft()
        copying = pool.submit(copy, task)
        self.under_way.append((task, copying))
        return copying

    def ended(self) -> Iterator[CopyOutcome]:
        """Yield the outcomes of copies that ended since, in order; after a failure every later one counts as failed."""
        while self.under_way and self.under_way[0][1].done() and self.under_way[0][1].exception() is None:
            task, copying = self.under_way.popleft()
            outcome = copying.result()
            if self.failure is None:
                self.failure = outcome.failure
                yield outcome
            else:
                yield CopyOutcome(task, None, left_out(self.failure))
        if self.failure is not None and not self.under_way:
            while self.waiting:
                yield CopyOutcome(self.waiting.popleft(), None, left_out(self.failure))


def _partition_of(task: CopyTask) -> TopicIdPartition:
    return task.metadata.topic_id_partition


def _partition_of_outcome(outcome: CopyOutcome) -> TopicIdPartition:
    return _partition_of(outcome.task)


def _batch_name(partitions: Sequence[Sequence[CopyOutcome]]) -> str:
    first, last = (str(_partition_of_outcome(outcomes[0])) for outcomes in (partitions[0], partitions[-1]))
    return first if len(partitions) == 1 else f"{first} to {last} ({len(partitions)} partitions)"


def run_copy_groups(access: JobAccess, numbers: Sequence[int], clock: Clock = wall_clock) -> int:
    """Copy the segments of the groups `numbers` of a job, as one of its workers; return how many succeeded."""
    with opened_job(access, CopyJobDescription) as opened:
        job = CopyJob(opened.folder, opened.description.groups)
        limit = QuotaLimit(opened.description.share(numbers))
        sizes = opened.description.sizes
        way = access.secrets.source_access
        return sum(job.run_group(each, opened.storage, sizes, clock, limit=limit, access=way) for each in numbers)
