"""What the connections of one process share: the cluster that they serve, and how much each of them may take."""

from __future__ import annotations

from dataclasses import dataclass, field

from tiered_storage.gateway.broker_ports import BrokerPorts
from tiered_storage.gateway.broker_questions import NamedTopic
from tiered_storage.gateway.deletions.remote_deletions import RemoteDeletions
from tiered_storage.gateway.fetch_errors import ReadFailures
from tiered_storage.gateway.limits.client_quotas import ClientQuotas
from tiered_storage.gateway.limits.memory_budget import MemoryBudget
from tiered_storage.gateway.operation.metrics import GatewayMetrics
from tiered_storage.gateway.remote_partitions import RemotePartitions
from tiered_storage.settings.settings import Settings


@dataclass(frozen=True, slots=True)
class GatewayLimits:
    """How much one process takes on, and one connection of it."""

    most_connections: int
    largest_request: int
    most_fetch_bytes: int
    most_wait_ms: int
    """How long a Fetch waits for remote records."""
    shutdown_seconds: float
    idle_seconds: float
    """Seconds after which an idle connection is closed."""
    skips_missing: bool
    """Whether consumers continue after offsets that neither tier has."""

    @classmethod
    def of(cls, settings: Settings) -> GatewayLimits:
        """Return those that `settings` ask for."""
        return cls(
            settings.gateway_max_connections,
            settings.gateway_request_max_bytes,
            settings.gateway_fetch_max_bytes,
            settings.remote_fetch_max_wait_ms,
            settings.gateway_shutdown_timeout_ms / 1000,
            settings.gateway_connections_max_idle_ms / 1000,
            settings.gateway_skip_missing_offsets,
        )


@dataclass(frozen=True, slots=True)
class ServedCluster:
    """State that all connections of a process share. For one event loop."""

    ports: BrokerPorts
    """Where clients reach the brokers, and the gateway does."""
    partitions: RemotePartitions
    """The remote log, as clients read it."""
    deletions: RemoteDeletions
    """Deletes from the remote log for clients."""
    limits: GatewayLimits
    quotas: ClientQuotas
    budget: MemoryBudget
    metrics: GatewayMetrics
    failures: ReadFailures
    names: dict[bytes, NamedTopic] = field(default_factory=dict)
    """Topics by their ids, as one connection learned them."""
