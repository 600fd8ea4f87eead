"""Which partitions a service has, and which of their tasks is due when.

A task is due at once when its partition is assigned, and again an interval after it ended. After a failure it is due
after a back-off that grows to a limit, with jitter. One task of a partition runs at a time: the one that has been due
the longest. If that one finds no thread for an interval, another kind goes first, once an interval. A partition that is
removed while its task runs is forgotten once the task has ended. One that is followed no more is due in the follower's
pool once more, to be let go.

Source: KIP-405, Remote Log Manager thread pool.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf
from random import Random
from typing import Final, Self

from tiered_storage.remote_log.model import TopicIdPartition
from tiered_storage.settings.settings import Settings

BROKEN_SECONDS: Final = 300.0
"""As often as the DAGs try."""


class Role(StrEnum):
    """What a service does with a partition."""

    LEADER = "leader"
    FOLLOWER = "follower"


class TaskKind(StrEnum):
    """What a task does; each kind has a pool of its own, which Kafka names so."""

    COPY = "copier"
    EXPIRATION = "expiration"
    FOLLOW = "follower"

    @property
    def role(self) -> Role:
        """The role that has such tasks."""
        return Role.FOLLOWER if self is TaskKind.FOLLOW else Role.LEADER


class Outcome(StrEnum):
    """How a task of a partition ended, which decides when it is due again.

    DONE: after the interval. MORE: at once. FAILED: after the back-off. BROKEN, if a person probably has to act before
    a retry can help: after a back-off that grows to BROKEN_SECONDS, since each try leaves something to delete.
    """

    DONE = "done"
    MORE = "more"
    FAILED = "failed"
    BROKEN = "broken"


_FAILURES: Final = frozenset({Outcome.FAILED, Outcome.BROKEN})


@dataclass(frozen=True, slots=True)
class Pace:
    """How often tasks run, in seconds, by Kafka's settings remote.log.manager.task.*.

    The back-off doubles with each failure in a row, from `retry` to `most_retry`, and is changed at random by up to
    `jitter`, a share of it.
    """

    interval: float
    retry: float
    most_retry: float
    jitter: float

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Return the pace that the settings name."""
        return cls(
            settings.remote_log_manager_task_interval_ms / 1000,
            settings.remote_log_manager_task_retry_backoff_ms / 1000,
            settings.remote_log_manager_task_retry_backoff_max_ms / 1000,
            settings.remote_log_manager_task_retry_jitter,
        )

    def backoff(self, failures: int, random: Random, outcome: Outcome = Outcome.FAILED) -> float:
        """Return the seconds to wait after so many failures in a row, of which the last one was `outcome`."""
        most = max(self.retry, self.most_retry, BROKEN_SECONDS if outcome is Outcome.BROKEN else 0)
        # A large power of two is no float.
        plain = min(most, self.retry * 2.0 ** min(failures - 1, 62))
        return plain * (1 + self.jitter * random.uniform(-1, 1))


@dataclass(slots=True)
class _Assigned:
    """A partition; without a role it was removed, and a task of it still runs or lets it go."""

    role: Role | None
    due: dict[TaskKind, float]
    running: TaskKind | None = None
    overtaken_at: float = -inf
    """When a task began last before another one that had been due for longer."""
    failures: dict[TaskKind, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ScheduleCounts:
    """What a schedule holds now: `late` is for how many seconds the oldest task of a kind has been due."""

    partitions: dict[Role, int]
    failing: dict[TaskKind, int]
    late: dict[TaskKind, float]


class PartitionSchedule:
    """The partitions of a service and when their tasks are due. Thread-safe.

    `kinds` are the tasks that are done at all. `now` is in seconds, and never goes back.
    """

    def __init__(
        self,
        pace: Pace,
        kinds: Iterable[TaskKind] = tuple(TaskKind),
        now: Callable[[], float] = time.monotonic,
        random: Random | None = None,
    ) -> None:
        """Begin without partitions."""
        self._pace = pace
        self._kinds = tuple(kinds)
        self._now = now
        self._random = random or Random()  # noqa: S311 - nothing secret
        self._assigned: dict[TopicIdPartition, _Assigned] = {}
        self._changed = threading.Condition()
        self._is_stopped = False

    def assign(self, partition: TopicIdPartition, role: Role) -> None:
        """Give the service a partition, or another role in it; its tasks are due now. A repeated call does nothing.

        If a task of the earlier role runs, it ends first.
        """
        with self._changed:
            known = self._assigned.get(partition)
            if known is None or known.role is not role:
                self._change(partition, known, role)

    def remove(self, partition: TopicIdPartition) -> None:
        """Take a partition away: at once, or when the task that runs has ended. A repeated call does nothing."""
        with self._changed:
            known = self._assigned.get(partition)
            if known is not None and known.role is not None:
                self._change(partition, known, None)
                self._forget_if_over(partition)

    def partitions(self, role: Role | None = None) -> list[TopicIdPartition]:
        """Return the partitions with that role, or with any, in order."""
        with self._changed:
            return sorted(
                each for each, one in self._assigned.items() if one.role is not None and role in {None, one.role}
            )

    def is_wanted(self, partition: TopicIdPartition, kind: TaskKind) -> bool:
        """Return whether a task may begin more work of `partition`: it is still assigned so, and nothing stops."""
        with self._changed:
            known = self._assigned.get(partition)
            return not self._is_stopped and known is not None and known.role is kind.role

    def take(self, kind: TaskKind, most: int, sharing: int = 1) -> list[TopicIdPartition]:
        """Return up to `most` partitions whose task of `kind` is due, the longest first; their tasks run from now on.

        With `sharing`, that many callers share what is due: each takes its part. End each one by `ended`. Let go those
        that `is_wanted` does not want.
        """
        with self._changed:
            if self._is_stopped:
                return []
            now = self._now()
            due = [
                (one.due[kind], partition)
                for partition, one in self._assigned.items()
                if self._begins_at(one, kind) <= now
            ]
            share = min(most, -(-len(due) // sharing))
            taken = [partition for _, partition in sorted(due)[:share]]
            for one in map(self._assigned.__getitem__, taken):
                one.running = kind
                if one.due[kind] > min(one.due.values()):
                    one.overtaken_at = now
                if one.role is not kind.role:
                    del one.due[kind]
            return taken

    def ended(self, partition: TopicIdPartition, kind: TaskKind, outcome: Outcome) -> None:
        """Note how the task that `take` began ended; forget the partition if it was removed meanwhile."""
        with self._changed:
            one = self._assigned.get(partition)
            if one is None or one.running is not kind:
                raise ValueError(f"{partition}: no task of the pool {kind} runs")
            one.running = None
            if one.role is kind.role:
                failures = one.failures.get(kind, 0) + 1 if outcome in _FAILURES else 0
                one.failures[kind] = failures
                one.due[kind] = self._now() + self._pause(outcome, failures)
            self._forget_if_over(partition)
            self._changed.notify_all()

    def wait(self, kind: TaskKind, most_seconds: float) -> None:
        """Wait until a task of `kind` may be due, something changed, or `most_seconds` have passed."""
        with self._changed:
            if not self._is_stopped:
                begins = [self._begins_at(one, kind) for one in self._assigned.values()]
                left = min([most_seconds, *(each - self._now() for each in begins)])
                if left > 0:
                    self._changed.wait(left)

    def stop(self) -> None:
        """Begin no more tasks; those that run are still ended by `ended`."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()

    def wait_until_idle(self, seconds: float) -> bool:
        """Wait up to `seconds` until no task runs; return whether none does."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._is_running(), seconds)

    @property
    def is_stopped(self) -> bool:
        """Whether no more tasks begin."""
        return self._is_stopped

    def counts(self) -> ScheduleCounts:
        """Return the numbers for metrics."""
        with self._changed:
            now, every = self._now(), list(self._assigned.values())
        failing = {kind: sum(one.failures.get(kind, 0) > 0 for one in every) for kind in self._kinds}
        waiting = [one for one in every if one.running is None]
        late = {
            kind: max((now - one.due[kind] for one in waiting if kind in one.due), default=0.0) for kind in self._kinds
        }
        return ScheduleCounts(
            {role: sum(one.role is role for one in every) for role in Role},
            failing,
            {kind: max(0.0, seconds) for kind, seconds in late.items()},
        )

    def _change(self, partition: TopicIdPartition, known: _Assigned | None, role: Role | None) -> None:
        now = self._now()
        due = {kind: now for kind in self._kinds if kind.role is role}
        running = None if known is None else known.running
        if known is not None and (running is TaskKind.FOLLOW or TaskKind.FOLLOW in known.due):
            due[TaskKind.FOLLOW] = now
        self._assigned[partition] = _Assigned(role, due, running)
        self._changed.notify_all()

    def _forget_if_over(self, partition: TopicIdPartition) -> None:
        one = self._assigned[partition]
        if one.role is None and one.running is None and not one.due:
            del self._assigned[partition]

    def _pause(self, outcome: Outcome, failures: int) -> float:
        if outcome in _FAILURES:
            return self._pace.backoff(failures, self._random, outcome)
        return self._pace.interval if outcome is Outcome.DONE else 0.0

    def _is_running(self) -> bool:
        return any(one.running is not None for one in self._assigned.values())

    def _begins_at(self, one: _Assigned, kind: TaskKind) -> float:
        """Return from when on a thread may take the partition's task of `kind`; inf: not before something changes."""
        if one.running is not None or kind not in one.due:
            return inf
        due, first = one.due[kind], min(one.due.values())
        return due if due == first else max(due, max(first, one.overtaken_at) + self._pace.interval)
