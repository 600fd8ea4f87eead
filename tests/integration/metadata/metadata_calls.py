"""A metadata store with something in every table, and a call of every method of its border."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_type_hints

from sqlalchemy import Connection, MetaData

from support.metadata_stores import (
    DELETED,
    DELETING,
    FINISHED,
    ORDERS_0,
    ORDERS_1,
    a_segment,
    a_step,
    add_and_bring_to,
    dump,
)
from tiered_storage.clock import BootTime
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.remote_log.metadata.metadata_store import ClockReading, Generation, MetadataStore
from tiered_storage.remote_log.metadata.remote_log_metadata_manager import Topic
from tiered_storage.remote_log.metadata.safety import AuditResult
from tiered_storage.remote_log.metadata.sql.store import SqlMetadataStore
from tiered_storage.remote_log.model import (
    Lease,
    PartitionDeleteState,
    RemoteLogSegmentMetadata,
    RemotePartitionDeleteMetadata,
    TopicIdPartition,
)

ORDERS_2 = TopicIdPartition("cluster-1", "topic-id-of-ordersAAAA", 2, "orders")

LONG = 3_600_000
"""The duration of a lease (ms)."""


@dataclass(frozen=True, slots=True)
class Filled:
    """What `fill` wrote: the leases of both partitions, and a segment in each state; `new` is not added yet."""

    lease: Lease
    lease_1: Lease
    copying: RemoteLogSegmentMetadata
    finished: RemoteLogSegmentMetadata
    marked: RemoteLogSegmentMetadata
    deleted: RemoteLogSegmentMetadata
    new: RemoteLogSegmentMetadata


def fill(store: SqlMetadataStore) -> Filled:
    """Write something into every table of an empty store, whose next generation has the token "a token"."""
    lease = store.leases.acquire(ORDERS_0, "run-1", LONG)
    lease_1 = store.leases.acquire(ORDERS_1, "run-1", LONG)
    copying = a_segment(lease, 30, 39)
    store.segments.add_remote_log_segment_metadata(copying, lease)
    marked = a_segment(lease, 10, 19)
    store.segments.add_remote_log_segment_metadata(marked, lease)
    for step in (a_step(marked, FINISHED, custom_metadata=b"a key"), a_step(marked, DELETING, 3_000)):
        store.segments.update_remote_log_segment_metadata(step, lease)
    filled = Filled(
        lease,
        lease_1,
        copying,
        add_and_bring_to(store, a_segment(lease, 20, 29), lease, FINISHED),
        marked,
        add_and_bring_to(store, a_segment(lease, 0, 9), lease, DELETED),
        a_segment(lease, 40, 49),
    )
    store.segments.put_lineage(ORDERS_0, [EpochEntry(0, 0)], lease)
    store.segments.advance_log_start_offset(ORDERS_0, 20, lease, moved_at=3_000)
    deletion = RemotePartitionDeleteMetadata(ORDERS_1, PartitionDeleteState.MARKED, 3_000)
    store.segments.put_remote_partition_delete_metadata(deletion, lease_1)
    store.topics.put(Topic("cluster-1", ORDERS_0.topic_id, "orders", remote_storage_enable=True))
    store.safety.stop("a test", "ada")
    store.safety.put_audit_result(AuditResult("cluster-1", ORDERS_0.topic_id, False, 2_000, 1, "a missing object"))
    store.safety.note_failures({filled.marked.segment_id: "it is in use"}, 3_000)
    store.identity.bind_store("the UUID of a store")
    store.clock_readings.record(ClockReading(BootTime("a start", 10), 4_000, 3_000))
    return filled


def dump_all(connection: Connection) -> dict[str, list[tuple[Any, ...]]]:
    """Return the rows of every table that the database has."""
    found = MetaData()
    found.reflect(connection)
    return dump(connection, found)


def methods_of_the_border() -> set[str]:
    """Return the name of every method and property of a MetadataStore and its parts, such as leases.acquire."""
    found = {"open"}
    for name, member in vars(MetadataStore).items():
        if isinstance(member, property) and member.fget is not None:
            part = get_type_hints(member.fget)["return"]
            found |= {f"{name}.{each}" for each in vars(part) if not each.startswith("_")}
        elif not name.startswith("_"):
            found.add(name)
    return found


_CLUSTER, _TOPIC = ORDERS_0.cluster_id, ORDERS_0.topic_id
_PAYMENTS = Topic(_CLUSTER, "id of payments", "payments", remote_storage_enable=True)
_TWO_EPOCHS = (EpochEntry(0, 0), EpochEntry(1, 30))
_STARTED = RemotePartitionDeleteMetadata(ORDERS_1, PartitionDeleteState.STARTED, 4_000)
_READING = ClockReading(BootTime("another start", 10), 5_000, 4_500)

Call = Callable[[SqlMetadataStore, Filled], object]

READS: dict[str, Call] = {
    "segments.remote_log_segment_metadata": lambda store, _: store.segments.remote_log_segment_metadata(ORDERS_0, 25),
    "segments.highest_offset_for_epoch": lambda store, _: store.segments.highest_offset_for_epoch(ORDERS_0, 0),
    "segments.list_remote_log_segments": lambda store, _: list(store.segments.list_remote_log_segments(ORDERS_0)),
    "segments.list_deleted_segments": lambda store, _: list(store.segments.list_deleted_segments(ORDERS_0, 0, 9)),
    "segments.count_remote_log_segments": lambda store, _: store.segments.count_remote_log_segments(ORDERS_0),
    "segments.segment_totals": lambda store, _: list(store.segments.segment_totals()),
    "segments.segment_by_id": lambda store, had: store.segments.segment_by_id(had.finished.segment_id),
    "segments.known_segment_ids": lambda store, had: store.segments.known_segment_ids(
        ORDERS_0, [had.deleted.segment_id.id]
    ),
    "segments.list_partitions": lambda store, _: store.segments.list_partitions(),
    "segments.log_start_offset": lambda store, _: store.segments.log_start_offset(ORDERS_0),
    "segments.partition_state": lambda store, _: store.segments.partition_state(ORDERS_0),
    "segments.partition_states_of": lambda store, _: store.segments.partition_states_of([ORDERS_0]),
    "segments.partition_states": lambda store, _: store.segments.partition_states(),
    "leases.check": lambda store, had: store.leases.check(had.lease),
    "leases.fencing_number": lambda store, _: store.leases.fencing_number(ORDERS_0),
    "leases.held": lambda store, _: store.leases.held(),
    "topics.get": lambda store, _: store.topics.get(_CLUSTER, _TOPIC),
    "topics.named": lambda store, _: store.topics.named("orders"),
    "topics.list": lambda store, _: store.topics.list(),
    "safety.stopped": lambda store, _: store.safety.stopped(),
    "safety.audit_results": lambda store, _: store.safety.audit_results(_CLUSTER, _TOPIC),
    "safety.failures": lambda store, _: list(store.safety.failures()),
    "identity.metadata_uuid": lambda store, _: store.identity.metadata_uuid,
    "identity.bound_store_uuid": lambda store, _: store.identity.bound_store_uuid(),
    "generation.where": lambda store, _: store.generation.where,
    "generation.read": lambda store, _: store.generation.read(),
    "generation.pending": lambda store, _: store.generation.pending(),
    "generation.backed_up_at": lambda store, _: store.generation.backed_up_at(),
    "clock_readings.read": lambda store, _: store.clock_readings.read("a start"),
    "clock_readings.latest": lambda store, _: store.clock_readings.latest(),
    "clock_readings.latest_or_newest": lambda store, _: store.clock_readings.latest_or_newest(lambda: 1),
    "work_area_key": lambda store, _: store.work_area_key(),
    "check_integrity": lambda store, _: store.check_integrity(),
    "spend_reserve": lambda store, _: store.spend_reserve(),
    "close": lambda store, _: store.close(),
}
"""A call of each method that changes no row, on a store that `fill` filled."""

WRITES: dict[str, Call] = {
    "segments.add_remote_log_segment_metadata": lambda store, had: store.segments.add_remote_log_segment_metadata(
        had.new, had.lease
    ),
    "segments.update_remote_log_segment_metadata": lambda store, had: store.segments.update_remote_log_segment_metadata(
        a_step(had.copying, FINISHED), had.lease
    ),
    "segments.add_remote_log_segments": lambda store, had: store.segments.add_remote_log_segments(
        [(had.new, had.lease)]
    ),
    "segments.update_remote_log_segments": lambda store, had: store.segments.update_remote_log_segments(
        [(a_step(had.copying, FINISHED), had.lease), (a_step(had.marked, DELETED), had.lease)]
    ),
    "segments.advance_log_start_offset": lambda store, had: store.segments.advance_log_start_offset(
        ORDERS_0, 25, had.lease, 4_000
    ),
    "segments.advance_log_start_offsets": lambda store, had: store.segments.advance_log_start_offsets(
        [(ORDERS_0, 25, had.lease), (ORDERS_1, 5, had.lease_1)], 4_000
    ),
    "segments.undelete": lambda store, had: store.segments.undelete(
        ORDERS_0, [had.marked.segment_id], 10, 5_000, had.lease
    ),
    "segments.put_lineage": lambda store, had: store.segments.put_lineage(ORDERS_0, _TWO_EPOCHS, had.lease),
    "segments.put_lineages": lambda store, had: store.segments.put_lineages(
        [(ORDERS_0, _TWO_EPOCHS, had.lease), (ORDERS_1, _TWO_EPOCHS, had.lease_1)]
    ),
    "segments.put_remote_partition_delete_metadata": lambda store, had: (
        store.segments.put_remote_partition_delete_metadata(_STARTED, had.lease_1)
    ),
    "leases.acquire": lambda store, _: store.leases.acquire(ORDERS_2, "run-2", LONG),
    "leases.acquire_many": lambda store, _: store.leases.acquire_many([ORDERS_0, ORDERS_2], "run-2", LONG),
    "leases.heartbeat": lambda store, had: store.leases.heartbeat(had.lease, 2 * LONG),
    "leases.heartbeat_many": lambda store, had: store.leases.heartbeat_many([had.lease, had.lease_1], 2 * LONG),
    "leases.release": lambda store, had: store.leases.release(had.lease),
    "leases.release_many": lambda store, had: store.leases.release_many([had.lease, had.lease_1]),
    "leases.begin_above": lambda store, _: store.leases.begin_above({ORDERS_0: 10, ORDERS_2: 20}),
    "leases.end": lambda store, _: store.leases.end(ORDERS_0, "ada"),
    "topics.put": lambda store, _: store.topics.put(_PAYMENTS),
    "topics.change": lambda store, _: store.topics.change(_CLUSTER, _PAYMENTS.topic_id, lambda _: _PAYMENTS),
    "safety.stop": lambda store, _: store.safety.stop("another test", "grace"),
    "safety.lift": lambda store, _: store.safety.lift("grace"),
    "safety.put_audit_result": lambda store, _: store.safety.put_audit_result(
        AuditResult(_CLUSTER, _TOPIC, True, 4_000, 2)
    ),
    "safety.note_failures": lambda store, had: store.safety.note_failures({had.finished.segment_id: "in use"}, 4_000),
    "safety.forget_failures": lambda store, had: store.safety.forget_failures([had.marked.segment_id]),
    "identity.bind_store": lambda store, _: store.identity.bind_store("the UUID of a store"),
    "generation.renew": lambda store, _: store.generation.renew(),
    "generation.confirm": lambda store, _: store.generation.confirm(Generation(1, "a token")),
    "generation.claim": lambda store, _: store.generation.claim(7),
    "generation.record_backup": lambda store, _: store.generation.record_backup(6_000),
    "clock_readings.begin": lambda store, _: store.clock_readings.begin(lambda: 6_000),
    "clock_readings.record": lambda store, _: store.clock_readings.record(_READING),
    "clock_readings.forget_later_than": lambda store, _: store.clock_readings.forget_later_than(3_500),
}
"""A call of each method that changes rows."""
