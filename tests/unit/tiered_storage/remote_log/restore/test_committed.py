from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.command_line import mentions
from support.metadata_stores import a_step
from support.records import USUAL_EXAMPLES
from support.remote_logs import (
    LOG_CONFIG,
    NOW,
    RemoteLogFiles,
    a_remote_log,
    copy,
    held_by,
    record,
    records,
    segments_of,
    unsynced,
)
from tiered_storage.errors import RemoteObjectNotFoundError
from tiered_storage.kafka_log.log.local_log import LocalLog
from tiered_storage.kafka_log.log.log_directory_writer import LogDirectoryWriter
from tiered_storage.kafka_log.records.control_record import ControlRecordType
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata, SegmentState
from tiered_storage.remote_log.restore.committed import CommittedRecords
from tiered_storage.remote_log.restore.request import RestoreRequest
from tiered_storage.remote_log.storage.remote_storage_manager import IndexKind
from tiered_storage.remote_log.storage.segment_objects import ObjectRemoteStorageManager

COMMIT, ABORT = ControlRecordType.COMMIT, ControlRecordType.ABORT


def committed(remote_log: RemoteLogManager, after: int | None = None, **request: Any) -> list[int]:
    """Return the offsets of the committed records of orders-0 in the store; each is the record that was written."""
    plan = remote_log.restores.plan(RestoreRequest("orders", **request))
    [partition] = plan.partitions
    found = list(CommittedRecords(partition, plan.request, remote_log.context.storage).after(after))
    assert found == [record(each.offset) for each in found]
    return [each.offset for each in found]


class Producers:
    """Writes records in transactions and outside, one a batch, and keeps what a reader of committed ones gets."""

    def __init__(self, log: LocalLog) -> None:
        self.log = log
        self.committed = set(range(log.log_end_offset))
        self.open: dict[int, list[int]] = {}
        self._sequences: dict[int, int] = {}

    def send(self, producer_id: int) -> None:
        offset = self.log.log_end_offset
        if not producer_id:
            self.log.append([record(offset)])
            self.committed.add(offset)
            return
        sequence = self._sequences.setdefault(producer_id, 0)
        self._sequences[producer_id] += 1
        self.log.append(
            [record(offset)],
            producer_id=producer_id, producer_epoch=0, base_sequence=sequence, is_transactional=True,
        )  # fmt: skip
        self.open.setdefault(producer_id, []).append(offset)

    def end(self, producer_id: int, kind: ControlRecordType) -> None:
        if producer_id in self.open:
            self.log.append_end_marker(producer_id, 0, kind)
            if kind is COMMIT:
                self.committed.update(self.open[producer_id])
            del self.open[producer_id]


@settings(max_examples=USUAL_EXAMPLES // 2, deadline=None)
@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("send"), st.integers(0, 3)),
            st.tuples(st.just("commit"), st.integers(1, 3)),
            st.tuples(st.just("abort"), st.integers(1, 3)),
            st.tuples(st.just("roll"), st.just(0)),
        ),
        max_size=50,
    ),
    start=st.integers(-1, 40),
    end=st.integers(1, 60),
)
def test_committed_records_are_restored_whichever_segments_have_their_markers(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]], start: int, end: int
) -> None:
    files = a_remote_log(tmp_path_factory.mktemp("log"), {("orders", 0): 0})
    with unsynced(), LogDirectoryWriter.open(files.log_directory, LOG_CONFIG, clock=lambda: NOW) as writer:
        log = writer.log("orders", 0)
        producers = Producers(log)
        for what, producer_id in steps:
            if what == "send":
                producers.send(producer_id)
            elif what == "roll":
                log.roll()
            else:
                producers.end(producer_id, COMMIT if what == "commit" else ABORT)
        # All is decided, so that all is stable and copied.
        for producer_id in list(producers.open):
            producers.end(producer_id, ABORT if producer_id == 2 else COMMIT)
        log.roll()
    with unsynced(), files.open() as remote_log:
        assert copy(remote_log).is_whole
        expected = sorted(producers.committed)
        assert committed(remote_log) == expected
        assert committed(remote_log, start) == [each for each in expected if each > start]
        assert committed(remote_log, to_offset=end) == [each for each in expected if each < end]


def test_nothing_is_given_from_a_transaction_on_that_nothing_decides(tmp_path: Path) -> None:
    """Its end is not copied yet. Later records are held back too, so that a later run continues there."""
    files = a_remote_log(tmp_path, {("orders", 0): 0}, log_end_is_stable=True)
    with LogDirectoryWriter.open(files.log_directory, LOG_CONFIG, clock=lambda: NOW) as writer:
        producers = Producers(writer.log("orders", 0))
        producers.send(7)
        producers.send(0)
        producers.log.roll()
        producers.end(7, COMMIT)
        producers.send(0)
        producers.log.roll()
    with files.open() as remote_log:
        assert copy(remote_log).is_whole
        assert committed(remote_log) == [*range(7), 8]
        plan = remote_log.restores.plan(RestoreRequest("orders"))
        [partition] = plan.partitions
        cut = replace(partition, segments=partition.segments[:1], log_end_offset=7)
        found = CommittedRecords(cut, plan.request, remote_log.context.storage).after(None)
        assert [each.offset for each in found] == [0, 1, 2, 3, 4]


def test_a_range_of_times_gives_the_records_in_it(tmp_path: Path) -> None:
    files = a_remote_log(tmp_path)
    with files.open() as remote_log:
        copy(remote_log)
        begin, end = records(13, 14)[0].timestamp, records(22, 23)[0].timestamp
        assert committed(remote_log, from_timestamp=begin, to_timestamp=end) == list(range(13, 22))
        assert committed(remote_log, from_timestamp=begin, to_offset=15) == [13, 14]


def an_aborted_transaction(tmp_path: Path) -> RemoteLogFiles:
    """Its record at offset 5 is in one segment, its marker in the next one; a third holds offset 7."""
    files = a_remote_log(tmp_path, {("orders", 0): 0})
    with unsynced(), LogDirectoryWriter.open(files.log_directory, LOG_CONFIG, clock=lambda: NOW) as writer:
        producers = Producers(writer.log("orders", 0))
        producers.send(7)
        producers.log.roll()
        producers.end(7, ABORT)
        producers.log.roll()
        producers.send(0)
        producers.log.roll()
    return files


def test_records_that_may_be_aborted_in_a_gap_are_withheld(tmp_path: Path) -> None:
    files = an_aborted_transaction(tmp_path)
    with files.open() as remote_log:
        assert copy(remote_log).is_whole
        plan = remote_log.restores.plan(RestoreRequest("orders"))
        assert not plan.notices
        marker = segments_of(remote_log)[1]
        step = a_step(marker, SegmentState.DELETE_SEGMENT_STARTED)
        remote_log.context.segments.update_remote_log_segment_metadata(step, held_by(remote_log, "test"))
        assert committed(remote_log) == [0, 1, 2, 3, 4, 7]
        [notice] = remote_log.restores.plan(RestoreRequest("orders")).notices
        assert mentions(notice.message, "producer 7 ", "offset 5 ")


@pytest.mark.parametrize("is_copied", [True, False])
def test_without_a_snapshot_the_batches_tell_what_is_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_copied: bool
) -> None:
    files = an_aborted_transaction(tmp_path)
    with files.open() as remote_log:
        assert copy(remote_log).is_whole
        fetch = ObjectRemoteStorageManager.fetch_index

        def without_snapshots(
            self: ObjectRemoteStorageManager, segment: RemoteLogSegmentMetadata, kind: IndexKind
        ) -> bytes:
            if kind is IndexKind.PRODUCER_SNAPSHOT:
                raise RemoteObjectNotFoundError("no snapshot")
            return fetch(self, segment, kind)

        monkeypatch.setattr(ObjectRemoteStorageManager, "fetch_index", without_snapshots)
        if not is_copied:
            for segment in segments_of(remote_log)[1:]:
                step = a_step(segment, SegmentState.DELETE_SEGMENT_STARTED)
                remote_log.context.segments.update_remote_log_segment_metadata(step, held_by(remote_log, "test"))
        assert committed(remote_log) == [0, 1, 2, 3, 4, *([7] if is_copied else [])]
        plan = remote_log.restores.plan(RestoreRequest("orders", to_offset=6))
        assert [each.end_offset for each in plan.segments()] == ([5, 6] if is_copied else [5])
        messages = [each.message for each in plan.notices]
        assert [mentions(text, "transaction", "offset 5 ", "no end") for text in messages] == (
            [] if is_copied else [True]
        )
