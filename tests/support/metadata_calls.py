"""A metadata store with something in every table, and a call of every method of its border."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, MetaData, select

from support.metadata_stores import (
    DELETED,
    DELETING,
    FINISHED,
    ORDERS_0,
    ORDERS_1,
    a_segment,
    add_and_bring_to,
)
from tiered_storage.clock import BootTime
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.remote_log.metadata.metadata_store import ClockReading
from tiered_storage.remote_log.metadata.remote_log_metadata_manager import Topic
from tiered_storage.remote_log.metadata.safety import AuditVerdict
from tiered_storage.remote_log.metadata.sql.store import SqlMetadataStore
from tiered_storage.remote_log.model import (
    Lease,
    PartitionDeleteState,
    RemoteLogSegmentMetadata,
    RemotePartitionDeleteMetadata,
)

LONG = 3_600_000
"""The duration of a lease (ms)."""


@dataclass(frozen=True, slots=True)
class Filled:
    """What `fill` wrote: the leases of both partitions, and a segment in each state."""

    lease: Lease
    lease_1: Lease
    copying: RemoteLogSegmentMetadata
    finished: RemoteLogSegmentMetadata
    marked: RemoteLogSegmentMetadata
    deleted: RemoteLogSegmentMetadata


def fill(store: SqlMetadataStore) -> Filled:
    """Write something into every table of an empty store."""
    lease = store.leases.acquire(ORDERS_0, "run-1", LONG)
    lease_1 = store.leases.acquire(ORDERS_1, "run-1", LONG)
    copying = a_segment(lease, 30, 39)
    store.segments.add_remote_log_segment_metadata(copying, lease)
    filled = Filled(
        lease,
        lease_1,
        copying,
        add_and_bring_to(store, a_segment(lease, 20, 29), lease, FINISHED),
        add_and_bring_to(store, a_segment(lease, 10, 19), lease, DELETING),
        add_and_bring_to(store, a_segment(lease, 0, 9), lease, DELETED),
    )
    store.segments.put_lineage(ORDERS_0, [EpochEntry(0, 0)], lease)
    store.segments.advance_log_start_offset(ORDERS_0, 20, lease, moved_at=3_000)
    marked = RemotePartitionDeleteMetadata(ORDERS_1, PartitionDeleteState.MARKED, 3_000)
    store.segments.put_remote_partition_delete_metadata(marked, lease_1)
    store.topics.put(Topic("cluster-1", ORDERS_0.topic_id, "orders", remote_storage_enable=True))
    store.safety.stop("a test", "ada")
    store.safety.put_verdict(AuditVerdict("cluster-1", ORDERS_0.topic_id, False, 2_000, 1, "a missing object"))
    store.safety.note_failures({filled.marked.segment_id: "it is in use"}, 3_000)
    store.identity.bind_store("the UUID of a store")
    store.clock_readings.record(ClockReading(BootTime("a start", 10), 4_000, 3_000))
    return filled


def dump(connection: Connection) -> dict[str, list[tuple[Any, ...]]]:
    """Return the rows of all tables by name, in the order of their keys."""
    found = MetaData()
    found.reflect(connection)
    return {
        name: [tuple(row) for row in connection.execute(select(table).order_by(*table.columns))]
        for name, table in sorted(found.tables.items())
    }
