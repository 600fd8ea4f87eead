"""The metrics of a service, for Prometheus: how busy its pools are, and whether their tasks are late or fail.

RemoteLogManagerTasksAvgIdlePercent is Kafka's, which measures the pool of copies; the others have no counterpart there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tiered_storage.remote_log.metrics.exposition import KAFKA_REMOTE
from tiered_storage.remote_log.service.schedule import TaskKind
from tiered_storage.remote_log.service.service import RemoteLogService

_PREFIX: Final = "remote_log_service"


class ServiceMetrics(Collector):
    """The metrics of one service."""

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
