"""Any order of calls leaves the store as a simple model of it: dictionaries, and the rules of the contract."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

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
    sqlite_store,
)
from support.records import USUAL_EXAMPLES
from tiered_storage.errors import InvalidTransitionError, LeaseHeldError, LeaseLostError
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.remote_log.lineage import merged
from tiered_storage.remote_log.model import (
    Lease,
    PartitionDeleteState,
    PartitionState,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemotePartitionDeleteMetadata,
    SegmentState,
    TopicIdPartition,
)

PARTITIONS = (ORDERS_0, ORDERS_1)
DURATION_MS = 100
OFFSETS = range(8)
EPOCHS = range(2)
STEPS = {(STARTED, FINISHED), (STARTED, DELETING), (FINISHED, DELETING), (DELETING, DELETED)}


@cache
def empty_store() -> tempfile.TemporaryDirectory[str]:
    """Return the directory of a store that is never written: copying it is faster than creating one."""
    directory = tempfile.TemporaryDirectory()
    sqlite_store(Path(directory.name), ManualClock()).close()
    return directory


class MetadataStoreMachine(RuleBasedStateMachine):
    """A store, and beside it what we believe to be in it."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.directory = Path(tempfile.mkdtemp())
        shutil.copy(Path(empty_store().name, "metadata.sqlite"), self.directory)
        self.store = sqlite_store(self.directory, self.clock)
        self.given: list[Lease] = []
        self.newest: dict[TopicIdPartition, Lease] = {}
        self.given_back: set[Lease] = set()
        self.segments: dict[RemoteLogSegmentId, RemoteLogSegmentMetadata] = {}
        self.finished: list[RemoteLogSegmentId] = []
        self.log_starts: dict[TopicIdPartition, int] = {}
        self.lineages: dict[TopicIdPartition, tuple[EpochEntry, ...]] = {}
        self.deletions: dict[TopicIdPartition, PartitionDeleteState] = {}
        self.unread: set[TopicIdPartition] = set()

    def teardown(self) -> None:
        self.store.close()
        shutil.rmtree(self.directory)

    def is_newest(self, lease: Lease) -> bool:
        return self.newest[lease.topic_id_partition].fencing_number == lease.fencing_number

    def refused_unless_newest(self, lease: Lease) -> AbstractContextManager[object]:
        return nullcontext() if self.is_newest(lease) else pytest.raises(LeaseLostError)

    def some_lease(self, data: st.DataObject, partition: TopicIdPartition | None = None) -> Lease:
        """Draw a lease that was given at any time, of `partition` where one is named; as often as not the newest."""
        given = [lease for lease in self.given if partition in (None, lease.topic_id_partition)]
        newest = [lease for lease in given if self.newest[lease.topic_id_partition] == lease]
        return data.draw(st.one_of(st.sampled_from(newest), st.sampled_from(given)))

    def some_segment(self, data: st.DataObject) -> RemoteLogSegmentMetadata:
        return data.draw(st.sampled_from(list(self.segments.values())))

    # The guard lets leases last a while: no copy could ever be finished under ones that change with every step.
    @rule(partition=st.sampled_from(PARTITIONS), owner=st.sampled_from(("run-1", "run-2")), guard=st.integers(0, 5))
    def acquire(self, partition: TopicIdPartition, owner: str, guard: int) -> None:
        holder = self.newest.get(partition)
        if holder and guard:
            return
        if holder and holder.owner != owner and holder.expires_at > self.clock.now and holder not in self.given_back:
            with pytest.raises(LeaseHeldError):
                self.store.leases.acquire(partition, owner, DURATION_MS)
            return
        lease = self.store.leases.acquire(partition, owner, DURATION_MS)
        number = holder.fencing_number + 1 if holder else 1
        assert lease == Lease(partition, owner, number, self.clock.now + DURATION_MS)
        self.newest[partition] = lease
        self.given.append(lease)

    @precondition(lambda self: self.given)
    @rule(data=st.data())
    def heartbeat(self, data: st.DataObject) -> None:
        lease = self.some_lease(data)
        if not self.is_newest(lease) or self.newest[lease.topic_id_partition] in self.given_back:
            with pytest.raises(LeaseLostError):
                self.store.leases.heartbeat(lease, DURATION_MS)
            return
        prolonged = self.store.leases.heartbeat(lease, DURATION_MS)
        assert prolonged == replace(lease, expires_at=self.clock.now + DURATION_MS)
        self.newest[lease.topic_id_partition] = prolonged
        self.given.append(prolonged)

    @precondition(lambda self: self.given)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        lease = self.some_lease(data)
        self.store.leases.release(lease)
        if self.is_newest(lease):
            self.given_back.add(self.newest[lease.topic_id_partition])

    @precondition(lambda self: self.given)
    @rule(data=st.data())
    def check(self, data: st.DataObject) -> None:
        lease = self.some_lease(data)
        with self.refused_unless_newest(lease):
            self.store.leases.check(lease)

    @rule(ms=st.integers(1, DURATION_MS + 1))
    def let_time_pass(self, ms: int) -> None:
        self.clock.now += ms

    @precondition(lambda self: self.given)
    @rule(data=st.data(), start=st.integers(0, 7), length=st.integers(1, 8))
    def begin(self, data: st.DataObject, start: int, length: int) -> None:
        self.begin_under(self.some_lease(data), data, start, length)

    @precondition(lambda self: self.given)
    @rule(data=st.data(), start=st.integers(0, 7), length=st.integers(1, 8))
    def begin_under_the_newest(self, data: st.DataObject, start: int, length: int) -> None:
        self.begin_under(data.draw(st.sampled_from(list(self.newest.values()))), data, start, length)

    def begin_under(self, lease: Lease, data: st.DataObject, start: int, length: int) -> None:
        end = min(start + length, len(OFFSETS)) - 1
        epochs = sorted(data.draw(st.sets(st.sampled_from(EPOCHS))))
        starts = sorted(data.draw(st.lists(st.integers(start, end), min_size=len(epochs), max_size=len(epochs))))
        segment = a_segment(lease, start, end, epochs=tuple(zip(epochs, starts, strict=True)))
        expected = self.refused_unless_newest(lease)
        is_deleted = lease.topic_id_partition in self.deletions
        if self.is_newest(lease) and is_deleted:
            expected = pytest.raises(InvalidTransitionError)
        with expected:
            self.store.segments.add_remote_log_segment_metadata(segment, lease)
        if self.is_newest(lease) and not is_deleted:
            self.segments[segment.segment_id] = segment

    @precondition(lambda self: self.segments)
    @rule(data=st.data())
    def begin_again(self, data: st.DataObject) -> None:
        now = self.some_segment(data)
        begun = replace(now, state=STARTED, event_timestamp=1_000, custom_metadata=None)
        lease = next(
            lease
            for lease in self.given
            if (lease.topic_id_partition, lease.fencing_number) == (begun.topic_id_partition, begun.fencing_number)
        )
        expected = self.refused_unless_newest(lease)
        if self.is_newest(lease) and now.state is not STARTED:
            expected = pytest.raises(InvalidTransitionError)
        with expected:
            self.store.segments.add_remote_log_segment_metadata(begun, lease)

    @precondition(lambda self: self.segments)
    @rule(data=st.data(), state=st.sampled_from(SegmentState), timestamp=st.integers(1, 99))
    def step(self, data: st.DataObject, state: SegmentState, timestamp: int) -> None:
        before = self.some_segment(data)
        self.step_under(self.some_lease(data, before.topic_id_partition), before, state, timestamp)

    @precondition(lambda self: self.segments)
    @rule(data=st.data(), timestamp=st.integers(1, 99))
    def step_on_under_the_newest(self, data: st.DataObject, timestamp: int) -> None:
        before = self.some_segment(data)
        state = SegmentState(min(before.state + 1, DELETED))
        self.step_under(self.newest[before.topic_id_partition], before, state, timestamp)

    def step_under(self, lease: Lease, before: RemoteLogSegmentMetadata, state: SegmentState, timestamp: int) -> None:
        update = a_step(before, state, timestamp, custom_metadata=bytes([timestamp]))
        refusal = self.refusal_of_step(before, state, lease)
        if refusal is not None:
            with pytest.raises(refusal):
                self.store.segments.update_remote_log_segment_metadata(update, lease)
            return
        after = before
        if before.state is not state:
            after = replace(before, state=state, event_timestamp=timestamp, custom_metadata=bytes([timestamp]))
        assert self.store.segments.update_remote_log_segment_metadata(update, lease) == after
        self.segments[before.segment_id] = after
        self.unread.add(before.topic_id_partition)
        if state is FINISHED and before.state is STARTED:
            self.finished.append(before.segment_id)

    def refusal_of_step(
        self, before: RemoteLogSegmentMetadata, state: SegmentState, lease: Lease
    ) -> type[Exception] | None:
        if not self.is_newest(lease):
            return LeaseLostError
        if before.state is not state and (before.state, state) not in STEPS:
            return InvalidTransitionError
        if (before.state, state) == (STARTED, FINISHED) and lease.fencing_number != before.fencing_number:
            return LeaseLostError
        return None

    @precondition(lambda self: self.given)
    @rule(data=st.data(), offset=st.sampled_from(OFFSETS))
    def advance_log_start(self, data: st.DataObject, offset: int) -> None:
        lease = self.some_lease(data)
        partition = lease.topic_id_partition
        with self.refused_unless_newest(lease):
            self.store.segments.advance_log_start_offset(partition, offset, lease)
        if self.is_newest(lease):
            self.log_starts[partition] = max(offset, self.log_starts.get(partition, 0))

    @precondition(lambda self: self.given)
    @rule(data=st.data(), epochs=st.sets(st.sampled_from(EPOCHS)))
    def put_lineage(self, data: st.DataObject, epochs: set[int]) -> None:
        lease = self.some_lease(data)
        lineage = tuple(EpochEntry(epoch, epoch) for epoch in sorted(epochs))
        with self.refused_unless_newest(lease):
            self.store.segments.put_lineage(lease.topic_id_partition, lineage, lease)
        if self.is_newest(lease):
            known = self.lineages.get(lease.topic_id_partition, ())
            self.lineages[lease.topic_id_partition] = merged(known, lineage)

    @precondition(lambda self: self.given)
    @rule(data=st.data(), state=st.sampled_from(PartitionDeleteState))
    def delete_partition(self, data: st.DataObject, state: PartitionDeleteState) -> None:
        lease = self.some_lease(data)
        partition = lease.topic_id_partition
        expected = self.refused_unless_newest(lease)
        if self.is_newest(lease) and state - self.deletions.get(partition, -1) not in {0, 1}:
            expected = pytest.raises(InvalidTransitionError)
        with expected:
            step = RemotePartitionDeleteMetadata(partition, state, self.clock.now)
            self.store.segments.put_remote_partition_delete_metadata(step, lease)
            self.deletions[partition] = state

    @precondition(lambda self: self.given)
    @rule(data=st.data(), offset=st.sampled_from(OFFSETS), timestamp=st.integers(1, 99))
    def undelete(self, data: st.DataObject, offset: int, timestamp: int) -> None:
        lease = self.some_lease(data)
        partition = lease.topic_id_partition
        known = [name for name in self.segments if name.topic_id_partition == partition]
        chosen = data.draw(st.lists(st.sampled_from(known), unique=True)) if known else []
        states = [self.segments[name] for name in chosen]
        is_marked = all(one.state is DELETING and one.custom_metadata is not None for one in states)
        is_over = self.deletions.get(partition) is PartitionDeleteState.FINISHED
        is_refused = not self.is_newest(lease) or not is_marked or is_over
        refused = pytest.raises((LeaseLostError, InvalidTransitionError)) if is_refused else nullcontext()
        with refused:
            self.store.segments.undelete(partition, chosen, offset, timestamp, lease)
        if is_refused:
            return
        for one in states:
            self.segments[one.segment_id] = replace(one, state=FINISHED, event_timestamp=timestamp)
            if one.segment_id not in self.finished:
                self.finished.append(one.segment_id)
        self.unread.add(partition)
        self.deletions.pop(partition, None)
        if partition in self.log_starts:
            self.log_starts[partition] = min(offset, self.log_starts[partition])

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.store = sqlite_store(self.directory, self.clock)
        self.unread.update(self.newest)

    @invariant()
    def the_listing_is_that_of_the_model(self) -> None:
        for partition in PARTITIONS:
            known = [
                segment
                for segment in self.segments.values()
                if segment.topic_id_partition == partition and segment.state is not DELETED
            ]
            known.sort(key=lambda segment: (segment.start_offset, segment.segment_id.id))
            assert list(self.store.segments.list_remote_log_segments(partition)) == known
            assert self.store.segments.log_start_offset(partition) == self.log_starts.get(partition)
        had = {segment.topic_id_partition for segment in self.segments.values()}
        assert self.store.segments.list_partitions() == sorted(had)
        states = {
            partition: PartitionState(
                self.log_starts.get(partition), self.lineages.get(partition, ()), self.deletions.get(partition)
            )
            for partition in {*had, *self.log_starts, *self.lineages, *self.deletions}
        }
        assert self.store.segments.partition_states() == states
        for partition in PARTITIONS:
            assert self.store.segments.partition_state(partition) == states.get(partition, PartitionState())

    @invariant()
    def every_reader_finds_what_the_model_finds(self) -> None:
        for partition in self.unread:
            visible = [self.segments[name] for name in self.finished if name.topic_id_partition == partition]
            visible = [segment for segment in visible if segment.state is FINISHED]
            for epoch in (None, *EPOCHS):
                first: dict[int, RemoteLogSegmentMetadata] = {}
                for segment in visible:
                    for offset in offsets_at(segment, epoch):
                        first.setdefault(offset, segment)
                found = {o: self.store.segments.remote_log_segment_metadata(partition, o, epoch) for o in OFFSETS}
                assert found == {offset: first.get(offset) for offset in OFFSETS}
                if epoch is not None:
                    highest = self.store.segments.highest_offset_for_epoch(partition, epoch)
                    assert highest == max(first, default=None)
        self.unread.clear()


def offsets_at(segment: RemoteLogSegmentMetadata, epoch: int | None) -> list[int]:
    """Return the offsets that were written with `epoch`, one by one; None: all of them."""
    epoch_of: dict[int, int] = {}
    for entry in segment.leader_epochs:
        epoch_of |= dict.fromkeys(range(entry.start_offset, segment.end_offset + 1), entry.epoch)
    return [
        offset
        for offset in range(segment.start_offset, segment.end_offset + 1)
        if epoch is None or epoch_of.get(offset) == epoch
    ]


@pytest.mark.parametrize("calls", [30, pytest.param(60, marks=pytest.mark.nightly)])
def test_any_order_of_calls_agrees_with_the_model(calls: int) -> None:
    share = settings(max_examples=USUAL_EXAMPLES // 5, stateful_step_count=calls, deadline=None)
    run_state_machine_as_test(MetadataStoreMachine, settings=share)
