"""The copy of many segments as a job in groups (job_groups.py), for whoever runs groups side by side.

job.json              CopyJobDescription
tasks-{group}.jsonl   CopyTask lines
result-{group}.jsonl  CopyOutcome lines
commit-{batch}.jsonl  the outcomes of a batch of partitions, for one commit
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby
from typing import Self

from tiered_storage.clock import Clock
from tiered_storage.kafka_log.producer_history import ProducerHistory
from tiered_storage.remote_log.copier import CopySizes, copy_segment
from tiered_storage.remote_log.copy_messages import CopyFailure, CopyOutcome, CopyTask
from tiered_storage.remote_log.job_groups import GroupResults, JobDescription, JobFolder, grouped
from tiered_storage.remote_log.model import TopicIdPartition
from tiered_storage.remote_log.storage import RemoteStorageManager
from tiered_storage.remote_log.storage.object_client import ObjectStoreOptions
from tiered_storage.remote_log.work_area import WorkArea
from tiered_storage.settings import Settings

COPIES_AT_ONCE = 2
"""Copies that a worker makes at once: while one waits for the disk or the store, the other is read and checked."""


@dataclass(frozen=True, slots=True)
class CopyJobDescription(JobDescription):
    """What a worker needs beside its tasks: which store, and how to cut."""

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
        options: ObjectStoreOptions,
    ) -> Self:
        """Lay the job out in the work area."""
        files = JobFolder(work, folder)
        groups = list(copy_groups(tasks))
        for number, group in enumerate(groups):
            files.write_tasks(number, group, CopyTask)
        sizes = CopySizes(
            settings.copy_window_bytes, settings.index_interval_bytes, settings.remote_log_index_chunk_bytes
        )
        files.describe(CopyJobDescription.of(len(groups), settings, options, sizes=sizes))
        return cls(files, len(groups))

    @classmethod
    def read(cls, work: WorkArea, folder: str) -> tuple[Self, CopyJobDescription]:
        """Find a job that was laid out, and what its workers need."""
        files = JobFolder(work, folder)
        description = files.description(CopyJobDescription)
        return cls(files, description.groups), description

    def run_group(self, number: int, storage: RemoteStorageManager, sizes: CopySizes, clock: Clock) -> int:
        """Copy the segments of one group, in order; return how many succeeded.

        After a failure the rest of that partition is left out: readers must never find a gap.
        """
        results = GroupResults(self.files, number, CopyOutcome)
        tasks = self.files.tasks(number, CopyTask)
        history = ProducerHistory()
        copied = 0
        for outcome in _copied(tasks, lambda task: copy_segment(task, storage, sizes, clock, history)):
            results.add(outcome)
            copied += outcome.failure is None
        results.write()
        return copied

    def outcomes(self) -> Iterator[CopyOutcome]:
        """Yield how every task ended; one without a result ended with its worker."""
        for number in range(self.groups):
            results = self.files.results(number, CopyOutcome)
            known = {outcome.task.metadata.segment_id for outcome in results}
            yield from results
            for task in self.files.tasks(number, CopyTask):
                if task.metadata.segment_id not in known:
                    yield CopyOutcome(task, None)

    def write_batches(self, partitions_a_batch: int) -> list[dict[str, str]]:
        """Sort all outcomes into batches of whole partitions; return the name and path of each."""
        by_partition = sorted(self.outcomes(), key=lambda outcome: outcome.task.metadata.topic_id_partition)
        partitions = [list(group) for _, group in groupby(by_partition, _partition_of)]
        batches: list[dict[str, str]] = []
        for first in range(0, len(partitions), partitions_a_batch):
            chosen = partitions[first : first + partitions_a_batch]
            path = self.files.path("commit", len(batches))
            self.files.work.write(path, [outcome for partition in chosen for outcome in partition], CopyOutcome)
            batches.append({"name": _batch_name(chosen), "path": path})
        return batches


def copy_groups(tasks: Iterable[CopyTask]) -> Iterator[list[CopyTask]]:
    """Yield `tasks` in groups of whole partitions, the segments of each by their offsets."""
    ordered = sorted(tasks, key=lambda task: (task.metadata.topic_id_partition, task.metadata.start_offset))
    return grouped(ordered, lambda task: task.metadata.topic_id_partition, lambda task: task.metadata.size)


def _copied(tasks: Iterable[CopyTask], copy: Callable[[CopyTask], CopyOutcome]) -> Iterator[CopyOutcome]:
    """Yield how each of `tasks` ended, in order, with COPIES_AT_ONCE under way."""
    failed: dict[TopicIdPartition, CopyFailure] = {}
    under_way: deque[tuple[CopyTask, Future[CopyOutcome] | None]] = deque()
    with ThreadPoolExecutor(COPIES_AT_ONCE) as pool:
        for task in tasks:
            if len(under_way) == COPIES_AT_ONCE:
                yield _ended(*under_way.popleft(), failed)
            is_left_out = task.metadata.topic_id_partition in failed
            under_way.append((task, None if is_left_out else pool.submit(copy, task)))
        while under_way:
            yield _ended(*under_way.popleft(), failed)


def _ended(
    task: CopyTask, copying: Future[CopyOutcome] | None, failed: dict[TopicIdPartition, CopyFailure]
) -> CopyOutcome:
    """Wait for a copy; one behind a failure of its partition, even if it was made, is left out."""
    outcome = None if copying is None else copying.result()
    partition = task.metadata.topic_id_partition
    if outcome is None or partition in failed:
        return CopyOutcome(task, None, _left_out(failed[partition]))
    if outcome.failure is not None:
        failed[partition] = outcome.failure
    return outcome


def _left_out(failure: CopyFailure) -> CopyFailure:
    message = f"left out because an earlier segment of the partition failed: {failure.message}"
    return CopyFailure(failure.error, message, failure.retriable)


def _partition_of(outcome: CopyOutcome) -> TopicIdPartition:
    return outcome.task.metadata.topic_id_partition


def _batch_name(partitions: Sequence[Sequence[CopyOutcome]]) -> str:
    first, last = (str(_partition_of(outcomes[0])) for outcomes in (partitions[0], partitions[-1]))
    return first if len(partitions) == 1 else f"{first} to {last} ({len(partitions)} partitions)"
