"""Metadata stores for tests: the implementations that the contract suites run against, and the values they use."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from recipes.metadata import MemoryMetadata
from servers.postgres import postgres_store
from tiered_storage.clock import BootTime, Clock, machine_boot_time
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.remote_log.metadata.metadata_store import MetadataStore
from tiered_storage.remote_log.metadata.sql.store import SqlMetadataStore, open_metadata_store
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

ORDERS_0 = TopicIdPartition("cluster-1", "topic-id-of-orders", 0, "orders")
ORDERS_1 = TopicIdPartition("cluster-1", "topic-id-of-orders", 1, "orders")

_numbers = itertools.count(1)


class ManualClock:
    """A clock that is stopped until it is moved: `now` (ms) is set when time passes, for the machine too."""

    started = 1_600_000_000_000
    """When the machine started, by this clock (ms)."""
    boot_id = machine_boot_time().boot_id
    """The machine's own: a test may hand its clock to a command too, see time_module."""
    is_synchronised = False
    """Whether the kernel says that NTP synchronised it."""

    def __init__(self, now: int = 1_700_000_000_000) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now

    def boot_time(self) -> BootTime:
        """Return how long the machine runs."""
        return BootTime(self.boot_id, self() - self.started, self.is_synchronised)

    def time_module(self) -> SimpleNamespace:
        """Return what may stand in the place of `time` in tiered_storage.clock."""
        return SimpleNamespace(
            time_ns=lambda: self() * 1_000_000,
            clock_gettime_ns=lambda _: self.boot_time().ms * 1_000_000,
            CLOCK_BOOTTIME=None,
        )

    def step(self, by: int) -> None:
        """Set the clock ahead by so many ms, or back: no time passes."""
        self.now += by
        self.started += by

    def restart(self, off_for: int = 60_000) -> None:
        """Let the machine be off for so many ms, by what the clock shows then, and start again."""
        self.now += off_for
        self.started = self.now - 10_000
        self.boot_id = f"start at {self.started}"


def sqlite_url(directory: Path) -> str:
    """Return the URL of a SQLite store in `directory`."""
    return f"sqlite:///{directory / 'metadata.sqlite'}"


def sqlite_store(directory: Path, clock: Clock) -> SqlMetadataStore:
    """Open the SQLite store in `directory`."""
    return open_metadata_store(sqlite_url(directory), clock)


def memory_store(directory: Path, clock: Clock) -> MetadataStore:
    """Open the example of CONTRIBUTING.md's recipe, which uses no SQL, by the name of `directory`."""
    configs = {"space": str(directory)}
    return MemoryMetadata.open("memory://metadata", clock, busy_timeout_ms=0, create=True, configs=configs)


MetadataStoreOpener = Callable[[Path, Clock], MetadataStore]

METADATA_STORES = [
    pytest.param(sqlite_store, id="sqlite"),
    pytest.param(postgres_store, id="postgresql"),
    pytest.param(memory_store, id="memory"),
]
"""Another implementation joins the contract suites as one more line here."""


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
        "segment_id": RemoteLogSegmentId(lease.topic_id_partition, f"segment-{next(_numbers):06}"),
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
