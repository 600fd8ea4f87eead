"""The copy of many segments as groups of tasks, for whoever runs groups side by side: Spark, or this process.

In the work area, under a folder of its own for every try of a run:

    job.json              CopyJobDescription: which store, how to cut, how many groups; no secrets
    tasks-{group}.jsonl   CopyTask lines; all segments of a partition are in one group, in order
    result-{group}.jsonl  CopyOutcome lines, written anew now and then while the group is copied
    commit-{batch}.jsonl  the outcomes of a batch of partitions, for one commit

Large partitions are groups of their own, small ones share a group: a task of a worker has its price.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby

from tiered_storage.clock import Clock
from tiered_storage.kafka_log.producer_history import ProducerHistory
from tiered_storage.remote_log.copier import CopySizes, copy_segment
from tiered_storage.remote_log.copy_messages import CopyFailure, CopyOutcome, CopyTask
from tiered_storage.remote_log.model import TopicIdPartition
from tiered_storage.remote_log.storage import RemoteStorageManager
from tiered_storage.remote_log.storage.object_client import ObjectStoreOptions
from tiered_storage.remote_log.work_area import WorkArea
from tiered_storage.settings import Settings

DESCRIPTION = "job.json"
GROUP_BYTES = 64 << 20
GROUP_TASKS = 1000
RESULT_SECONDS = 5.0
COPIES_AT_ONCE = 2
"""Copies that a worker makes at once: while one waits for the disk or the store, the other is read and checked."""


@dataclass(frozen=True, slots=True)
class CopyJobDescription:
    """What a worker needs beside its tasks: how many groups there are, which store, how to cut; and no secrets."""

    groups: int
    storage_class: str
    storage_url: str
    endpoint: str | None
    region: str | None
    allow_http: bool
    sizes: CopySizes

    @classmethod
    def of(cls, groups: int, settings: Settings, options: ObjectStoreOptions) -> CopyJobDescription:
        """Describe a job of `groups` groups that copies as `settings` say to where `options` lead."""
        return cls(
            groups,
            settings.remote_log_storage_manager_class_name,
            settings.rsm_config_url,
            options.endpoint,
            options.region,
            options.allow_http,
            CopySizes(settings.copy_window_bytes, settings.index_interval_bytes, settings.remote_log_index_chunk_bytes),
        )


@dataclass(frozen=True, slots=True)
class CopyJob:
    """One try of a copy run, in `folder` of `work`."""

    work: WorkArea
    folder: str
    groups: int

    @classmethod
    def write(
        cls,
        work: WorkArea,
        folder: str,
        tasks: Sequence[CopyTask],
        settings: Settings,
        options: ObjectStoreOptions,
    ) -> CopyJob:
        """Lay the job out in the work area."""
        groups = list(grouped(tasks))
        job = cls(work, folder, len(groups))
        for number, group in enumerate(groups):
            work.write(job._path("tasks", number), group, CopyTask)
        description = CopyJobDescription.of(len(groups), settings, options)
        work.write(f"{folder}/{DESCRIPTION}", [description], CopyJobDescription)
        return job

    @classmethod
    def read(cls, work: WorkArea, folder: str) -> tuple[CopyJob, CopyJobDescription]:
        """Find a job that was laid out, and what its workers need."""
        [description] = work.read(f"{folder}/{DESCRIPTION}", CopyJobDescription)
        return cls(work, folder, description.groups), description

    def run_group(self, number: int, storage: RemoteStorageManager, sizes: CopySizes, clock: Clock) -> int:
        """Copy the segments of one group, in order; return how many succeeded.

        After a failure the rest of that partition is left out: readers must never find a gap.
        """
        outcomes: list[CopyOutcome] = []
        written, written_at = 0, time.monotonic()
        tasks = self.work.read(self._path("tasks", number), CopyTask)
        history = ProducerHistory()
        for outcome in _copied(tasks, lambda task: copy_segment(task, storage, sizes, clock, history)):
            outcomes.append(outcome)
            # Each writing is of all so far: after an eighth more, many small segments do not cost their square, and a
            # worker that dies takes little finished work with it.
            if 8 * len(outcomes) >= 9 * written or time.monotonic() - written_at >= RESULT_SECONDS:
                self.work.write(self._path("result", number), outcomes, CopyOutcome)
                written, written_at = len(outcomes), time.monotonic()
        self.work.write(self._path("result", number), outcomes, CopyOutcome)
        return sum(outcome.failure is None for outcome in outcomes)

    def outcomes(self) -> Iterator[CopyOutcome]:
        """Yield how every task ended; one without a result ended with its worker."""
        for number in range(self.groups):
            results = self.work.read_if_there(self._path("result", number), CopyOutcome)
            known = {outcome.task.metadata.segment_id for outcome in results}
            yield from results
            for task in self.work.read(self._path("tasks", number), CopyTask):
                if task.metadata.segment_id not in known:
                    yield CopyOutcome(task, None)

    def write_batches(self, partitions_a_batch: int) -> list[dict[str, str]]:
        """Sort all outcomes into batches of whole partitions; return the name and path of each."""
        by_partition = sorted(self.outcomes(), key=lambda outcome: outcome.task.metadata.topic_id_partition)
        partitions = [list(group) for _, group in groupby(by_partition, _partition_of)]
        batches: list[dict[str, str]] = []
        for first in range(0, len(partitions), partitions_a_batch):
            chosen = partitions[first : first + partitions_a_batch]
            path = self._path("commit", len(batches))
            self.work.write(path, [outcome for partition in chosen for outcome in partition], CopyOutcome)
            batches.append({"name": _batch_name(chosen), "path": path})
        return batches

    def _path(self, kind: str, number: int) -> str:
        return f"{self.folder}/{kind}-{number:05d}.jsonl"


def grouped(tasks: Iterable[CopyTask]) -> Iterator[list[CopyTask]]:
    """Yield groups of whole partitions, each closed as soon as it has GROUP_BYTES or GROUP_TASKS."""
    group: list[CopyTask] = []
    ordered = sorted(tasks, key=lambda task: (task.metadata.topic_id_partition, task.metadata.start_offset))
    for _, of_partition in groupby(ordered, lambda task: task.metadata.topic_id_partition):
        group.extend(of_partition)
        if sum(task.metadata.size for task in group) >= GROUP_BYTES or len(group) >= GROUP_TASKS:
            yield group
            group = []
    if group:
        yield group


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
