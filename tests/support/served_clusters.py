"""What the connections of a gateway share, for tests of one connection."""

from __future__ import annotations

from tiered_storage.gateway.broker_ports import BrokerPorts
from tiered_storage.gateway.deletions.remote_deletions import RemoteDeletions
from tiered_storage.gateway.fetch_errors import ReadFailures
from tiered_storage.gateway.limits.client_quotas import ClientQuotas
from tiered_storage.gateway.limits.memory_budget import MemoryBudget
from tiered_storage.gateway.operation.metrics import GatewayMetrics
from tiered_storage.gateway.remote_partitions import RemotePartitions
from tiered_storage.gateway.served_cluster import GatewayLimits, ServedCluster


def served_cluster(
    partitions: RemotePartitions,
    deletions: RemoteDeletions,
    budget: MemoryBudget,
    limits: GatewayLimits | None = None,
    metrics: GatewayMetrics | None = None,
    quotas: ClientQuotas | None = None,
    ports: BrokerPorts | None = None,
) -> ServedCluster:
    """Return a cluster with these; by default, without quotas and with unknown brokers."""
    metrics = metrics or GatewayMetrics()
    return ServedCluster(
        ports or BrokerPorts("localhost", 9000, []),
        partitions,
        deletions,
        limits or gateway_limits(),
        quotas or ClientQuotas(None),
        budget,
        metrics,
        ReadFailures(metrics),
    )


def gateway_limits(
    most_fetch_bytes: int = 1 << 20, most_wait_ms: int = 1000, *, skips_missing: bool = False
) -> GatewayLimits:
    """Return limits of a process, the given ones of its Fetches."""
    return GatewayLimits(100, 1 << 20, most_fetch_bytes, most_wait_ms, 30.0, 600.0, skips_missing)
