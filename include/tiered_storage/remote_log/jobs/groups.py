"""Work on many segments in groups of whole partitions, which Spark or this process runs in parallel.

Each try of a run has a folder of its own in the work area:

    job.json              JobDescription, or a subclass: the number of groups; neither the store nor secrets
    tasks-{group}.jsonl   a line per piece of work; all of a partition is in one group, in order
    begun-{group}-{id}    empty: a worker has begun the group, so no second one may
    result-{group}.jsonl  a line per finished piece, rewritten now and then while the group is worked on

and the progress of each group (progress.py).

Large partitions are groups of their own, small ones share a group, since every task of a worker has a cost. Each kind
of job defines its lines, such as copy/job.py.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from typing import Generic, Self, TypeVar

from tiered_storage.errors import TieredStorageError
from tiered_storage.remote_log.jobs.throttle import NO_QUOTA, Quota
from tiered_storage.remote_log.jobs.work_area import WorkArea

DESCRIPTION = "job.json"
GROUP_BYTES = 64 << 20
GROUP_TASKS = 1000
LEAST_SHARE = 64 << 10
"""The least bytes per second that a worker gets on average; a smaller quota has fewer workers."""
RESULT_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class JobDescription:
    """What a worker needs besides its tasks: the number of groups. A kind of job adds its own fields.

    All workers together keep within `quota`. They share it by the bytes of their groups, `group_bytes`, without
    communicating: a server that hands out what each may use would be one more port that every worker must reach. So the
    number of workers must be fixed before the first begins, whatever Spark adds later (see `workers`), and all of the
    quota is used until the end, since all shares then take equally long. A worker that is slower than its share for
    other reasons leaves the rest unused.
    """

    groups: int
    quota: Quota = field(default=NO_QUOTA, kw_only=True)
    group_bytes: tuple[int, ...] = field(default=(), kw_only=True)

    def workers(self, slots: int) -> int:
        """Return by how many workers the groups are done, where `slots` can run at once.

        Without a quota each group has one of its own, so that the last ones are balanced.
        """
        if self.quota.is_unlimited:
            return self.groups
        return max(1, min(self.groups, slots, int(self.quota.bytes_per_second) // LEAST_SHARE))

    def share(self, groups: Iterable[int]) -> Quota:
        """Return the quota of the worker that does all of `groups`."""
        if self.quota.is_unlimited:
            return self.quota
        return self.quota.share(sum(self.group_bytes[number] for number in groups), sum(self.group_bytes))


@dataclass(frozen=True, slots=True)
class JobFailure:
    """Why a copy, or another piece of a job, failed: the error's class, its message, and whether a retry may help."""

    error: str
    message: str
    retriable: bool

    @classmethod
    def of(cls, error: TieredStorageError | OSError) -> JobFailure:
        """Describe `error`."""
        retriable = error.retriable if isinstance(error, TieredStorageError) else True
        return cls(type(error).__name__, str(error), retriable)


Message = TypeVar("Message")
Description = TypeVar("Description", bound=JobDescription)


@dataclass(frozen=True, slots=True)
class JobFolder:
    """One try of a job, in `folder` of `work`, which has the job's own key: its messages by kind and group number."""

    work: WorkArea
    folder: str

    @classmethod
    def of(cls, work: WorkArea, folder: str) -> Self:
        """Return the job in `folder` of the work area of all runs."""
        return cls(work.of_job(folder), folder)

    def describe(self, description: JobDescription) -> None:
        """Write job.json, last of all: a job is complete once it can be read."""
        self.work.write(f"{self.folder}/{DESCRIPTION}", [description], type(description))

    def description(self, kind: type[Description]) -> Description:
        """Read job.json. Raises RemoteObjectNotFoundError, and ConfigurationError for one of another kind."""
        [description] = self.work.read(f"{self.folder}/{DESCRIPTION}", kind)
        return description

    def write_tasks(self, number: int, tasks: Iterable[Message], kind: type[Message]) -> None:
        """Write the tasks of group `number`."""
        self.work.write(self.path("tasks", number), tasks, kind)

    def tasks(self, number: int, kind: type[Message]) -> list[Message]:
        """Read the tasks of group `number`. Raises RemoteObjectNotFoundError."""
        return self.work.read(self.path("tasks", number), kind)

    def claim(self, number: int, first: str) -> bool:
        """Return whether no worker began group `number` before.

        `first` is the id of its first piece of work: an earlier job may have used this folder.
        """
        return self.work.claim(f"{self.folder}/begun-{number:05d}-{first}")

    def write_results(self, number: int, results: Iterable[Message], kind: type[Message]) -> None:
        """Write the results of group `number` so far, replacing the earlier ones."""
        self.work.write(self.path("result", number), results, kind)

    def results(self, number: int, kind: type[Message]) -> list[Message]:
        """Read the results of group `number` so far; none if its worker has written nothing yet."""
        return self.work.read_if_there(self.path("result", number), kind)

    def path(self, kind: str, number: int) -> str:
        """Return the path in the work area of the file of that kind and number."""
        return f"{self.folder}/{kind}-{number:05d}.jsonl"


class GroupResults(Generic[Message]):
    """The results of one group, written often enough that a dying worker loses few of them."""

    def __init__(self, job: JobFolder, number: int, kind: type[Message]) -> None:
        self._job = job
        self._number = number
        self._kind = kind
        self._results: list[Message] = []
        self._written, self._written_at = 0, time.monotonic()

    def add(self, result: Message) -> None:
        """Add one more result."""
        self._results.append(result)
        # Each write has all results so far: only after an eighth more, so that many small pieces stay cheap.
        if 8 * len(self._results) >= 9 * self._written or time.monotonic() - self._written_at >= RESULT_SECONDS:
            self.write()

    def write(self) -> None:
        """Write all results; at the end even if there is none."""
        self._job.write_results(self._number, self._results, self._kind)
        self._written, self._written_at = len(self._results), time.monotonic()


def grouped(
    tasks: Iterable[Message], partition_of: Callable[[Message], Hashable], size_of: Callable[[Message], int]
) -> Iterator[list[Message]]:
    """Yield groups of whole partitions, each closed as soon as it has GROUP_BYTES or GROUP_TASKS.

    `tasks` come with those of a partition one after the other, in the order in which they must run; `size_of` is in
    bytes.
    """
    group: list[Message] = []
    for _, of_partition in groupby(tasks, partition_of):
        group.extend(of_partition)
        if sum(map(size_of, group)) >= GROUP_BYTES or len(group) >= GROUP_TASKS:
            yield group
            group = []
    if group:
        yield group


class JobThreads:
    """Threads that run the groups of a job, `workers` at once; `give_up` ends the wait for them.

    A thread cannot be ended from outside. They are daemons, so that a process may end while one of them hangs.
    """

    def __init__(self, groups: int, workers: int, run_group: Callable[[int], object]) -> None:
        self._run_group = run_group
        self._waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
        for number in range(groups):
            self._waiting.put(number)
        self._left = groups
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._failure: BaseException | None = None
        self._threads = [
            threading.Thread(target=self._run, name=f"group-{number}", daemon=True)
            for number in range(min(workers, groups))
        ]

    def run(self) -> None:
        """Run all groups; re-raise the first exception. Returns at once after `give_up`."""
        if not self._threads:
            return
        for thread in self._threads:
            thread.start()
        self._is_over.wait()
        if self._failure is not None:
            raise self._failure

    def give_up(self) -> None:
        """Stop waiting, and begin no other group."""
        self._is_over.set()

    def _run(self) -> None:
        while not self._is_over.is_set():
            try:
                number = self._waiting.get_nowait()
            except queue.Empty:
                return
            try:
                self._run_group(number)
            except BaseException as error:  # noqa: BLE001 - it is raised where the groups are waited for
                self._failure = error
                self._is_over.set()
                return
            with self._lock:
                self._left -= 1
                if self._left == 0:
                    self._is_over.set()
