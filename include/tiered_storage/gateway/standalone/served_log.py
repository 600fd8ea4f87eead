"""What the connections of one process share where there are no brokers: both tiers as one log, and who may read it."""

from __future__ import annotations

from dataclasses import dataclass

from tiered_storage.gateway.fetch_errors import ReadFailures
from tiered_storage.gateway.limits.memory_budget import MemoryBudget
from tiered_storage.gateway.operation.metrics import GatewayMetrics
from tiered_storage.gateway.remote_partitions import RemotePartitions
from tiered_storage.gateway.standalone.catalog import Catalog
from tiered_storage.gateway.standalone.descriptions import Descriptions, Node
from tiered_storage.gateway.standalone.offsets import LogOffsets
from tiered_storage.gateway.standalone.users import Users
from tiered_storage.remote_log.context import RemoteLogContext
from tiered_storage.remote_log.read.log_reader import RemoteLogReader
from tiered_storage.settings.read_rights import RightsFile


@dataclass(frozen=True, slots=True)
class Access:
    """Who may log in, and what they may see and read."""

    users: Users
    rights: RightsFile


@dataclass(frozen=True, slots=True)
class ServedLog:
    """What all connections of a process share; without `access`, nobody logs in, and everybody may read everything.

    For one event loop.
    """

    catalog: Catalog
    partitions: RemotePartitions
    descriptions: Descriptions
    offsets: LogOffsets
    budget: MemoryBudget
    metrics: GatewayMetrics
    failures: ReadFailures
    most_fetch_bytes: int
    most_wait_ms: int
    """How long one read takes at most."""
    access: Access | None

    @classmethod
    def of(cls, context: RemoteLogContext, reader: RemoteLogReader, metrics: GatewayMetrics, node: Node) -> ServedLog:
        """Return that of `context`, which is read through `reader`; clients see it at `node`."""
        settings = context.settings
        budget = MemoryBudget(settings.gateway_memory_max_bytes)
        metrics.show_memory(budget)
        catalog, failures = Catalog(context), ReadFailures(metrics)
        partitions = RemotePartitions(reader, "", settings.remote_log_reader_cache_memory_bytes, budget)
        users = settings.gateway_users_file
        return cls(
            catalog,
            partitions,
            Descriptions(context, catalog, node),
            LogOffsets(catalog, partitions, failures),
            budget,
            metrics,
            failures,
            settings.gateway_fetch_max_bytes,
            settings.remote_fetch_max_wait_ms,
            None if users is None else Access(Users(users), RightsFile(settings.read_service_rights_file)),
        )
