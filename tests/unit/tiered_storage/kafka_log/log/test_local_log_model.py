"""Any course of appends, flushes, clean closes and crashes, against a list of records."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from support.local_logs import NOW, TOPIC_ID, read_all
from support.records import USUAL_EXAMPLES
from tiered_storage.kafka_log.files.log_segment import producer_snapshot_path
from tiered_storage.kafka_log.indexes.index_builder import IndexBuilder
from tiered_storage.kafka_log.log.local_log import LocalLog
from tiered_storage.kafka_log.log.log_config import LogConfig
from tiered_storage.kafka_log.producers.producer_snapshot import read_producer_snapshot
from tiered_storage.kafka_log.records.batch_table import BatchTable
from tiered_storage.kafka_log.records.compression import Compression
from tiered_storage.kafka_log.records.record import Record
from tiered_storage.kafka_log.records.segment_scan import scan_segment

CONFIG = LogConfig(segment_bytes=1000, segment_ms=50, index_interval_bytes=200, segment_index_bytes=48)
MOST_TIME_ENTRIES = 48 // 12 - 1

small_records = st.builds(
    Record,
    st.just(0),
    st.integers(0, 100),
    st.none() | st.binary(max_size=5),
    st.none() | st.binary(max_size=60),
    st.lists(st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=3)), max_size=2).map(tuple),
)


class LogAgainstRecords(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.temporary = tempfile.TemporaryDirectory()
        self.log = LocalLog.create(Path(self.temporary.name), "orders", 0, TOPIC_ID, CONFIG, clock=lambda: NOW)
        self.records: list[Record] = []
        self.epochs: list[tuple[int, int]] = []
        self.flushed = 0
        self.emptied: set[int] = set()
        """Base offsets of segments whose first batch a crash took: what they were rolled for is gone with it."""

    def teardown(self) -> None:
        self.log.close()
        self.temporary.cleanup()

    @rule(batch=st.lists(small_records, min_size=1, max_size=4), compression=st.sampled_from(Compression))
    def append(self, batch: list[Record], compression: Compression) -> None:
        base_offset = self.log.append(batch, compression)

        assert base_offset == len(self.records)
        self.records += [replace(record, offset=offset) for offset, record in enumerate(batch, base_offset)]
        self.epochs = self.epochs or [(0, base_offset)]

    @rule(record=small_records)
    def append_in_a_new_leader_epoch(self, record: Record) -> None:
        epoch = self.epochs[-1][0] + 2 if self.epochs else 1
        offset = self.log.append([record], leader_epoch=epoch)

        self.records.append(replace(record, offset=offset))
        self.epochs.append((epoch, offset))

    @rule()
    def flush(self) -> None:
        self.log.flush()
        self.flushed = len(self.records)

    @rule()
    def close_and_reopen(self) -> None:
        self.log.close()
        self.flushed = len(self.records)
        self.check_closed_segments()
        self.log = LocalLog.open(self.log.directory, CONFIG, clock=lambda: NOW)

    @rule()
    def read_back(self) -> None:
        assert read_all(self.log) == self.records

    @rule(kept=st.floats(0, 1))
    def crash(self, kept: float) -> None:
        """The process ends; of what was not flushed the disk has any part of the active segment's end."""
        self.log._segments.active.write_out()
        self.log.abandon()
        active = self.log.segments[-1]
        table = scan_segment(active.log_path, active.base_offset)
        durable = int(table.size[table.last_offset < self.flushed].sum())
        length = durable + int(kept * (active.size() - durable))
        with active.log_path.open("r+b") as file:
            file.truncate(length)

        self.log = LocalLog.open(self.log.directory, CONFIG, clock=lambda: NOW)

        whole = table.position + table.size <= length
        end = int(table.last_offset[whole][-1]) + 1 if whole.any() else active.base_offset
        assert end >= self.flushed
        if not whole.any():
            self.emptied.add(active.base_offset)
        self.records = self.records[:end]
        self.epochs = [entry for entry in self.epochs if entry[1] < end]
        self.flushed = end

    @invariant()
    def the_log_ends_after_its_last_record(self) -> None:
        assert (self.log.log_start_offset, self.log.log_end_offset) == (0, len(self.records))

    @invariant()
    def leader_epochs_are_known(self) -> None:
        assert [(entry.epoch, entry.start_offset) for entry in self.log.leader_epochs] == self.epochs

    def check_closed_segments(self) -> None:
        """Each segment is indexed as a broker does it, and none was rolled before it had to be."""
        tables = []
        for segment in self.log.segments:
            table = scan_segment(segment.log_path, segment.base_offset)
            indexes = IndexBuilder(segment.base_offset, CONFIG.index_interval_bytes)
            indexes.append(table)
            indexes.close()
            assert segment.offset_index_path.read_bytes() == indexes.offset_index().to_bytes()
            assert segment.time_index_path.read_bytes() == indexes.time_index().to_bytes()
            assert segment.size() <= CONFIG.segment_bytes
            if len(table):
                assert (table.max_timestamp - table.max_timestamp[0]).max() <= CONFIG.segment_ms
            tables.append(table)
        for segment, (before, after) in zip(self.log.segments[1:], pairwise(tables), strict=True):
            assert before.last_offset[-1] + 1 == segment.base_offset
            assert read_producer_snapshot(producer_snapshot_path(segment.directory, segment.base_offset)) == ()
            if len(after) and segment.base_offset not in self.emptied:
                assert must_roll(before, after)


def must_roll(before: BatchTable, after: BatchTable) -> bool:
    indexes = IndexBuilder(int(before.base_offset[0]), CONFIG.index_interval_bytes)
    indexes.append(before)
    return bool(
        before.size.sum() + after.size[0] > CONFIG.segment_bytes
        or after.max_timestamp[0] - before.max_timestamp[0] > CONFIG.segment_ms
        or indexes.time_entry_count >= MOST_TIME_ENTRIES
    )


LogAgainstRecords.TestCase.settings = settings(
    max_examples=USUAL_EXAMPLES // 2, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
test_any_course_of_appends_closes_and_crashes = LogAgainstRecords.TestCase
