"""The contract of RemoteLogMetadataManager for who may write, and for many writes in one call."""

from __future__ import annotations

from dataclasses import replace

import pytest

from support.clocks import ManualClock
from support.metadata_stores import (
    DELETED,
    DELETING,
    FINISHED,
    ORDERS_0,
    ORDERS_1,
    STARTED,
    a_segment,
    a_step,
    add_and_bring_to,
)
from tiered_storage.errors import ConfigurationError, InvalidTransitionError, LeaseLostError
from tiered_storage.remote_log.metadata.metadata_store import MetadataStore
from tiered_storage.remote_log.model import Lease


def test_a_lease_that_was_taken_over_changes_nothing(store: MetadataStore, lease: Lease, clock: ManualClock) -> None:
    started = a_segment(lease)
    store.segments.add_remote_log_segment_metadata(started, lease)
    clock.now = lease.expires_at
    store.leases.acquire(ORDERS_0, "run-2", 60_000)

    with pytest.raises(LeaseLostError, match=r"run-2 \(lease 2\)"):
        store.segments.add_remote_log_segment_metadata(a_segment(lease, 10, 19), lease)
    for state in (STARTED, FINISHED, DELETING):
        with pytest.raises(LeaseLostError):
            store.segments.update_remote_log_segment_metadata(a_step(started, state), lease)
    with pytest.raises(LeaseLostError):
        store.segments.advance_log_start_offset(ORDERS_0, 5, lease)

    assert list(store.segments.list_remote_log_segments(ORDERS_0)) == [started]
    assert store.segments.log_start_offset(ORDERS_0) is None


def test_an_expired_lease_that_nobody_took_still_commits(
    store: MetadataStore, lease: Lease, clock: ManualClock
) -> None:
    started = a_segment(lease)
    store.segments.add_remote_log_segment_metadata(started, lease)
    clock.now = lease.expires_at + 1

    assert store.segments.update_remote_log_segment_metadata(a_step(started, FINISHED), lease).state is FINISHED


def test_a_released_lease_can_repeat_its_steps_until_the_next_lease(store: MetadataStore, lease: Lease) -> None:
    finished = add_and_bring_to(store, a_segment(lease), lease, FINISHED)
    store.leases.release(lease)

    assert store.segments.update_remote_log_segment_metadata(a_step(finished, FINISHED), lease) == finished

    store.leases.acquire(ORDERS_0, "run-2", 60_000)
    with pytest.raises(LeaseLostError):
        store.segments.update_remote_log_segment_metadata(a_step(finished, FINISHED), lease)


def test_a_copy_is_finished_only_under_the_lease_it_began_under(store: MetadataStore, lease: Lease) -> None:
    started = a_segment(lease)
    store.segments.add_remote_log_segment_metadata(started, lease)
    newer = store.leases.acquire(ORDERS_0, "run-1", 60_000)

    with pytest.raises(LeaseLostError, match="began under lease 1"):
        store.segments.update_remote_log_segment_metadata(a_step(started, FINISHED), newer)

    assert store.segments.update_remote_log_segment_metadata(a_step(started, DELETING), newer).state is DELETING
    assert store.segments.update_remote_log_segment_metadata(a_step(started, DELETED), newer).state is DELETED


def test_a_finished_copy_is_seen_as_finished_by_later_holders(store: MetadataStore, lease: Lease) -> None:
    finished = add_and_bring_to(store, a_segment(lease), lease, FINISHED)
    newer = store.leases.acquire(ORDERS_0, "run-1", 60_000)

    assert store.segments.update_remote_log_segment_metadata(a_step(finished, FINISHED), newer) == finished


def test_an_invented_lease_changes_nothing(store: MetadataStore, lease: Lease) -> None:
    invented = replace(lease, fencing_number=lease.fencing_number + 1)
    nowhere = Lease(ORDERS_1, "run-1", 1, lease.expires_at)

    for never_given in (invented, nowhere):
        with pytest.raises(LeaseLostError, match="never granted"):
            store.segments.add_remote_log_segment_metadata(a_segment(never_given), never_given)

    assert store.segments.list_partitions() == []


def test_a_lease_of_another_partition_is_refused(store: MetadataStore, lease: Lease) -> None:
    other = store.leases.acquire(ORDERS_1, "run-1", 60_000)

    with pytest.raises(ConfigurationError, match=r"orders-0.*orders-1"):
        store.segments.add_remote_log_segment_metadata(a_segment(lease), other)
    with pytest.raises(ConfigurationError):
        store.segments.update_remote_log_segment_metadata(a_step(a_segment(lease), FINISHED), other)
    with pytest.raises(ConfigurationError):
        store.segments.advance_log_start_offset(ORDERS_0, 1, other)


def test_refused_additions_do_not_affect_the_others(store: MetadataStore, lease: Lease) -> None:
    lost = store.leases.acquire(ORDERS_1, "run-1", 60_000)
    store.leases.acquire(ORDERS_1, "run-1", 60_000)
    first, last = a_segment(lease, 0, 9), a_segment(lease, 10, 19)

    outcomes = store.segments.add_remote_log_segments(
        [(first, lease), (a_segment(lost), lost), (replace(first, size=1), lease), (first, lease), (last, lease)]
    )

    assert [type(outcome).__name__ for outcome in outcomes] == [
        "RemoteLogSegmentMetadata",
        "LeaseLostError",
        "InvalidTransitionError",
        "RemoteLogSegmentMetadata",
        "RemoteLogSegmentMetadata",
    ]
    assert list(store.segments.list_remote_log_segments(ORDERS_0)) == [first, last]
    assert list(store.segments.list_remote_log_segments(ORDERS_1)) == []


def test_refused_steps_do_not_affect_the_others(store: MetadataStore, lease: Lease) -> None:
    lost = store.leases.acquire(ORDERS_1, "run-1", 60_000)
    begun = [a_segment(lease, 0, 9), a_segment(lease, 10, 19), a_segment(lost, 0, 9)]
    store.segments.add_remote_log_segments([(begun[0], lease), (begun[1], lease), (begun[2], lost)])
    store.leases.acquire(ORDERS_1, "run-1", 60_000)

    outcomes = store.segments.update_remote_log_segments(
        [
            (a_step(begun[1], FINISHED), lease),
            (a_step(begun[2], FINISHED), lost),
            (a_step(begun[1], DELETED), lease),
            (a_step(begun[0], DELETING), lease),
            (a_step(begun[0], DELETED), lease),
        ]
    )

    assert outcomes[0] == replace(begun[1], state=FINISHED, event_timestamp=2_000)
    assert isinstance(outcomes[1], LeaseLostError)
    assert isinstance(outcomes[2], InvalidTransitionError)
    assert outcomes[4] == replace(begun[0], state=DELETED, event_timestamp=2_000)
    assert list(store.segments.list_remote_log_segments(ORDERS_0)) == [outcomes[0]]
    assert list(store.segments.list_remote_log_segments(ORDERS_1)) == [begun[2]]


def test_many_copies_of_an_offset_that_finish_at_once_finish_in_their_order(store: MetadataStore, lease: Lease) -> None:
    begun = [a_segment(lease) for _ in range(3)]
    store.segments.add_remote_log_segments([(segment, lease) for segment in begun])

    store.segments.update_remote_log_segments([(a_step(segment, FINISHED), lease) for segment in reversed(begun)])

    found = store.segments.remote_log_segment_metadata(ORDERS_0, 0)
    assert found is not None
    assert found.segment_id == begun[2].segment_id


def test_an_invalid_argument_stops_the_whole_call_before_it_writes(store: MetadataStore, lease: Lease) -> None:
    with pytest.raises(ConfigurationError):
        store.segments.add_remote_log_segments([(a_segment(lease), lease), (a_segment(lease, fencing_number=9), lease)])

    assert list(store.segments.list_remote_log_segments(ORDERS_0)) == []


def test_empty_calls_do_nothing(store: MetadataStore) -> None:
    assert store.segments.add_remote_log_segments([]) == []
    assert store.segments.update_remote_log_segments([]) == []


def test_more_segments_than_fit_in_one_transaction_are_all_written(store: MetadataStore) -> None:
    partitions = [replace(ORDERS_0, partition=number) for number in range(1_100)]
    granted = store.leases.acquire_many(partitions, "run-1", 60_000).granted
    begun = [(a_segment(lease, start, start + 9), lease) for lease in granted for start in (0, 10)]

    added = store.segments.add_remote_log_segments(begun)
    finished = store.segments.update_remote_log_segments(
        [(a_step(segment, FINISHED), lease) for segment, lease in begun]
    )

    assert added == [segment for segment, _ in begun]
    assert [store.segments.remote_log_segment_metadata(partition, 15) for partition in partitions] == finished[1::2]
    assert store.segments.list_partitions() == partitions
