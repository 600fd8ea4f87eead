"""RemoteLogService: tiering in a process that stays up, as a broker's RemoteLogManager does it (KIP-405).

Its leases are those of all other runs: DAGs, commands and further services may work beside it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tiered_storage.errors import MetadataUnavailableError, TieredStorageError
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.metrics.exposition import KAFKA_REMOTE
from tiered_storage.remote_log.model import TopicIdPartition
from tiered_storage.remote_log.service.copying import CopyTasks
from tiered_storage.remote_log.service.expiration import ExpirationTasks
from tiered_storage.remote_log.service.pools import Ended, TaskPool, TroubleLog, Work
from tiered_storage.remote_log.service.schedule import Outcome, Pace, PartitionSchedule, Role, ScheduleCounts, TaskKind

_log = logging.getLogger(__name__)

_PREFIX: Final = "remote_log_service"

Follow = Callable[[TopicIdPartition], bool | None]
"""Does what is due of one partition that the service follows: a turn of Followers, or of a class of your own.

It returns True to be called again at once, after others that wait, and raises TieredStorageError or OSError to be
called again after a back-off."""
Unfollow = Callable[[TopicIdPartition], object]
"""Lets go of one partition that the service follows no more. Raises TieredStorageError or OSError, and is not called
again."""


class RemoteLogService:
    """Copies, expires and follows the partitions that it is assigned, each kind of task in a pool of its own.

    It begins with `start` and ends with `stop`; assign and remove partitions at any time, from any thread.
    """

    def __init__(
        self,
        remote_log: RemoteLogManager,
        owner: str,
        *,
        follow: Follow | None = None,
        unfollow: Unfollow = lambda _: None,
        now: Callable[[], float] = time.monotonic,
        random: Random | None = None,
    ) -> None:
        """Start nothing yet. The caller keeps `remote_log` open, and names in `owner` this process, for its leases.

        Without `follow`, nothing is done with partitions that are followed. No two calls of `follow` and `unfollow`
        about one partition overlap. `now` is in seconds.
        """
        settings, troubles = remote_log.context.settings, TroubleLog()
        self._is_copying_on = settings.remote_log_storage_system_enable
        kinds = [each for each in TaskKind if each is not TaskKind.FOLLOW or follow is not None]
        self.schedule = PartitionSchedule(Pace.of(settings), kinds, now, random)
        self.copies = CopyTasks(remote_log, self.schedule, f"{owner} {TaskKind.COPY}", troubles)
        expirations = ExpirationTasks(remote_log, self.schedule, f"{owner} {TaskKind.EXPIRATION}", troubles, now)
        works: dict[TaskKind, tuple[int, Work]] = {
            TaskKind.COPY: (settings.remote_log_manager_copier_thread_pool_size, self.copies),
            TaskKind.EXPIRATION: (settings.remote_log_manager_expiration_thread_pool_size, expirations),
        }
        self.pools = {
            kind: TaskPool(self.schedule, kind, threads, work, troubles) for kind, (threads, work) in works.items()
        }
        if follow is not None:
            threads = settings.remote_log_manager_follower_thread_pool_size
            follows = _Follows(follow, unfollow, self.schedule, troubles)
            # One at a time: the turns share no look at anything, and a slow one holds up no other.
            self.pools[TaskKind.FOLLOW] = TaskPool(self.schedule, TaskKind.FOLLOW, threads, follows, troubles, group=1)

    def assign(self, partition: TopicIdPartition, role: Role) -> None:
        """Give the service a partition, or another role in it: its tasks are due at once.

        A leader that becomes a follower finishes the copy that runs, and releases its lease. A follower that becomes a
        leader finishes its turn, and is let go.
        """
        self.schedule.assign(partition, role)

    def remove(self, partition: TopicIdPartition) -> None:
        """Take a partition away; the task that runs is finished first."""
        self.schedule.remove(partition)

    def start(self) -> None:
        """Start the pools."""
        if not self._is_copying_on:
            _log.warning("nothing is copied: remote.log.storage.system.enable is false")
        for pool in self.pools.values():
            pool.start()

    def stop(self, seconds: float) -> bool:
        """Begin nothing more, and wait up to `seconds` for what runs; return whether all of it ended.

        If not, the leases of copies are released: end the process then, so that no thread goes on.
        """
        self.schedule.stop()
        if self.schedule.wait_until_idle(seconds):
            return True
        try:
            self.copies.give_back()
        except MetadataUnavailableError as error:
            _log.warning("leases are left until they expire: %s", error)
        return False

    @property
    def hangs(self) -> bool:
        """Whether as many copies hung as the pool has threads: each keeps memory, and the process should end."""
        return self.copies.hung >= self.pools[TaskKind.COPY].size

    def counts(self) -> ScheduleCounts:
        """Return how many partitions there are, and how late their tasks are."""
        return self.schedule.counts()


class ServiceMetrics(Collector):
    """The metrics of one service, for Prometheus: how busy its pools are, and whether their tasks are late or fail.

    RemoteLogManagerTasksAvgIdlePercent is Kafka's, which measures the pool of copies; the others have no counterpart
    there.
    """

    def __init__(self, service: RemoteLogService) -> None:
        """Show those of `service`."""
        self._service = service

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics."""
        pools, counts = self._service.pools, self._service.counts()
        yield GaugeMetricFamily(
            f"{KAFKA_REMOTE}remotelogmanagertasksavgidlepercent",
            "The share of the copier's threads that wait for work, 0 to 1",
            pools[TaskKind.COPY].idle_share,
        )
        idle = GaugeMetricFamily(f"{_PREFIX}_idle_ratio", "The same for each pool", labels=("pool",))
        tasks = CounterMetricFamily(
            f"{_PREFIX}_tasks", "Tasks of a partition that ended, by how they did", labels=("pool", "outcome")
        )
        failing = GaugeMetricFamily(
            f"{_PREFIX}_failing_partitions", "Partitions whose last task failed", labels=("pool",)
        )
        late = GaugeMetricFamily(
            f"{_PREFIX}_late_seconds", "For how long the oldest due task has waited for a thread", labels=("pool",)
        )
        for kind, pool in pools.items():
            idle.add_metric((kind,), pool.idle_share)
            failing.add_metric((kind,), counts.failing[kind])
            late.add_metric((kind,), counts.late[kind])
            for outcome, count in pool.ended.items():
                tasks.add_metric((kind, outcome), count)
        partitions = GaugeMetricFamily(f"{_PREFIX}_partitions", "Assigned partitions", labels=("role",))
        for role, number in counts.partitions.items():
            partitions.add_metric((role,), number)
        yield from (idle, tasks, failing, late, partitions)
        yield CounterMetricFamily(
            f"{_PREFIX}_hung_copies", "Copies that were given up since no byte moved", self._service.copies.hung
        )


class _Follows:
    """The follower's tasks: one partition after the other."""

    def __init__(self, follow: Follow, unfollow: Unfollow, schedule: PartitionSchedule, troubles: TroubleLog) -> None:
        self._follow = follow
        self._unfollow = unfollow
        self._schedule = schedule
        self._troubles = troubles

    def __call__(self, partitions: Sequence[TopicIdPartition], ended: Ended) -> None:
        for each in partitions:
            outcome, messages = Outcome.DONE, list[str]()
            try:
                if self._schedule.is_wanted(each, TaskKind.FOLLOW):
                    outcome = Outcome.MORE if self._follow(each) else Outcome.DONE
                elif not self._schedule.is_stopped:
                    self._unfollow(each)
            except TieredStorageError as error:
                outcome, messages = Outcome.FAILED if error.retriable else Outcome.BROKEN, [str(error)]
            except OSError as error:
                outcome, messages = Outcome.FAILED, [str(error)]
            self._troubles.report(TaskKind.FOLLOW, {each: messages})
            ended(each, outcome)
