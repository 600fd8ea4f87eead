"""Metadata stores for tests: values to write, and what is then in the tables."""

from __future__ import annotations

import hashlib
import itertools
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, MetaData, select

from tiered_storage.clock import Clock
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.remote_log.metadata.metadata_store import MetadataStore
from tiered_storage.remote_log.metadata.sql.store import SqlMetadataStore, open_metadata_store
from tiered_storage.remote_log.metadata.topic.store import TopicMetadataStore
from tiered_storage.remote_log.model import (
    Lease,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    SegmentState,
    TopicIdPartition,
)

STARTED = SegmentState.COPY_SEGMENT_STARTED
FINISHED = SegmentState.COPY_SEGMENT_FINISHED
DELETING = SegmentState.DELETE_SEGMENT_STARTED
DELETED = SegmentState.DELETE_SEGMENT_FINISHED

ORDERS_0 = TopicIdPartition("cluster-1", "topic-id-of-ordersAAAA", 0, "orders")
ORDERS_1 = TopicIdPartition("cluster-1", "topic-id-of-ordersAAAA", 1, "orders")

_numbers = itertools.count(1)


def sqlite_url(directory: Path) -> str:
    """Return the URL of a SQLite store in `directory`."""
    return f"sqlite:///{directory / 'metadata.sqlite'}"


def sqlite_store(directory: Path, clock: Clock) -> SqlMetadataStore:
    """Open the SQLite store in `directory`."""
    return open_metadata_store(sqlite_url(directory), clock)


def topic_options(bootstrap_servers: str, directory: Path, **changed: object) -> dict[str, str]:
    """Return the options of a metadata topic of its own for `directory`; underscores in `changed` are dots."""
    digest = hashlib.sha256(str(directory).encode()).hexdigest()[:16]
    options: dict[str, object] = {
        "remote.log.metadata.common.client.bootstrap.servers": bootstrap_servers,
        "remote.log.metadata.cache.directory": directory / "metadata-topic",
        "remote.log.metadata.topic.name": f"metadata-{digest}",
        "remote.log.metadata.topic.num.partitions": 3,
        "remote.log.metadata.topic.replication.factor": 1,
        "remote.log.metadata.topic.min.isr": 1,
        "remote.log.metadata.consume.wait.ms": 60_000,
    }
    options |= {f"remote.log.metadata.{name.replace('_', '.')}": value for name, value in changed.items()}
    return {name: str(value) for name, value in options.items()}


def topic_store(bootstrap_servers: str, directory: Path, clock: Clock, **changed: object) -> TopicMetadataStore:
    """Open the store in `directory` whose segments are in a topic of its own; `changed` are options."""
    return TopicMetadataStore.open(
        sqlite_url(directory),
        clock,
        busy_timeout_ms=30_000,
        create=True,
        configs=topic_options(bootstrap_servers, directory, **changed),
    )


def a_segment(
    lease: Lease,
    start_offset: int = 0,
    end_offset: int = 9,
    *,
    epochs: tuple[tuple[int, int], ...] | None = None,
    **changed: Any,
) -> RemoteLogSegmentMetadata:
    """Return a new segment that begins under `lease`; `epochs` are (epoch, start offset), epoch 0 where left out."""
    entries = ((0, start_offset),) if epochs is None else epochs
    values: dict[str, Any] = {
        "segment_id": RemoteLogSegmentId(lease.topic_id_partition, f"segment-{next(_numbers):06}AAAAAAAA"),
        "start_offset": start_offset,
        "end_offset": end_offset,
        "max_timestamp": -1,
        "event_timestamp": 1_000,
        "size": 4_096,
        "leader_epochs": tuple(EpochEntry(epoch, start) for epoch, start in entries),
        "broker_id": 3,
        "fencing_number": lease.fencing_number,
    }
    return RemoteLogSegmentMetadata(**{**values, **changed})


def a_step(
    segment: RemoteLogSegmentMetadata, state: SegmentState, event_timestamp: int = 2_000, **fields: Any
) -> RemoteLogSegmentMetadataUpdate:
    """Return the step of `segment` to `state`."""
    return RemoteLogSegmentMetadataUpdate(segment.segment_id, state, event_timestamp, **fields)


def add_and_bring_to(
    store: MetadataStore, segment: RemoteLogSegmentMetadata, lease: Lease, state: SegmentState
) -> RemoteLogSegmentMetadata:
    """Add `segment` and take the steps that lead to `state`; return what it then is."""
    store.segments.add_remote_log_segment_metadata(segment, lease)
    now = segment
    for next_state in SegmentState:
        if STARTED < next_state <= state:
            now = store.segments.update_remote_log_segment_metadata(a_step(segment, next_state), lease)
    return now


def dump(connection: Connection, tables: MetaData) -> dict[str, list[tuple[Any, ...]]]:
    """Return the rows of `tables` by name, in a fixed order."""
    return {
        table.name: [tuple(row) for row in connection.execute(select(table).order_by(*table.columns))]
        for table in tables.sorted_tables
    }
