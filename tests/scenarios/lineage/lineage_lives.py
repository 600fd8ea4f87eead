"""A partition's lives with followers of ours, and what they must agree with after every step: a plain list of records.

The model (Brokers) has, for each broker, which leader epoch wrote each offset of its log; a record's value has both.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from scenarios.lineage.lived_partition import segments_in
from scenarios.lineage.partition_lives import REPLICAS, PartitionLives
from scenarios.replicas.brokers import Brokers, epoch_in
from support.led_log import LedLog
from support.remote_logs import unsynced
from support.simulated_crashes import Died, dies_at_sync
from support.transactions import split
from tiered_storage.errors import LineageContradictedError, RemoteObjectNotFoundError
from tiered_storage.kafka_log.log.local_log import LocalLog
from tiered_storage.remote_log.audit.report import AnomalyKind
from tiered_storage.remote_log.coverage import Coverage
from tiered_storage.remote_log.follower.follower import Follower, follow
from tiered_storage.remote_log.lineage import epoch_at
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata, SegmentState
from tiered_storage.remote_log.read.blocking_reader import BlockingLogReader
from tiered_storage.remote_log.read.log_reader import READ_UNCOMMITTED
from tiered_storage.remote_log.selection import EVERYTHING
from tiered_storage.remote_log.storage.documents.object_names import partition_folder

SYNCS = st.integers(0, 40)


@dataclass(kw_only=True)
class LeadingBroker(LedLog):
    """The broker that leads the partition."""

    brokers: Brokers

    @property
    def leaders_directory(self) -> Path:
        return self.brokers.directory(self.brokers.leader)

    @contextmanager
    def log(self) -> Iterator[LocalLog]:
        with self.brokers.log(self.brokers.leader) as log:
            yield log


class LineageLives(PartitionLives):
    """The rules of followers and of whole copies and repairs, and the invariants."""

    def __init__(self) -> None:
        super().__init__()
        self.epochs: dict[str, dict[int, int]] = {}
        """By segment id, the leader epoch that wrote each record of a segment, as its object has them."""

    @initialize(leaders=st.lists(st.tuples(st.integers(0, 6), st.integers(1, 6), st.booleans()), max_size=3))
    def begin_with_leaders(self, leaders: list[tuple[int, int, bool]]) -> None:
        """Let leaders follow one another: each has some batches of the one before, appends others, and may be copied.

        Hypothesis leaves out most rules of each history, so that few would have all of this otherwise.
        """
        for fetched, appended, is_copied in leaders:
            follower = 1 - self.brokers.leader
            self.replicate(follower, fetched)
            self.elect(follower)
            self.append(appended)
            if is_copied:
                self.copy(None)

    # ----------------------------------------------------------------------------------------------- the followers

    @rule(number=st.sampled_from(REPLICAS), at_once=st.integers(1, 400), from_last_tiered=st.booleans())
    def follow(self, number: int, at_once: int, from_last_tiered: bool) -> None:
        """Let a follower catch up; it reads both tiers like the leader (scenario 28)."""
        if number == self.brokers.leader:
            return
        self.files.properties["follower.fetch.last.tiered.offset.enable"] = from_last_tiered
        try:
            self.catch_up(number, at_once)
        except (LineageContradictedError, RemoteObjectNotFoundError):
            # It has records that its leader cannot place. A person decides that nobody needs them.
            before = self.brokers.logs[number]
            self.brokers.learn(number)
            assert self.brokers.logs[number] == before
            self.brokers.empty(number)
            self.catch_up(number, at_once)

    def catch_up(self, number: int, at_once: int) -> None:
        with self.follower(number, at_once) as follower:
            report = follow(follower)
            assert report.log_end_offset == self.brokers.end
            self.check_reads(follower.remote_log(), by_follower=True)
        self.brokers.learn(number)
        assert self.brokers.logs[number] == self.brokers.written_by

    @rule(number=st.sampled_from(REPLICAS), sync=SYNCS)
    def follow_and_die(self, number: int, sync: int) -> None:
        if number == self.brokers.leader:
            return
        with (
            suppress(Died, LineageContradictedError, RemoteObjectNotFoundError),
            self.follower(number, 1) as follower,
            dies_at_sync(sync),
        ):
            follow(follower)
        self.brokers.learn(number)

    @contextmanager
    def follower(self, number: int, at_once: int) -> Iterator[Follower]:
        leader = LeadingBroker(epoch=self.brokers.epoch, bytes_at_once=at_once, brokers=self.brokers)
        with unsynced(), self.open() as remote_log:
            context = leader.beside(remote_log).context
            with Follower.open(context, self.partition, self.brokers.directory(number), leader=leader) as follower:
                yield follower

    @rule(number=st.sampled_from(REPLICAS))
    def lose_a_replica(self, number: int) -> None:
        """Lose a follower's disk: it starts again from its leader and the remote log."""
        if number != self.brokers.leader:
            self.brokers.empty(number)

    @rule(number=st.sampled_from(REPLICAS), sync=st.none() | st.integers(0, 8))
    def move(self, number: int, sync: int | None) -> None:
        """Move a log to the broker's other directory; a killed move is repeated (scenario 15)."""
        before = self.brokers.directory(number)
        if sync is not None:
            with suppress(Died), dies_at_sync(sync):
                self.brokers.move(number)
        if self.brokers.directory(number) == before:
            with unsynced():
                self.brokers.move(number)

    # --------------------------------------------------------------------------------------- whole copies, repairs

    @rule()
    def copy_twice(self) -> None:
        """Copy all that is due: then nothing is, and the remote log has neither a gap nor an offset twice."""
        self.copy(None)
        with unsynced(), self.open() as remote_log:
            assert remote_log.plan_copy().is_empty
            state = remote_log.context.segments.partition_state(self.partition)
            covered = Coverage.of(segments_in(remote_log, self.partition), state.lineage)
            start = state.log_start_offset or 0
            assert [each for each in covered.gaps() if each[1] >= start] == []

    @rule()
    def repair(self) -> None:
        """Repair after all grace times: the store has no object that the metadata do not know."""
        self.retention()
        for path in self.files.objects():
            # The store has the clock of the test.
            os.utime(path, ns=(0, self.files.clock.now * 1_000_000))
        with unsynced(), self.open() as remote_log:
            self.let_leases_end(remote_log)
            self.pass_time()
            remote_log.deletions.clocks.trust()
            plan = remote_log.repairs.plan(remote_log.checks.audit(), EVERYTHING)
            remote_log.repairs.carry_out(plan, "repair", lambda copies: self.copy_planned(remote_log, copies))
            left = remote_log.checks.audit().anomalies
            assert not [each for each in left if each.kind is AnomalyKind.UNREFERENCED_OBJECT], left
            known = {each.segment_id.id for each in self.segments(remote_log)}
            assert {_segment_id(path) for path in self.files.objects() if path.parent.name == "0"} <= known
            self.look(remote_log)

    # -------------------------------------------------------------------------------------------------- invariants

    @invariant()
    def the_remote_log_is_the_leaders(self) -> None:
        with unsynced(), self.open() as remote_log:
            self.check_reads(remote_log)
            self.check_epochs(remote_log)

    def check_reads(self, remote_log: RemoteLogManager, *, by_follower: bool = False) -> None:
        """Read both tiers from the start: each offset once, with the record of the present leader's log.

        Nothing is missing that no retention ever let go. A follower does not know of a leader without records, and may
        serve what an earlier one copied after its end.
        """
        log_start = remote_log.context.segments.log_start_offset(self.partition)
        with BlockingLogReader(remote_log.open_log_reader()) as reader:
            seen = reader.snapshot(self.partition)
            start, end = seen.log_start_offset, seen.end_offset(READ_UNCOMMITTED)
            assert start <= self.expirable
            if by_follower and self.brokers.written_by[-1:] != [self.brokers.epoch]:
                end = min(end, max(self.brokers.end, start))
            assert end == max(self.brokers.end, log_start or 0)
            found = list(reader.records(self.partition, start, end_offset=end))
        assert [each.offset for each in found] == list(range(start, end if found else start))
        assert [each.value for each in found] == self.brokers.values(start)

    def check_epochs(self, remote_log: RemoteLogManager) -> None:
        """Ask for segments by epoch: the answers follow the records in the objects, whatever lineage they are on."""
        metadata = remote_log.context.segments
        held: dict[int, int] = {}
        finished = [
            each for each in segments_in(remote_log, self.partition) if each.state is SegmentState.COPY_SEGMENT_FINISHED
        ]
        for segment in finished:
            written = self.written(segment)
            for offset in (min(written), max(written)):
                found = metadata.remote_log_segment_metadata(self.partition, offset, written[offset])
                assert found is not None
                assert self.written(found)[offset] == written[offset]
            for offset, epoch in written.items():
                held[epoch] = max(offset, held.get(epoch, offset))
        for epoch in range(self.brokers.epoch + 2):
            assert metadata.highest_offset_for_epoch(self.partition, epoch) == held.get(epoch)

    def written(self, segment: RemoteLogSegmentMetadata) -> dict[int, int]:
        """Return the leader epoch of each record in a segment's object; the segment's own metadata have the same."""
        known = self.epochs.get(segment.segment_id.id)
        if known is None:
            folder = self.files.store / partition_folder(segment.topic_id_partition)
            [path] = folder.glob(f"*-{segment.segment_id.id}.log")
            records = [each for _, several in split(path.read_bytes()) for each in several]
            # A log that began inside of a batch has no epochs below its start.
            start = segment.leader_epochs[0].start_offset
            known = {each.offset: epoch_in(each.value) for each in records if each.offset >= start}
            assert [each.offset for each in records] == list(range(segment.start_offset, segment.end_offset + 1))
            assert known == {offset: epoch_at(segment.leader_epochs, offset) for offset in known}
            self.epochs[segment.segment_id.id] = known
        return known


def _segment_id(path: Path) -> str:
    return path.name[21:43]
