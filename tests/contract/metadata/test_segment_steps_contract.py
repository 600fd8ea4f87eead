"""The contract of RemoteLogMetadataManager for the life of a segment: how it begins, and each step to its end."""

from __future__ import annotations

from dataclasses import replace

import pytest

from support.metadata_stores import DELETED, DELETING, FINISHED, ORDERS_0, STARTED, a_segment, a_step, add_and_bring_to
from tiered_storage.errors import ConfigurationError, InvalidTransitionError
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.remote_log.metadata.metadata_store import MetadataStore
from tiered_storage.remote_log.model import UNKNOWN_SIZE, Lease, RemoteLogSegmentMetadata, RolledSegment, SegmentState

NEXT_STATES = {
    STARTED: {STARTED, FINISHED, DELETING},
    FINISHED: {FINISHED, DELETING},
    DELETING: {DELETING, DELETED},
    DELETED: {DELETED},
}


def test_a_copy_that_started_is_listed_but_not_read(store: MetadataStore, lease: Lease) -> None:
    segment = a_segment(lease)

    store.segments.add_remote_log_segment_metadata(segment, lease)

    assert list(store.segments.list_remote_log_segments(ORDERS_0)) == [segment]
    assert store.segments.remote_log_segment_metadata(ORDERS_0, 5) is None
    assert store.segments.highest_offset_for_epoch(ORDERS_0, 0) is None


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
