"""The contract of RemoteLogMetadataManager for queries: by offset, leader epoch, id, state and partition."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from contract.metadata_stores import MetadataStoreOpener
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
from tiered_storage.remote_log.metadata.metadata_store import MetadataStore
from tiered_storage.remote_log.model import Lease, RemoteLogSegmentId, RemoteLogSegmentMetadata, SegmentState


def test_a_finished_copy_is_found_at_each_of_its_offsets_and_no_other(store: MetadataStore, lease: Lease) -> None:
    finished = add_and_bring_to(store, a_segment(lease, 10, 19), lease, FINISHED)

    found = {offset: store.segments.remote_log_segment_metadata(ORDERS_0, offset) for offset in range(8, 22)}

    assert found == {offset: finished if 10 <= offset <= 19 else None for offset in range(8, 22)}


def test_the_stored_topic_name_is_returned_whatever_name_the_query_has(store: MetadataStore, lease: Lease) -> None:
    add_and_bring_to(store, a_segment(lease), lease, FINISHED)

    found = store.segments.remote_log_segment_metadata(replace(ORDERS_0, topic="another name"), 0)

    assert found is not None
    assert found.topic_id_partition.topic == "orders"


def test_the_copy_that_finished_first_is_found(store: MetadataStore, lease: Lease) -> None:
    early, late = a_segment(lease, 0, 9), a_segment(lease, 0, 19)
    for segment in (early, late):
        store.segments.add_remote_log_segment_metadata(segment, lease)
    for segment in (late, early):
        store.segments.update_remote_log_segment_metadata(a_step(segment, FINISHED), lease)

    found = store.segments.remote_log_segment_metadata(ORDERS_0, 5)
    assert found is not None
    assert found.segment_id == late.segment_id

    store.segments.update_remote_log_segment_metadata(a_step(late, DELETING), lease)
    found = store.segments.remote_log_segment_metadata(ORDERS_0, 5)
    assert found is not None
    assert found.segment_id == early.segment_id


def test_a_long_segment_is_found_after_many_short_ones(store: MetadataStore, lease: Lease) -> None:
    long = add_and_bring_to(store, a_segment(lease, 0, 999), lease, FINISHED)
    for start in range(0, 500, 10):
        add_and_bring_to(store, a_segment(lease, start, start + 9), lease, FINISHED)

    assert store.segments.remote_log_segment_metadata(ORDERS_0, 250) == long
    assert store.segments.remote_log_segment_metadata(ORDERS_0, 999) == long


def test_an_offset_is_found_only_at_the_leader_epoch_it_was_written_with(store: MetadataStore, lease: Lease) -> None:
    segment = a_segment(lease, 10, 29, epochs=((2, 10), (5, 20), (6, 25)))
    finished = add_and_bring_to(store, segment, lease, FINISHED)

    found = {
        epoch: [o for o in range(8, 32) if store.segments.remote_log_segment_metadata(ORDERS_0, o, epoch) == finished]
        for epoch in (1, 2, 3, 5, 6, 7)
    }

    assert found == {
        1: [],
        2: list(range(10, 20)),
        3: [],
        5: list(range(20, 25)),
        6: list(range(25, 30)),
        7: [],
    }


def test_an_epoch_that_began_before_the_segment_counts_from_its_start(store: MetadataStore, lease: Lease) -> None:
    add_and_bring_to(store, a_segment(lease, 100, 109, epochs=((4, 50),)), lease, FINISHED)

    assert store.segments.remote_log_segment_metadata(ORDERS_0, 99, 4) is None
    assert store.segments.remote_log_segment_metadata(ORDERS_0, 100, 4) is not None
    assert store.segments.highest_offset_for_epoch(ORDERS_0, 4) == 109


def test_a_copy_of_another_lineage_is_skipped(store: MetadataStore, lease: Lease) -> None:
    add_and_bring_to(store, a_segment(lease, 0, 9, epochs=((1, 0),)), lease, FINISHED)
    of_epoch_2 = add_and_bring_to(store, a_segment(lease, 0, 9, epochs=((2, 0),)), lease, FINISHED)

    assert store.segments.remote_log_segment_metadata(ORDERS_0, 5, 2) == of_epoch_2


def test_a_segment_without_epochs_is_found_by_offset_alone(store: MetadataStore, lease: Lease) -> None:
    finished = add_and_bring_to(store, a_segment(lease, epochs=()), lease, FINISHED)

    assert store.segments.remote_log_segment_metadata(ORDERS_0, 5) == finished
    assert store.segments.remote_log_segment_metadata(ORDERS_0, 5, 0) is None
    assert list(store.segments.list_remote_log_segments(ORDERS_0, 0)) == []


def test_the_highest_offset_of_an_epoch_ends_where_the_next_epoch_begins(store: MetadataStore, lease: Lease) -> None:
    add_and_bring_to(store, a_segment(lease, 0, 9, epochs=((1, 0),)), lease, FINISHED)
    add_and_bring_to(store, a_segment(lease, 10, 19, epochs=((1, 10), (3, 15))), lease, FINISHED)
    add_and_bring_to(store, a_segment(lease, 20, 29, epochs=((3, 20),)), lease, FINISHED)
    store.segments.add_remote_log_segment_metadata(a_segment(lease, 30, 39, epochs=((3, 30),)), lease)

    highest = {epoch: store.segments.highest_offset_for_epoch(ORDERS_0, epoch) for epoch in range(5)}

    assert highest == {0: None, 1: 14, 2: None, 3: 29, 4: None}


def test_the_highest_offset_may_be_that_of_a_segment_which_starts_earlier(store: MetadataStore, lease: Lease) -> None:
    for start, end in ((0, 99), (40, 45), (50, 59)):
        add_and_bring_to(store, a_segment(lease, start, end), lease, FINISHED)

    assert store.segments.highest_offset_for_epoch(ORDERS_0, 0) == 99


@pytest.mark.parametrize("state", [STARTED, FINISHED, DELETING, DELETED])
def test_a_segment_is_found_by_its_id_in_every_state_but_the_last(
    store: MetadataStore, lease: Lease, state: SegmentState
) -> None:
    segment = add_and_bring_to(store, a_segment(lease, 10, 19), lease, state)
    add_and_bring_to(store, a_segment(lease, 20, 29), lease, FINISHED)

    assert store.segments.segment_by_id(segment.segment_id) == (None if state is DELETED else segment)
    assert store.segments.segment_by_id(RemoteLogSegmentId(ORDERS_1, segment.segment_id.id)) is None
    assert store.segments.segment_by_id(RemoteLogSegmentId(ORDERS_0, "nobody's")) is None


def test_a_listing_is_by_start_offset_in_every_state_but_the_last(store: MetadataStore, lease: Lease) -> None:
    states = {30: STARTED, 10: FINISHED, 20: DELETING, 0: DELETED, 40: FINISHED}
    for start, state in states.items():
        add_and_bring_to(store, a_segment(lease, start, start + 9), lease, state)

    listed = [(segment.start_offset, segment.state) for segment in store.segments.list_remote_log_segments(ORDERS_0)]

    assert listed == [(10, FINISHED), (20, DELETING), (30, STARTED), (40, FINISHED)]
    assert store.segments.count_remote_log_segments(ORDERS_0) == {FINISHED: 2, DELETING: 1, STARTED: 1}
    assert store.segments.count_remote_log_segments(ORDERS_1) == {}


def test_the_totals_are_by_partition_and_state_and_tell_finished_copies_apart(
    store: MetadataStore, lease: Lease
) -> None:
    assert list(store.segments.segment_totals()) == []
    for start, state in ((0, FINISHED), (10, FINISHED), (30, FINISHED), (40, STARTED), (50, DELETED)):
        segment = a_segment(lease, start, start + 9, epochs=((3, start),), max_timestamp=start)
        add_and_bring_to(store, segment, lease, state)
    never_finished = a_segment(lease, 60, 64)
    add_and_bring_to(store, never_finished, lease, STARTED)
    store.segments.update_remote_log_segment_metadata(a_step(never_finished, DELETING, 3_000), lease)

    found = {(each.state, each.was_finished): each for each in store.segments.segment_totals()}

    assert {key: (each.count, each.offsets) for key, each in found.items()} == {
        (FINISHED, True): (3, 30),
        (STARTED, False): (1, 10),
        (DELETED, True): (1, 10),
        (DELETING, False): (1, 5),
    }
    finished = found[FINISHED, True]
    assert finished.topic_id_partition == ORDERS_0
    assert finished.topic_id_partition.topic == ORDERS_0.topic
    assert (finished.start_offset, finished.end_offset, finished.last_epoch) == (0, 39, 3)
    assert (finished.size, finished.max_timestamp) == (3 * never_finished.size, 30)
    assert found[DELETING, False].oldest_event_timestamp == 3_000


def test_a_listing_can_be_of_one_leader_epoch(store: MetadataStore, lease: Lease) -> None:
    for start, epochs in ((0, ((1, 0),)), (10, ((1, 10), (4, 15))), (20, ((4, 20),))):
        store.segments.add_remote_log_segment_metadata(a_segment(lease, start, start + 9, epochs=epochs), lease)

    listed = {
        epoch: [segment.start_offset for segment in store.segments.list_remote_log_segments(ORDERS_0, epoch)]
        for epoch in (1, 2, 4)
    }

    assert listed == {1: [0, 10], 2: [], 4: [10, 20]}


def test_a_long_listing_is_complete_while_its_reader_changes_segments(store: MetadataStore, lease: Lease) -> None:
    # Many segments share a start offset, also across the pages of a listing.
    begun = [a_segment(lease, start - start % 400, 9_999) for start in range(2_500)]
    store.segments.add_remote_log_segments([(segment, lease) for segment in begun])

    seen = []
    for segment in store.segments.list_remote_log_segments(ORDERS_0):
        seen.append(segment)
        if len(seen) % 500 == 0:
            store.segments.update_remote_log_segment_metadata(a_step(segment, DELETING), lease)
            store.segments.update_remote_log_segment_metadata(a_step(segment, DELETED), lease)

    assert {segment.segment_id for segment in seen} == {segment.segment_id for segment in begun}
    assert len(seen) == len(begun)
    assert [segment.start_offset for segment in seen] == sorted(segment.start_offset for segment in begun)


def test_an_unfinished_listing_does_not_block_writers(store: MetadataStore, lease: Lease) -> None:
    store.segments.add_remote_log_segment_metadata(a_segment(lease, 0, 9), lease)
    listing = store.segments.list_remote_log_segments(ORDERS_0)
    next(listing)

    store.segments.add_remote_log_segment_metadata(a_segment(lease, 10, 19), lease)

    assert len(list(store.segments.list_remote_log_segments(ORDERS_0))) == 2


def test_partitions_are_distinguished_by_topic_id_not_by_name(store: MetadataStore, lease: Lease) -> None:
    recreated = replace(ORDERS_0, topic_id="orders-created-againAA")
    its_lease = store.leases.acquire(recreated, "run-1", 60_000)
    old = add_and_bring_to(store, a_segment(lease), lease, FINISHED)
    new = add_and_bring_to(store, a_segment(its_lease), its_lease, FINISHED)
    store.segments.advance_log_start_offset(ORDERS_0, 7, lease)

    assert store.segments.remote_log_segment_metadata(ORDERS_0, 5) == old
    assert store.segments.remote_log_segment_metadata(recreated, 5) == new
    assert store.segments.log_start_offset(recreated) is None
    assert set(store.segments.list_partitions()) == {ORDERS_0, recreated}


def test_one_segment_id_in_two_partitions_names_two_segments(store: MetadataStore, lease: Lease) -> None:
    other_lease = store.leases.acquire(ORDERS_1, "run-1", 60_000)
    here = add_and_bring_to(store, a_segment(lease), lease, FINISHED)
    there = a_segment(other_lease, segment_id=RemoteLogSegmentId(ORDERS_1, here.segment_id.id))

    store.segments.add_remote_log_segment_metadata(there, other_lease)

    assert list(store.segments.list_remote_log_segments(ORDERS_0)) == [here]
    assert list(store.segments.list_remote_log_segments(ORDERS_1)) == [there]


def test_partitions_are_listed_once_they_had_a_segment(store: MetadataStore, lease: Lease) -> None:
    other_lease = store.leases.acquire(ORDERS_1, "run-1", 60_000)
    store.segments.advance_log_start_offset(ORDERS_0, 1, lease)
    assert store.segments.list_partitions() == []

    store.segments.add_remote_log_segment_metadata(a_segment(other_lease), other_lease)
    store.segments.add_remote_log_segment_metadata(a_segment(lease), lease)

    assert store.segments.list_partitions() == [ORDERS_0, ORDERS_1]
    assert [partition.topic for partition in store.segments.list_partitions()] == ["orders", "orders"]


def test_one_connection_sees_at_once_what_another_wrote(
    store: MetadataStore, opener: MetadataStoreOpener, tmp_path: Path, clock: ManualClock, lease: Lease
) -> None:
    with opener(tmp_path, clock) as other:
        finished = add_and_bring_to(store, a_segment(lease), lease, FINISHED)
        store.segments.advance_log_start_offset(ORDERS_0, 3, lease)

        assert other.segments.remote_log_segment_metadata(ORDERS_0, 5) == finished
        assert other.segments.log_start_offset(ORDERS_0) == 3

        other.segments.update_remote_log_segment_metadata(a_step(finished, DELETING), lease)
        assert store.segments.remote_log_segment_metadata(ORDERS_0, 5) is None


def test_deleted_segments_are_listed_by_their_offsets(store: MetadataStore, lease: Lease) -> None:
    spans = [(0, 9), (10, 19), (10, 29), (20, 29), (30, 39), (35, 36)]
    deleted = [add_and_bring_to(store, a_segment(lease, *span), lease, DELETED) for span in reversed(spans)]
    for state in (FINISHED, DELETING):
        add_and_bring_to(store, a_segment(lease, 0, 39), lease, state)

    def listed(start: int, end: int) -> list[RemoteLogSegmentMetadata]:
        return list(store.segments.list_deleted_segments(ORDERS_0, start, end))

    by_start = sorted(deleted, key=lambda each: (each.start_offset, each.segment_id.id))
    assert listed(0, 2**63 - 1) == by_start
    assert listed(9, 10) == [each for each in by_start if each.start_offset <= 10]
    assert listed(19, 19) == [each for each in by_start if each.start_offset == 10]
    assert listed(37, 100) == [each for each in by_start if each.end_offset == 39]
    assert listed(40, 100) == []
    assert list(store.segments.list_deleted_segments(replace(ORDERS_0, partition=9), 0, 100)) == []
