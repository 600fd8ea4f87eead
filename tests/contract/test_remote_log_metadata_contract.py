"""The contract of RemoteLogMetadataManager for segments."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from contract.metadata_stores import METADATA_STORES, MetadataStoreOpener
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
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.remote_log.metadata.metadata_store import MetadataStore
from tiered_storage.remote_log.model import (
    MAX_EARLIER_LOG_STARTS,
    UNKNOWN_SIZE,
    EarlierLogStart,
    Lease,
    PartitionDeleteState,
    PartitionState,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemotePartitionDeleteMetadata,
    RolledSegment,
    SegmentState,
)

NEXT_STATES = {
    STARTED: {STARTED, FINISHED, DELETING},
    FINISHED: {FINISHED, DELETING},
    DELETING: {DELETING, DELETED},
    DELETED: {DELETED},
}


@pytest.fixture(params=METADATA_STORES)
def opener(request: pytest.FixtureRequest) -> MetadataStoreOpener:
    implementation: MetadataStoreOpener = request.param
    return implementation


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(opener: MetadataStoreOpener, tmp_path: Path, clock: ManualClock) -> Iterator[MetadataStore]:
    with opener(tmp_path, clock) as opened:
        yield opened


@pytest.fixture
def lease(store: MetadataStore) -> Lease:
    return store.leases.acquire(ORDERS_0, "run-1", 60_000)


def test_a_copy_that_started_is_listed_but_not_read(store: MetadataStore, lease: Lease) -> None:
    segment = a_segment(lease)

    store.segments.add_remote_log_segment_metadata(segment, lease)

    assert list(store.segments.list_remote_log_segments(ORDERS_0)) == [segment]
    assert store.segments.remote_log_segment_metadata(ORDERS_0, 5) is None
    assert store.segments.highest_offset_for_epoch(ORDERS_0, 0) is None


def test_a_finished_copy_is_found_at_each_of_its_offsets_and_no_other(store: MetadataStore, lease: Lease) -> None:
    finished = add_and_bring_to(store, a_segment(lease, 10, 19), lease, FINISHED)

    found = {offset: store.segments.remote_log_segment_metadata(ORDERS_0, offset) for offset in range(8, 22)}

    assert found == {offset: finished if 10 <= offset <= 19 else None for offset in range(8, 22)}


def test_all_fields_of_a_segment_are_read_back(store: MetadataStore, lease: Lease) -> None:
    segment = a_segment(
        lease,
        2**40,
        2**40 + 9,
        epochs=((3, 2**40), (7, 2**40 + 4)),
        size=2**31,
        broker_id=-1,
        custom_metadata=bytes(range(256)),
        max_timestamp=2**41,
        event_timestamp=2**42,
    )

    store.segments.add_remote_log_segment_metadata(segment, lease)

    (listed,) = store.segments.list_remote_log_segments(ORDERS_0)
    assert listed == segment
    assert listed.topic_id_partition.topic == "orders"


def test_the_stored_topic_name_is_returned_whatever_name_the_query_has(store: MetadataStore, lease: Lease) -> None:
    add_and_bring_to(store, a_segment(lease), lease, FINISHED)

    found = store.segments.remote_log_segment_metadata(replace(ORDERS_0, topic="another name"), 0)

    assert found is not None
    assert found.topic_id_partition.topic == "orders"


def test_adding_the_same_segment_again_does_nothing(store: MetadataStore, lease: Lease) -> None:
    segment = a_segment(lease)
    store.segments.add_remote_log_segment_metadata(segment, lease)

    store.segments.add_remote_log_segment_metadata(segment, lease)

    assert list(store.segments.list_remote_log_segments(ORDERS_0)) == [segment]


def test_a_known_id_with_other_content_is_refused(store: MetadataStore, lease: Lease) -> None:
    segment = a_segment(lease)
    store.segments.add_remote_log_segment_metadata(segment, lease)

    with pytest.raises(InvalidTransitionError, match="is known already"):
        store.segments.add_remote_log_segment_metadata(replace(segment, size=1), lease)

    assert list(store.segments.list_remote_log_segments(ORDERS_0)) == [segment]


@pytest.mark.parametrize("state", [FINISHED, DELETING, DELETED])
def test_a_segment_can_only_begin_as_started(store: MetadataStore, lease: Lease, state: SegmentState) -> None:
    with pytest.raises(InvalidTransitionError, match=f"not as {state.name}"):
        store.segments.add_remote_log_segment_metadata(a_segment(lease, state=state), lease)

    assert list(store.segments.list_remote_log_segments(ORDERS_0)) == []


def test_a_segment_with_another_fencing_number_than_its_lease_is_refused(store: MetadataStore, lease: Lease) -> None:
    with pytest.raises(ConfigurationError, match="fencing number"):
        store.segments.add_remote_log_segment_metadata(a_segment(lease, fencing_number=99), lease)


@pytest.mark.parametrize(("start", "end"), [(10, 9), (-1, 5)])
def test_impossible_offsets_are_refused(store: MetadataStore, lease: Lease, start: int, end: int) -> None:
    with pytest.raises(ConfigurationError, match=f"offsets {start} to {end}"):
        store.segments.add_remote_log_segment_metadata(a_segment(lease, start, end), lease)


def test_an_unknown_segment_cannot_be_updated(store: MetadataStore, lease: Lease) -> None:
    with pytest.raises(InvalidTransitionError, match="is not known"):
        store.segments.update_remote_log_segment_metadata(a_step(a_segment(lease), FINISHED), lease)


@pytest.mark.parametrize("target", SegmentState)
@pytest.mark.parametrize("state", SegmentState)
def test_a_segment_changes_state_only_along_its_life_cycle(
    store: MetadataStore, lease: Lease, state: SegmentState, target: SegmentState
) -> None:
    before = add_and_bring_to(store, a_segment(lease), lease, state)
    step = a_step(before, target, 9_000)

    if target in NEXT_STATES[state]:
        assert store.segments.update_remote_log_segment_metadata(step, lease).state is target
    else:
        with pytest.raises(InvalidTransitionError, match=f"{state.name} and cannot become {target.name}"):
            store.segments.update_remote_log_segment_metadata(step, lease)
        assert store.segments.update_remote_log_segment_metadata(a_step(before, state), lease) == before


@pytest.mark.parametrize("state", SegmentState)
def test_a_repeated_step_changes_nothing(store: MetadataStore, lease: Lease, state: SegmentState) -> None:
    before = add_and_bring_to(store, a_segment(lease), lease, state)

    repeated = store.segments.update_remote_log_segment_metadata(
        a_step(before, state, 9_000, custom_metadata=b"other", max_timestamp=9), lease
    )

    assert repeated == before


def test_a_finished_copy_keeps_its_fields_through_later_steps(store: MetadataStore, lease: Lease) -> None:
    segment = a_segment(lease)
    store.segments.add_remote_log_segment_metadata(segment, lease)

    finishing = a_step(segment, FINISHED, 3_000, custom_metadata=b"where it lies", max_timestamp=2_500)
    finished = store.segments.update_remote_log_segment_metadata(finishing, lease)
    deleting = store.segments.update_remote_log_segment_metadata(a_step(segment, DELETING, 4_000), lease)

    assert finished == replace(
        segment, state=FINISHED, event_timestamp=3_000, custom_metadata=b"where it lies", max_timestamp=2_500
    )
    assert deleting == replace(finished, state=DELETING, event_timestamp=4_000)
    assert list(store.segments.list_remote_log_segments(ORDERS_0)) == [deleting]


ROLLED = RolledSegment(20, 29, 5_000, (EpochEntry(1, 20), EpochEntry(3, 25)))


def a_bounded_segment(lease: Lease) -> RemoteLogSegmentMetadata:
    return a_segment(lease, 10, 1_000_000, epochs=((1, 10), (3, 25)), size=UNKNOWN_SIZE)


def test_a_copy_that_cuts_its_segment_sets_offsets_size_and_epochs(store: MetadataStore, lease: Lease) -> None:
    bounded = a_bounded_segment(lease)
    store.segments.add_remote_log_segment_metadata(bounded, lease)

    updated = store.segments.update_remote_log_segment_metadata(a_step(bounded, FINISHED, rolled=ROLLED), lease)

    assert (updated.start_offset, updated.end_offset, updated.size, updated.leader_epochs) == (
        ROLLED.start_offset,
        ROLLED.end_offset,
        ROLLED.size,
        ROLLED.leader_epochs,
    )
    assert list(store.segments.list_remote_log_segments(ORDERS_0)) == [updated]
    found = {offset: store.segments.remote_log_segment_metadata(ORDERS_0, offset) for offset in (19, 20, 29, 30)}
    assert found == {19: None, 20: updated, 29: updated, 30: None}
    assert store.segments.highest_offset_for_epoch(ORDERS_0, 1) == 24
    assert store.segments.highest_offset_for_epoch(ORDERS_0, 3) == 29


@pytest.mark.parametrize(
    "rolled",
    [
        None,
        replace(ROLLED, start_offset=9),
        replace(ROLLED, end_offset=1_000_001),
        replace(ROLLED, end_offset=ROLLED.start_offset - 1),
    ],
    ids=["none", "starts before the bounds", "ends after the bounds", "ends before it starts"],
)
def test_a_copy_that_cuts_its_segment_finishes_only_within_its_bounds(
    store: MetadataStore, lease: Lease, rolled: RolledSegment | None
) -> None:
    bounded = a_bounded_segment(lease)
    store.segments.add_remote_log_segment_metadata(bounded, lease)

    with pytest.raises(InvalidTransitionError):
        store.segments.update_remote_log_segment_metadata(a_step(bounded, FINISHED, rolled=rolled), lease)

    assert list(store.segments.list_remote_log_segments(ORDERS_0)) == [bounded]


def test_a_segment_of_known_offsets_gets_no_others(store: MetadataStore, lease: Lease) -> None:
    segment = a_segment(lease, 10, 1_000_000)
    store.segments.add_remote_log_segment_metadata(segment, lease)

    with pytest.raises(InvalidTransitionError):
        store.segments.update_remote_log_segment_metadata(a_step(segment, FINISHED, rolled=ROLLED), lease)

    assert list(store.segments.list_remote_log_segments(ORDERS_0)) == [segment]


def test_a_copy_that_cut_nothing_is_deleted_within_its_bounds(store: MetadataStore, lease: Lease) -> None:
    bounded = a_bounded_segment(lease)
    store.segments.add_remote_log_segment_metadata(bounded, lease)

    marked = store.segments.update_remote_log_segment_metadata(a_step(bounded, DELETING), lease)

    assert marked.is_bounded_only
    assert list(store.segments.list_remote_log_segments(ORDERS_0)) == [marked]


def test_a_segment_that_is_being_deleted_is_no_longer_read(store: MetadataStore, lease: Lease) -> None:
    add_and_bring_to(store, a_segment(lease), lease, DELETING)

    assert store.segments.remote_log_segment_metadata(ORDERS_0, 5) is None
    assert store.segments.highest_offset_for_epoch(ORDERS_0, 0) is None


def test_a_deleted_segment_is_not_listed_and_cannot_be_added_again(store: MetadataStore, lease: Lease) -> None:
    segment = a_segment(lease)
    add_and_bring_to(store, segment, lease, DELETED)

    with pytest.raises(InvalidTransitionError):
        store.segments.add_remote_log_segment_metadata(segment, lease)
    for state in (STARTED, FINISHED, DELETING):
        with pytest.raises(InvalidTransitionError):
            store.segments.update_remote_log_segment_metadata(a_step(segment, state), lease)

    assert list(store.segments.list_remote_log_segments(ORDERS_0)) == []
    assert store.segments.remote_log_segment_metadata(ORDERS_0, 5) is None
    assert store.segments.list_partitions() == [ORDERS_0]


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
    recreated = replace(ORDERS_0, topic_id="topic-id-of-orders-created-again")
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


def test_the_global_log_start_only_moves_up(store: MetadataStore, lease: Lease) -> None:
    seen = [store.segments.log_start_offset(ORDERS_0)]
    for offset in (0, 100, 50, 101):
        store.segments.advance_log_start_offset(ORDERS_0, offset, lease)
        seen.append(store.segments.log_start_offset(ORDERS_0))

    assert seen == [None, 0, 100, 100, 101]
    assert store.segments.log_start_offset(ORDERS_1) is None


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


def test_log_starts_that_a_deletion_moved_are_kept(store: MetadataStore, lease: Lease) -> None:
    store.segments.advance_log_start_offset(ORDERS_0, 5, lease)
    store.segments.advance_log_start_offset(ORDERS_0, 10, lease, 1_000)
    store.segments.advance_log_start_offset(ORDERS_0, 10, lease, 1_500)
    store.segments.advance_log_start_offset(ORDERS_0, 7, lease, 1_600)
    store.segments.advance_log_start_offset(ORDERS_0, 30, lease, 2_000)

    state = store.segments.partition_state(ORDERS_0)
    assert state.earlier_log_starts == (EarlierLogStart(5, 1_000), EarlierLogStart(10, 2_000))
    assert store.segments.partition_states()[ORDERS_0].earlier_log_starts == state.earlier_log_starts
    assert [state.log_start_before(moment) for moment in (0, 1_000, 1_001, 2_000, 2_001)] == [5, 5, 10, 10, 30]


def test_the_number_of_earlier_log_starts_is_limited(store: MetadataStore, lease: Lease) -> None:
    for offset in range(1, MAX_EARLIER_LOG_STARTS + 10):
        store.segments.advance_log_start_offset(ORDERS_0, offset, lease, offset)

    kept = store.segments.partition_state(ORDERS_0).earlier_log_starts
    assert len(kept) == MAX_EARLIER_LOG_STARTS
    assert kept[-1] == EarlierLogStart(MAX_EARLIER_LOG_STARTS + 8, MAX_EARLIER_LOG_STARTS + 9)


# ----------------------------------------------------------------------------------------------------- deleted segments


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
