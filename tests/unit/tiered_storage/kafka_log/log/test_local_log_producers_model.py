"""Any course of idempotent and transactional appends, truncations, crashes and retention, against a list of batches."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from support.local_logs import NOW, TOPIC_ID, records
from support.records import USUAL_EXAMPLES
from support.transactions import ABORT, COMMIT, committed_offsets, data, split
from tiered_storage.errors import InvalidProducerEpochError, InvalidTransactionStateError, OutOfOrderSequenceError
from tiered_storage.kafka_log.files.log_segment import producer_snapshot_path
from tiered_storage.kafka_log.log.local_log import LocalLog
from tiered_storage.kafka_log.log.log_config import LogConfig
from tiered_storage.kafka_log.log.recovery.index_rebuild import rebuild_indexes
from tiered_storage.kafka_log.producers.transaction_state import Isolation

CONFIG = LogConfig(segment_bytes=600, index_interval_bytes=150, retention_bytes=900, retention_ms=-1)
PRODUCERS = st.integers(0, 2)


@dataclass(frozen=True)
class Batch:
    """A batch as the model knows it; `sequence` is that of its first record, None without a producer."""

    first: int
    last: int
    kind: Literal["data", "abort", "commit"]
    producer: int | None = None
    epoch: int = 0
    sequence: int | None = None
    transactional: bool = False


@dataclass
class Producer:
    """What the model makes of a producer's batches."""

    epoch: int | None = None
    last: Batch | None = None
    """Its last batch of this epoch."""
    open_since: int | None = None


class LogAgainstBatches(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.temporary = tempfile.TemporaryDirectory()
        self.log = LocalLog.create(Path(self.temporary.name), "orders", 0, TOPIC_ID, CONFIG, clock=lambda: NOW)
        self.batches: list[Batch] = []
        self.start = 0
        """Where `batches` begin; the log may begin later."""
        self.flushed = 0

    def teardown(self) -> None:
        self.log.close()
        self.temporary.cleanup()

    @property
    def end(self) -> int:
        return self.batches[-1].last + 1 if self.batches else self.start

    def producer(self, producer_id: int) -> Producer:
        found = Producer()
        for batch in self.batches:
            if batch.producer != producer_id:
                continue
            if batch.epoch != found.epoch:
                found.epoch, found.last = batch.epoch, None
            if batch.kind != "data":
                found.open_since = None
                continue
            found.last = batch
            if batch.transactional and found.open_since is None:
                found.open_since = batch.first
        return found

    def cut(self, end: int, log_start: int) -> None:
        """Keep the batches below `end`; a log that would end before its start restarts there, empty."""
        self.batches = [batch for batch in self.batches if batch.last < end]
        if self.end < log_start:
            self.batches, self.start = [], log_start

    def transactions(self) -> list[tuple[int, int, int]]:
        """Producer, first offset and marker offset of each aborted transaction."""
        opened: dict[int, int] = {}
        found = []
        for batch in self.batches:
            if batch.producer is None:
                continue
            if batch.kind == "data" and batch.transactional:
                opened.setdefault(batch.producer, batch.first)
            elif batch.kind != "data":
                first = opened.pop(batch.producer, None)
                if first is not None and batch.kind == "abort":
                    found.append((batch.producer, first, batch.first))
        return found

    @rule(count=st.integers(1, 3))
    def append_without_a_producer(self, count: int) -> None:
        base = self.log.append(records(count, size=20))

        assert base == self.end
        self.batches.append(Batch(base, base + count - 1, "data"))

    @rule(producer_id=PRODUCERS, count=st.integers(1, 3), new_epoch=st.booleans(), transactional=st.booleans())
    def append_in_turn(self, producer_id: int, count: int, new_epoch: bool, transactional: bool) -> None:
        known = self.producer(producer_id)
        transactional = transactional or known.open_since is not None
        epoch = (known.epoch or 0) + (1 if new_epoch and known.epoch is not None else 0)
        last = known.last if epoch == known.epoch else None
        assert last is None or last.sequence is not None
        sequence = last.sequence + last.last - last.first + 1 if last and last.sequence is not None else 0
        batch = data(0, producer_id, sequence, count=count, epoch=epoch, transactional=transactional)

        base = self.log.append_encoded_batch(batch)

        assert base == self.end
        self.batches.append(Batch(base, base + count - 1, "data", producer_id, epoch, sequence, transactional))

    @rule(producer_id=PRODUCERS)
    def send_the_last_batch_again(self, producer_id: int) -> None:
        last = self.producer(producer_id).last
        if last is None or last.sequence is None:
            return
        count = last.last - last.first + 1
        again = data(0, producer_id, last.sequence, count=count, epoch=last.epoch, transactional=last.transactional)

        assert self.log.append_encoded_batch(again) == last.first

    @rule(producer_id=PRODUCERS, skipped=st.integers(1, 100))
    def send_out_of_turn(self, producer_id: int, skipped: int) -> None:
        known = self.producer(producer_id)
        if known.epoch is None:
            return
        last_sequence = known.last.sequence + known.last.last - known.last.first if known.last else -1  # type: ignore[operator]
        wrong = data(
            0, producer_id, last_sequence + 1 + skipped, epoch=known.epoch, transactional=known.open_since is not None
        )
        with pytest.raises(OutOfOrderSequenceError):
            self.log.append_encoded_batch(wrong)
        if known.epoch:
            with pytest.raises(InvalidProducerEpochError):
                self.log.append_encoded_batch(data(0, producer_id, 0, epoch=known.epoch - 1))
        if known.open_since is not None:
            with pytest.raises(InvalidTransactionStateError):
                self.log.append_encoded_batch(data(0, producer_id, last_sequence + 1, epoch=known.epoch))

    @rule(producer_id=PRODUCERS, is_abort=st.booleans(), new_epoch=st.booleans())
    def end_transaction(self, producer_id: int, is_abort: bool, new_epoch: bool) -> None:
        known = self.producer(producer_id)
        epoch = (known.epoch or 0) + new_epoch
        offset = self.log.append_end_marker(producer_id, epoch, ABORT if is_abort else COMMIT)

        assert offset == self.end
        self.batches.append(Batch(offset, offset, "abort" if is_abort else "commit", producer_id, epoch))

    @rule(place=st.floats(0, 1))
    def truncate(self, place: float) -> None:
        target = self.log.log_start_offset + int(place * (self.end - self.log.log_start_offset))
        start = min(self.log.log_start_offset, target)
        self.log.truncate_to(target)

        self.cut(target, start)
        self.flushed = min(self.flushed, self.end)

    @precondition(lambda self: len(self.batches) > 3)
    @rule(offset=st.integers(0, 10))
    def restart_at(self, offset: int) -> None:
        self.log.truncate_fully_and_start_at(offset)

        self.batches, self.start, self.flushed = [], offset, offset

    @rule()
    def follow_what_another_log_has(self) -> None:
        """A follower takes all that is committed or not, and is then the same log."""
        with (
            tempfile.TemporaryDirectory() as directory,
            LocalLog.create(Path(directory), "orders", 0, TOPIC_ID, CONFIG, clock=lambda: NOW) as follower,
        ):
            offset = self.log.log_start_offset
            while batches := self.log.fetch(offset, 300).batches:
                offset = follower.append_as_follower(batches + b"cut")
            assert offset in (self.end, self.log.log_start_offset)

    @rule()
    def retain(self) -> None:
        gone = self.log.delete_old_segments()

        assert not gone or self.log.log_start_offset > gone[-1].base_offset
        assert (
            sum(segment.size() for segment in self.log.segments[:-1]) <= CONFIG.retention_bytes + CONFIG.segment_bytes
        )

    @rule(place=st.floats(0, 1))
    def delete_records(self, place: float) -> None:
        before = self.log.log_start_offset + int(place * (self.end - self.log.log_start_offset))
        self.log.delete_records(before)

        assert self.log.log_start_offset == before

    @rule()
    def flush(self) -> None:
        self.log.flush()
        self.flushed = self.end

    @rule()
    def close_and_reopen(self) -> None:
        start = self.log.log_start_offset
        self.log.close()
        self.flushed = self.end
        self.check_files()
        self.log = LocalLog.open(self.log.directory, CONFIG, clock=lambda: NOW, log_start_offset=start)
        assert self.log.truncated_bytes == 0

    @rule(kept=st.floats(0, 1), point_known=st.booleans())
    def crash(self, kept: float, point_known: bool) -> None:
        """The process ends; of what was not flushed the disk has any part of the active segment's end."""
        start, point = self.log.log_start_offset, self.log.recovery_point
        self.log._segments.active.write_out()
        self.log.abandon()
        active = self.log.segments[-1]
        content = active.log_path.read_bytes()
        durable = 0
        ends: list[tuple[int, int]] = []
        for header, _ in split(content):
            ends.append(((ends[-1][0] if ends else 0) + header.size, header.next_offset))
            if header.last_offset < self.flushed:
                durable = ends[-1][0]
        length = durable + int(kept * (len(content) - durable))
        # Zeros of a preallocated file must not complete what was cut.
        active.log_path.write_bytes(content + bytes(7) if length == len(content) else content[:length])
        end = max((offset for position, offset in ends if position <= length), default=active.base_offset)

        self.log = LocalLog.open(
            self.log.directory,
            CONFIG,
            clock=lambda: NOW,
            log_start_offset=start,
            recovery_point=point if point_known else None,
        )

        assert self.flushed <= max(end, start) == self.log.log_end_offset
        self.cut(end, start)
        self.flushed = self.end

    @invariant()
    def offsets_are_where_they_should_be(self) -> None:
        unstable = [found for p in range(3) if (found := self.producer(p).open_since) is not None]
        assert self.log.log_end_offset == self.log.high_watermark == self.end
        assert self.log.last_stable_offset == max(min([self.end, *unstable]), self.log.log_start_offset)

    @invariant()
    def producers_are_known(self) -> None:
        known = {entry.producer_id: entry for entry in self.log.producers}
        for producer_id in range(3):
            expected = self.producer(producer_id)
            if expected.epoch is None:
                assert producer_id not in known
                continue
            entry = known[producer_id]
            assert entry.producer_epoch == expected.epoch
            assert entry.last_offset == (expected.last.last if expected.last else -1)
            assert entry.current_transaction_first_offset == (
                -1 if expected.open_since is None else expected.open_since
            )

    @invariant()
    def committed_readers_get_what_is_committed(self) -> None:
        start, stable = self.log.log_start_offset, self.log.last_stable_offset
        aborted = self.transactions()
        expected = [
            offset
            for batch in self.batches
            if batch.kind == "data" and batch.last < stable
            for offset in range(max(batch.first, start), batch.last + 1)
            if not (
                batch.transactional
                and any(p == batch.producer and first <= batch.first < end for p, first, end in aborted)
            )
        ]
        found: list[int] = []
        offset = start
        while (fetched := self.log.fetch(offset, 200, Isolation.READ_COMMITTED)).batches:
            found += committed_offsets(fetched.batches, fetched.aborted, offset)
            offset = split(fetched.batches)[-1][0].next_offset
        assert found == expected

    def check_files(self) -> None:
        """The files beside each segment equal those rebuilt from the log alone."""
        start = self.log.segments[0].base_offset
        for segment in self.log.segments:
            rebuilt = rebuild_indexes(segment, index_interval_bytes=CONFIG.index_interval_bytes)
            assert segment.offset_index_path.read_bytes() == rebuilt.offset_index
            assert segment.time_index_path.read_bytes() == rebuilt.time_index
            index = segment.transaction_index_path
            assert (index.read_bytes() if index.exists() else b"") == rebuilt.transaction_index
            if start < rebuilt.end_offset:
                snapshot = producer_snapshot_path(segment.directory, rebuilt.end_offset)
                assert snapshot.read_bytes() == rebuilt.producer_snapshot


LogAgainstBatches.TestCase.settings = settings(
    max_examples=USUAL_EXAMPLES // 2, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
test_any_course_of_producers_crashes_and_retention = LogAgainstBatches.TestCase
