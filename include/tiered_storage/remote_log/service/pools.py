"""Pools of threads that run due tasks, and what they log: a trouble once, until it changes.

A thread takes a few partitions whose time has come, so that one look at the metadata and the brokers serves them all.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, Protocol

from tiered_storage.errors import TieredStorageError
from tiered_storage.remote_log.model import Finding, TopicIdPartition
from tiered_storage.remote_log.service.schedule import Outcome, PartitionSchedule, TaskKind

_log = logging.getLogger(__name__)

GROUP_PARTITIONS: Final = 50
"""How many partitions a thread takes at once, if there are more than threads."""
_WAIT_SECONDS: Final = 60.0
_NUMBER: Final = re.compile(r"[0-9]+")

Ended = Callable[[TopicIdPartition, Outcome], None]


class Work(Protocol):
    """The tasks of one kind of some partitions.

    It calls `ended` for a partition as soon as its task has ended. All that it has not called it for when it returns
    are done; when it raises, they failed.
    """

    def __call__(self, partitions: Sequence[TopicIdPartition], ended: Ended, /) -> None:
        """Do them."""
        ...


class TroubleLog:
    """Logs what tasks report of partitions, each message once until it is gone. Thread-safe.

    Messages that differ only in numbers count as the same: those of an outage name how long it lasts.
    """

    def __init__(self) -> None:
        """Know of no trouble."""
        self._lock = threading.Lock()
        self._known: dict[tuple[TaskKind, TopicIdPartition], frozenset[str]] = {}

    def report(self, kind: TaskKind, found: Mapping[TopicIdPartition, Collection[str]]) -> None:
        """Log the messages of each partition in `found` that were not there the last time."""
        fresh: dict[str, list[TopicIdPartition]] = {}
        with self._lock:
            for partition, messages in found.items():
                known = self._known.get((kind, partition), frozenset())
                shapes = {_NUMBER.sub("#", message): message for message in messages}
                for shape, message in shapes.items():
                    if shape not in known:
                        fresh.setdefault(message, []).append(partition)
                if messages:
                    self._known[kind, partition] = frozenset(shapes)
                else:
                    self._known.pop((kind, partition), None)
        for message, (first, *others) in fresh.items():
            more = f" (and {len(others)} more partitions)" if others else ""
            _log.warning("%s: %s%s: %s", kind, first, more, message.removeprefix(f"{first}: "))


def by_partition(
    partitions: Iterable[TopicIdPartition], findings: Iterable[Finding]
) -> dict[TopicIdPartition, list[str]]:
    """Return the messages about each of `partitions`: those of the findings that name it, its topic, or nothing."""
    named: dict[str, list[str]] = {}
    for finding in findings:
        named.setdefault(finding.partition, []).append(finding.message)
    return {each: [*named.get(str(each), ()), *named.get(each.topic, ()), *named.get("", ())] for each in partitions}


class TaskPool:
    """Threads that run the due tasks of one kind, until their schedule is stopped."""

    def __init__(
        self,
        schedule: PartitionSchedule,
        kind: TaskKind,
        threads: int,
        work: Work,
        troubles: TroubleLog,
        group: int = GROUP_PARTITIONS,
    ) -> None:
        """Start nothing yet. A thread takes up to `group` partitions at once."""
        self.kind = kind
        self.size = threads
        self._group = group
        self._schedule = schedule
        self._work = work
        self._troubles = troubles
        self._lock = threading.Lock()
        self._busy = 0
        self.ended: dict[Outcome, int] = dict.fromkeys(Outcome, 0)
        """How many tasks of a partition ended so, since the start."""
        # Daemons: a process may end while one hangs in the store.
        self._threads = [
            threading.Thread(target=self._run, name=f"{kind}-{number}", daemon=True) for number in range(threads)
        ]

    def start(self) -> None:
        """Start the threads."""
        for each in self._threads:
            each.start()

    @property
    def idle_share(self) -> float:
        """The share of threads that wait for work now, from 0 to 1."""
        return 1 - self._busy / self.size

    def run_due(self) -> bool:
        """Take due tasks, if there are any, and run them; return whether there were."""
        partitions = self._schedule.take(self.kind, self._group, self.size)
        if not partitions:
            return False
        left = dict.fromkeys(partitions)

        def ended(partition: TopicIdPartition, outcome: Outcome) -> None:
            del left[partition]
            with self._lock:
                self.ended[outcome] += 1
            self._schedule.ended(partition, self.kind, outcome)

        outcome = Outcome.FAILED
        self._count(1)
        try:
            self._work(partitions, ended)
            outcome = Outcome.DONE
        except (TieredStorageError, OSError) as error:
            self._troubles.report(self.kind, {each: [str(error)] for each in left})
        except Exception:  # noqa: BLE001 - a bug in one task must not end the pool
            _log.exception("%s: a task of %s failed", self.kind, ", ".join(map(str, left)))
        finally:
            self._count(-1)
            for each in list(left):
                ended(each, outcome)
        return True

    def _count(self, change: int) -> None:
        with self._lock:
            self._busy += change

    def _run(self) -> None:
        while not self._schedule.is_stopped:
            if not self.run_due():
                self._schedule.wait(self.kind, _WAIT_SECONDS)
