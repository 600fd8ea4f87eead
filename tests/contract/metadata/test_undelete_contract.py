"""The contract of RemoteLogMetadataManager for an undelete."""

from __future__ import annotations

from dataclasses import replace

import pytest

from support.clocks import ManualClock
from support.metadata_stores import DELETED, DELETING, FINISHED, ORDERS_0, ORDERS_1, STARTED, a_segment, a_step
from tiered_storage.errors import ConfigurationError, InvalidTransitionError, LeaseLostError
from tiered_storage.remote_log.metadata.metadata_store import MetadataStore
from tiered_storage.remote_log.model import (
    Lease,
    PartitionDeleteState,
    PartitionState,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemotePartitionDeleteMetadata,
    SegmentState,
)


def finished_once(store: MetadataStore, lease: Lease, start: int, state: SegmentState) -> RemoteLogSegmentMetadata:
    """Add a segment of ten offsets that was sent, and take it through its life up to `state`."""
    segment = a_segment(lease, start, start + 9)
    store.segments.add_remote_log_segment_metadata(segment, lease)
    for step in (FINISHED, DELETING, DELETED):
        if step <= state:
            update = a_step(segment, step, custom_metadata=b"sent")
            segment = store.segments.update_remote_log_segment_metadata(update, lease)
    return segment


def test_an_undelete_is_one_change(store: MetadataStore, lease: Lease, clock: ManualClock) -> None:
    marked = finished_once(store, lease, 0, DELETING)
    kept = finished_once(store, lease, 10, FINISHED)
    store.segments.advance_log_start_offset(ORDERS_0, 0, lease)
    store.segments.advance_log_start_offset(ORDERS_0, 10, lease, 1_000)
    for step in (PartitionDeleteState.MARKED, PartitionDeleteState.STARTED):
        store.segments.put_remote_partition_delete_metadata(RemotePartitionDeleteMetadata(ORDERS_0, step, 1), lease)

    [returned] = store.segments.undelete(ORDERS_0, [marked.segment_id], 0, clock.now, lease)

    assert returned == replace(marked, state=FINISHED, event_timestamp=clock.now)
    assert list(store.segments.list_remote_log_segments(ORDERS_0)) == [returned, kept]
    assert store.segments.remote_log_segment_metadata(ORDERS_0, 5) == returned
    state = store.segments.partition_state(ORDERS_0)
    assert (state, state.earlier_log_starts) == (PartitionState(0), ())


def test_a_mark_of_a_clock_that_was_ahead_is_taken_back(store: MetadataStore, lease: Lease, clock: ManualClock) -> None:
    finished = finished_once(store, lease, 0, FINISHED)
    mark = a_step(finished, DELETING, clock.now + 1_000_000)
    marked = store.segments.update_remote_log_segment_metadata(mark, lease)
    store.segments.advance_log_start_offset(ORDERS_0, 10, lease, 1_000)

    [returned] = store.segments.undelete(ORDERS_0, [marked.segment_id], 0, clock.now, lease)

    assert returned == replace(marked, state=FINISHED, event_timestamp=clock.now)
    assert list(store.segments.list_remote_log_segments(ORDERS_0)) == [returned]


@pytest.mark.parametrize("state", [STARTED, FINISHED, DELETED])
def test_only_marked_segments_are_undeleted(store: MetadataStore, lease: Lease, state: SegmentState) -> None:
    other = finished_once(store, lease, 0, state)
    marked = finished_once(store, lease, 10, DELETING)
    store.segments.advance_log_start_offset(ORDERS_0, 20, lease, 1_000)

    with pytest.raises(InvalidTransitionError, match=f"{state.name}"):
        store.segments.undelete(ORDERS_0, [marked.segment_id, other.segment_id], 0, 2_000, lease)

    assert store.segments.segment_by_id(marked.segment_id) == marked, "all of it or nothing"
    assert store.segments.log_start_offset(ORDERS_0) == 20


def test_a_copy_that_never_finished_is_not_undeleted(store: MetadataStore, lease: Lease) -> None:
    """A zombie would make it visible otherwise."""
    segment = a_segment(lease)
    store.segments.add_remote_log_segment_metadata(segment, lease)
    store.segments.update_remote_log_segment_metadata(a_step(segment, DELETING), lease)

    with pytest.raises(InvalidTransitionError, match="marked"):
        store.segments.undelete(ORDERS_0, [segment.segment_id], 0, 2_000, lease)


def test_an_unknown_segment_is_not_undeleted(store: MetadataStore, lease: Lease) -> None:
    with pytest.raises(InvalidTransitionError, match="not known"):
        store.segments.undelete(ORDERS_0, [RemoteLogSegmentId(ORDERS_0, "unknown")], 0, 2_000, lease)


def test_an_undelete_under_a_lost_lease_changes_nothing(store: MetadataStore, lease: Lease) -> None:
    marked = finished_once(store, lease, 0, DELETING)
    store.leases.acquire(ORDERS_0, "run-1", 60_000)

    with pytest.raises(LeaseLostError):
        store.segments.undelete(ORDERS_0, [marked.segment_id], 0, 2_000, lease)
    assert store.segments.segment_by_id(marked.segment_id) == marked


def test_an_undelete_is_of_one_partition(store: MetadataStore, lease: Lease) -> None:
    other = store.leases.acquire(ORDERS_1, "run-1", 60_000)
    marked = finished_once(store, other, 0, DELETING)

    for partition in (ORDERS_0, ORDERS_1):
        with pytest.raises(ConfigurationError):
            store.segments.undelete(partition, [marked.segment_id], 0, 2_000, lease)


def test_a_finished_deletion_is_not_undone(store: MetadataStore, lease: Lease) -> None:
    for step in PartitionDeleteState:
        store.segments.put_remote_partition_delete_metadata(RemotePartitionDeleteMetadata(ORDERS_0, step, 1), lease)

    with pytest.raises(InvalidTransitionError, match="FINISHED"):
        store.segments.undelete(ORDERS_0, [], 0, 2_000, lease)
