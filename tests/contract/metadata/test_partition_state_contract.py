"""The contract of RemoteLogMetadataManager for the state of a partition: log start, lineage, deletion."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from contract.metadata_stores import MetadataStoreOpener
from support.clocks import ManualClock
from support.metadata_stores import DELETED, FINISHED, ORDERS_0, ORDERS_1, STARTED, a_segment, add_and_bring_to
from tiered_storage.errors import ConfigurationError, InvalidTransitionError, LeaseLostError
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.remote_log.metadata.metadata_store import MetadataStore
from tiered_storage.remote_log.metadata.remote_log_metadata_manager import RemoteLogMetadataManager
from tiered_storage.remote_log.model import (
    MAX_EARLIER_LOG_STARTS,
    EarlierLogStart,
    Lease,
    PartitionDeleteState,
    PartitionState,
    RemotePartitionDeleteMetadata,
    TopicIdPartition,
)

MARKED, DELETION_STARTED, DELETION_FINISHED = PartitionDeleteState
LINEAGE = (EpochEntry(0, 0), EpochEntry(3, 2**40), EpochEntry(4, 2**40))
UNKNOWN = PartitionState(None, (), None)
CLICKS_0 = TopicIdPartition("cluster-1", "topic-id-of-clicksAAAA", 0, "clicks")

Change = Callable[[RemoteLogMetadataManager, Lease], object]


def deletion(
    state: PartitionDeleteState, event_timestamp: int = 1_000, partition: TopicIdPartition = ORDERS_0
) -> RemotePartitionDeleteMetadata:
    return RemotePartitionDeleteMetadata(partition, state, event_timestamp)


CHANGES: dict[str, Change] = {
    "log start": lambda segments, lease: segments.advance_log_start_offset(lease.topic_id_partition, 7, lease),
    "lineage": lambda segments, lease: segments.put_lineage(lease.topic_id_partition, LINEAGE, lease),
    "deletion": lambda segments, lease: segments.put_remote_partition_delete_metadata(
        deletion(MARKED, partition=lease.topic_id_partition), lease
    ),
}

every_change = pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)


def test_a_new_partition_has_no_state(store: MetadataStore) -> None:
    assert store.segments.partition_state(ORDERS_0) == UNKNOWN
    assert store.segments.partition_states() == {}


def test_all_state_of_a_partition_is_read_back(store: MetadataStore, lease: Lease) -> None:
    for change in CHANGES.values():
        change(store.segments, lease)

    kept = PartitionState(7, LINEAGE, MARKED)
    assert store.segments.partition_state(ORDERS_0) == kept
    assert store.segments.partition_states() == {ORDERS_0: kept}
    assert store.segments.partition_state(ORDERS_1) == UNKNOWN


def test_the_states_of_named_partitions_come_together_and_no_others(store: MetadataStore) -> None:
    recreated = replace(ORDERS_0, topic_id="orders-created-againAA")
    for partition in (ORDERS_0, CLICKS_0, recreated):
        lease = store.leases.acquire(partition, "run-1", 60_000)
        for change in CHANGES.values():
            change(store.segments, lease)
    store.segments.advance_log_start_offset(CLICKS_0, 9, store.leases.acquire(CLICKS_0, "run-1", 60_000))

    states = store.segments.partition_states_of([ORDERS_1, CLICKS_0, replace(ORDERS_0, topic="another name")])

    kept = PartitionState(7, LINEAGE, MARKED)
    assert states == {ORDERS_0: kept, ORDERS_1: UNKNOWN, CLICKS_0: replace(kept, log_start_offset=9)}
    assert store.segments.partition_states_of([]) == {}


@every_change
def test_each_part_of_the_state_is_independent_and_of_one_partition(store: MetadataStore, change: Change) -> None:
    recreated = replace(ORDERS_0, topic_id="orders-created-againAA")
    change(store.segments, store.leases.acquire(recreated, "run-1", 60_000))

    kept = store.segments.partition_state(replace(recreated, topic="another name"))
    assert sum(value in {7, LINEAGE, MARKED} for value in (kept.log_start_offset, kept.lineage, kept.delete_state)) == 1
    assert store.segments.partition_states() == {recreated: kept}
    assert store.segments.partition_state(ORDERS_0) == UNKNOWN


def test_partitions_with_segments_only_are_among_all_states(store: MetadataStore, lease: Lease) -> None:
    add_and_bring_to(store, a_segment(lease), lease, DELETED)
    other = store.leases.acquire(CLICKS_0, "run-1", 60_000)
    store.segments.put_lineage(CLICKS_0, LINEAGE, other)

    states = store.segments.partition_states()

    assert states == {ORDERS_0: UNKNOWN, CLICKS_0: PartitionState(None, LINEAGE, None)}
    assert {partition.topic for partition in states} == {"orders", "clicks"}
    assert list(store.segments.list_partitions()) == [ORDERS_0], "a lineage is no segment"


@every_change
def test_a_lease_that_was_taken_over_changes_nothing(store: MetadataStore, lease: Lease, change: Change) -> None:
    store.leases.acquire(ORDERS_0, "run-1", 60_000)

    with pytest.raises(LeaseLostError, match="taken over"):
        change(store.segments, lease)

    assert store.segments.partition_state(ORDERS_0) == UNKNOWN


@every_change
def test_an_invented_lease_changes_nothing(store: MetadataStore, change: Change) -> None:
    with pytest.raises(LeaseLostError, match="never granted"):
        change(store.segments, Lease(ORDERS_0, "run-1", 5, 0))

    assert store.segments.partition_states() == {}


def test_a_lease_of_another_partition_is_refused(store: MetadataStore, lease: Lease) -> None:
    for change in (
        lambda: store.segments.put_lineage(ORDERS_1, LINEAGE, lease),
        lambda: store.segments.put_remote_partition_delete_metadata(deletion(MARKED, partition=ORDERS_1), lease),
        lambda: store.segments.advance_log_start_offsets([(ORDERS_0, 1, lease), (ORDERS_1, 1, lease)]),
    ):
        with pytest.raises(ConfigurationError, match=r"orders-1.*orders-0"):
            change()

    assert store.segments.partition_states() == {}


@pytest.mark.parametrize(
    ("reported", "kept"),
    [
        ((), LINEAGE),
        # A trimmed broker has forgotten the start of epoch 4, and the earlier epochs.
        ((EpochEntry(4, 2**40 + 7), EpochEntry(5, 2**41)), (*LINEAGE, EpochEntry(5, 2**41))),
        # The log of leader 4 was given up: nobody knows where it forked from this one.
        ((EpochEntry(3, 2**40 + 7), EpochEntry(5, 2**41)), (EpochEntry(3, 2**40 + 7), EpochEntry(5, 2**41))),
        # A later leader truncated the log of earlier ones.
        ((EpochEntry(9, 1),), (LINEAGE[0], EpochEntry(9, 1))),
        ((EpochEntry(9, 0),), (EpochEntry(9, 0),)),
        # An older replica never heard of epochs 3 and 4.
        ((EpochEntry(0, 0), EpochEntry(1, 7)), LINEAGE),
    ],
)
def test_a_new_lineage_is_merged_with_the_known_one(
    store: MetadataStore, lease: Lease, reported: tuple[EpochEntry, ...], kept: tuple[EpochEntry, ...]
) -> None:
    for lineage in (LINEAGE, reported):
        store.segments.put_lineage(ORDERS_0, lineage, lease)

    assert store.segments.partition_state(ORDERS_0).lineage == kept


def test_lineages_of_one_partition_are_kept_in_order(store: MetadataStore, lease: Lease) -> None:
    first, second = (EpochEntry(0, 0), EpochEntry(2, 20)), (EpochEntry(2, 25), EpochEntry(3, 30))

    store.segments.put_lineages([(ORDERS_0, first, lease), (ORDERS_0, second, lease)])

    assert store.segments.partition_state(ORDERS_0).lineage == (*first, EpochEntry(3, 30))


@pytest.mark.parametrize("second", [EpochEntry(2, 20), EpochEntry(1, 20), EpochEntry(3, 9)])
def test_invalid_lineages_are_refused(store: MetadataStore, lease: Lease, second: EpochEntry) -> None:
    store.segments.put_lineage(ORDERS_0, LINEAGE, lease)

    with pytest.raises(ConfigurationError, match=r"orders-0: .*rising lineage"):
        store.segments.put_lineage(ORDERS_0, (EpochEntry(2, 10), second), lease)

    assert store.segments.partition_state(ORDERS_0).lineage == LINEAGE


@pytest.mark.parametrize("after", [None, *PartitionDeleteState])
@pytest.mark.parametrize("step", PartitionDeleteState)
def test_the_deletion_of_a_partition_goes_step_by_step(
    store: MetadataStore, lease: Lease, after: PartitionDeleteState | None, step: PartitionDeleteState
) -> None:
    for earlier in PartitionDeleteState:
        if after is not None and earlier <= after:
            store.segments.put_remote_partition_delete_metadata(deletion(earlier), lease)
    following = MARKED if after is None else after + 1
    if step in {after, following}:
        store.segments.put_remote_partition_delete_metadata(deletion(step, 2_000), lease)
        assert store.segments.partition_state(ORDERS_0).delete_state is step
        return

    state = "is not being deleted" if after is None else f"is {after.name} for deletion"
    with pytest.raises(InvalidTransitionError, match=f"orders-0 {state} and cannot become {step.name}"):
        store.segments.put_remote_partition_delete_metadata(deletion(step, 2_000), lease)
    assert store.segments.partition_state(ORDERS_0).delete_state is after


def test_many_lineages_are_kept_and_refusals_reported(store: MetadataStore, lease: Lease) -> None:
    lost = store.leases.acquire(ORDERS_1, "run-1", 60_000)
    store.leases.acquire(ORDERS_1, "run-1", 60_000)
    clicks = store.leases.acquire(CLICKS_0, "run-1", 60_000)
    one = (EpochEntry(1, 1),)

    first, second, third, fourth = store.segments.put_lineages(
        [(ORDERS_0, one, lease), (ORDERS_1, one, lost), (CLICKS_0, LINEAGE, clicks), (ORDERS_0, LINEAGE, lease)]
    )

    assert (first, third, fourth) == (None, None, None)
    assert isinstance(second, LeaseLostError)
    kept = {partition: state.lineage for partition, state in store.segments.partition_states().items()}
    assert kept == {ORDERS_0: LINEAGE, CLICKS_0: LINEAGE}
    assert store.segments.put_lineages([]) == []


def test_an_invalid_lineage_stops_the_whole_call_before_it_writes(store: MetadataStore, lease: Lease) -> None:
    with pytest.raises(ConfigurationError, match="rising lineage"):
        store.segments.put_lineages([(ORDERS_0, LINEAGE, lease), (ORDERS_0, (LINEAGE[1], LINEAGE[0]), lease)])

    assert store.segments.partition_states() == {}


def test_the_global_log_start_only_moves_up(store: MetadataStore, lease: Lease) -> None:
    seen = [store.segments.log_start_offset(ORDERS_0)]
    for offset in (0, 100, 50, 101):
        store.segments.advance_log_start_offset(ORDERS_0, offset, lease)
        seen.append(store.segments.log_start_offset(ORDERS_0))

    assert seen == [None, 0, 100, 100, 101]
    assert store.segments.log_start_offset(ORDERS_1) is None


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


def test_many_log_starts_are_moved_and_refusals_reported(store: MetadataStore, lease: Lease) -> None:
    lost = store.leases.acquire(ORDERS_1, "run-1", 60_000)
    store.leases.acquire(ORDERS_1, "run-1", 60_000)
    clicks = store.leases.acquire(CLICKS_0, "run-1", 60_000)
    store.segments.advance_log_start_offset(CLICKS_0, 2**40, clicks)

    first, second, third, fourth = store.segments.advance_log_start_offsets(
        [(ORDERS_0, 3, lease), (ORDERS_1, 5, lost), (CLICKS_0, 4, clicks), (ORDERS_0, 8, lease)]
    )

    assert (first, third, fourth) == (None, None, None)
    assert isinstance(second, LeaseLostError)
    assert store.segments.log_start_offset(ORDERS_0) == 8
    assert store.segments.log_start_offset(ORDERS_1) is None
    assert store.segments.log_start_offset(CLICKS_0) == 2**40
    assert store.segments.advance_log_start_offsets([]) == []


def test_ids_are_known_in_every_state_and_by_their_partition(store: MetadataStore, lease: Lease) -> None:
    segments = [a_segment(lease, start, start + 9) for start in range(0, 30, 10)]
    for segment, state in zip(segments, (STARTED, FINISHED, DELETED), strict=True):
        add_and_bring_to(store, segment, lease, state)
    ids = [segment.segment_id.id for segment in segments]

    assert store.segments.known_segment_ids(ORDERS_0, [*ids, "nobody's", ids[0]]) == set(ids)
    assert store.segments.known_segment_ids(ORDERS_1, ids) == frozenset()
    assert store.segments.known_segment_ids(ORDERS_0, []) == frozenset()


def test_more_ids_than_fit_in_one_statement_are_looked_up(store: MetadataStore, lease: Lease) -> None:
    segments = [a_segment(lease, start, start) for start in range(1_500)]
    store.segments.add_remote_log_segments([(segment, lease) for segment in segments])
    ids = {segment.segment_id.id for segment in segments}

    assert store.segments.known_segment_ids(ORDERS_0, ids | {f"other-{number}" for number in range(1_500)}) == ids


def test_one_connection_sees_what_another_wrote(
    store: MetadataStore, lease: Lease, opener: MetadataStoreOpener, tmp_path: Path
) -> None:
    with opener(tmp_path, ManualClock()) as other:
        assert other.segments.partition_state(ORDERS_0) == UNKNOWN
        store.segments.put_lineage(ORDERS_0, LINEAGE, lease)
        assert other.segments.partition_state(ORDERS_0).lineage == LINEAGE


def test_a_negative_log_start_is_refused_before_anything_is_written(store: MetadataStore, lease: Lease) -> None:
    other = store.leases.acquire(ORDERS_1, "run-1", 60_000)
    with pytest.raises(ConfigurationError, match="offset -5"):
        store.segments.advance_log_start_offsets([(ORDERS_0, 7, lease), (ORDERS_1, -5, other)])
    assert store.segments.log_start_offset(ORDERS_0) is None


@pytest.mark.parametrize("state", PartitionDeleteState)
def test_a_partition_that_is_being_deleted_takes_no_more_segments(
    store: MetadataStore, lease: Lease, state: PartitionDeleteState
) -> None:
    known = a_segment(lease)
    store.segments.add_remote_log_segment_metadata(known, lease)
    for step in PartitionDeleteState:
        if step <= state:
            moved = RemotePartitionDeleteMetadata(ORDERS_0, step, 1_000)
            store.segments.put_remote_partition_delete_metadata(moved, lease)
    other = store.leases.acquire(ORDERS_1, "run-1", 60_000)

    refused, repeated, elsewhere = store.segments.add_remote_log_segments(
        [(a_segment(lease), lease), (known, lease), (a_segment(other), other)]
    )

    assert isinstance(refused, InvalidTransitionError)
    assert "takes no more segments" in str(refused)
    assert repeated == known
    assert not isinstance(elsewhere, InvalidTransitionError)
    assert len(list(store.segments.list_remote_log_segments(ORDERS_0))) == 1
