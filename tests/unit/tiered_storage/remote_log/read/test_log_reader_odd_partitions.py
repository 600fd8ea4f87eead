"""Partitions whose local log, remote tier or log start are not what they should be: nothing wrong is given, and no
offset is passed over."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from support.metadata_stores import a_step
from support.remote_logs import (
    NOW,
    ORDERS_0,
    RemoteLogFiles,
    a_copied_remote_log,
    held_by,
    move_log_start,
    record,
    records,
    segments_of,
)
from support.storages import StagedStorage
from tiered_storage.errors import (
    ConfigurationError,
    OffsetOutOfRangeError,
    ReadTimedOutError,
    RecordsDeletedError,
    RemoteObjectNotFoundError,
    RemoteStorageError,
)
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.model import (
    PartitionDeleteState,
    RemotePartitionDeleteMetadata,
    SegmentState,
    TopicIdPartition,
)
from tiered_storage.remote_log.read.blocking_reader import BlockingLogReader
from tiered_storage.remote_log.read.log_reader import RemoteLogReader
from tiered_storage.remote_log.read.read_values import FoundOffset, Isolation, OffsetSpec, Tier
from tiered_storage.remote_log.source.log_directory_source import LogDirectorySource
from tiered_storage.remote_log.source.partition_log import PartitionLog
from tiered_storage.remote_log.storage.remote_storage_manager import IndexKind
from unit.tiered_storage.remote_log.modelled_logs import ABORT, COMMIT, ROLL, Ended, Sent, Step, a_copied_topic

Change = Callable[[PartitionLog], PartitionLog]


@dataclass(frozen=True)
class ChangedSource(LogDirectorySource):
    """A source whose logs are other than the files say."""

    change: Change = lambda log: log

    def partition(self, partition: TopicIdPartition) -> PartitionLog | None:
        found = super().partition(partition)
        return None if found is None else self.change(found)


@contextmanager
def a_reader(files: RemoteLogFiles, change: Change) -> Iterator[tuple[RemoteLogManager, BlockingLogReader]]:
    """Open a reader of what `change` makes of the local log."""
    with files.open() as remote_log:
        source = ChangedSource(remote_log.context.settings.log_dirs, change=change)
        inner = RemoteLogReader(replace(remote_log.context, source=source))
        with BlockingLogReader(inner) as reader:
            yield remote_log, reader


def ends_at(offset: int) -> Change:
    return lambda log: replace(log, last_stable_offset=offset, high_watermark=offset)


def without_segments(log: PartitionLog) -> PartitionLog:
    return replace(log, segments=(), last_stable_offset=0, high_watermark=0)


@pytest.mark.parametrize("end", [0, 3, 5, 10, 17, 25])
def test_after_the_end_of_a_local_log_that_lags_the_remote_tier_is_read(tmp_path: Path, end: int) -> None:
    with a_reader(a_copied_remote_log(tmp_path), ends_at(end)) as (_, reader):
        for fetched in reader.batches(ORDERS_0, 0):
            assert fetched.tier is Tier.REMOTE or fetched.end_offset <= end
        assert list(reader.records(ORDERS_0, 0)) == records(0, 30)


@pytest.mark.parametrize("change", [ends_at(0), ends_at(7), ends_at(20), without_segments])
def test_by_time_what_only_the_remote_tier_has_is_found_after_a_local_log_that_lags(
    tmp_path: Path, change: Change
) -> None:
    with a_reader(a_copied_remote_log(tmp_path), change) as (_, reader):
        for offset in range(30):
            moment = NOW + 1000 * offset
            assert reader.offsets(ORDERS_0, moment) == FoundOffset(offset, moment, 0)
        assert reader.offsets(ORDERS_0, OffsetSpec.MAX_TIMESTAMP) == FoundOffset(29, record(29).timestamp, 0)


def test_a_lost_first_segment_is_no_offset_out_of_range(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    with a_reader(files, lambda log: replace(log, segments=log.segments[1:], log_start_offset=10)) as (log, reader):
        lost = a_step(segments_of(log)[0], SegmentState.DELETE_SEGMENT_STARTED)
        log.context.segments.update_remote_log_segment_metadata(lost, held_by(log, "test"))

        assert reader.offsets(ORDERS_0, OffsetSpec.EARLIEST) == FoundOffset(0, -1, 0)
        with pytest.raises(RemoteObjectNotFoundError, match="holds offset 0"):
            next(reader.records(ORDERS_0, 0))
        with pytest.raises(RemoteObjectNotFoundError):
            reader.offsets(ORDERS_0, NOW)
        assert list(reader.records(ORDERS_0, 10)) == records(10, 35)


def test_a_read_after_the_cached_end_looks_at_the_log_again(tmp_path: Path) -> None:
    files, end = a_copied_remote_log(tmp_path), [30]
    files.properties["remote.log.reader.metadata.max.age.ms"] = 3_600_000
    with a_reader(files, lambda log: replace(log, last_stable_offset=end[0], high_watermark=end[0])) as (_, reader):
        assert reader.offsets(ORDERS_0, OffsetSpec.LATEST) == FoundOffset(30, -1, 0)
        end[0] = 35
        assert list(reader.records(ORDERS_0, 32)) == records(32, 35)
        with pytest.raises(OffsetOutOfRangeError, match=r"offset 36\b.*offsets 0 to 34\b"):
            list(reader.records(ORDERS_0, 36))


def test_at_read_committed_what_was_copied_again_since_it_was_looked_at_is_no_error(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    files.properties |= {"log.dirs": [], "remote.log.reader.metadata.max.age.ms": 3_600_000}
    with files.open() as remote_log, BlockingLogReader(remote_log.open_log_reader()) as reader:
        assert reader.offsets(ORDERS_0, OffsetSpec.LATEST) == FoundOffset(30, -1, 0)
        last = segments_of(remote_log)[-1]
        held = held_by(remote_log, "test")
        going = a_step(last, SegmentState.DELETE_SEGMENT_STARTED)
        remote_log.context.segments.update_remote_log_segment_metadata(going, held)
        remote_log.context.storage.delete_log_segment_data(last)
        found = list(reader.records(ORDERS_0, 0, isolation=Isolation.READ_COMMITTED))
        assert found == records(0, 20)


def test_at_read_committed_a_log_that_is_all_local_needs_no_store(tmp_path: Path) -> None:
    files, rows = a_copied_topic(tmp_path, [Sent([0], producer=1), Ended(1, COMMIT), Sent([1], producer=1)])
    with files.open() as remote_log:
        staged = StagedStorage(remote_log.context.storage)
        staged.fail_with = RemoteStorageError("down")
        inner = RemoteLogReader(replace(remote_log.context, storage=staged))
        with BlockingLogReader(inner) as reader:
            assert reader.offsets(ORDERS_0, OffsetSpec.LATEST) == FoundOffset(
                reader.snapshot(ORDERS_0).remote_end, -1, 0
            )
            found = list(reader.records(ORDERS_0, 5, isolation=Isolation.READ_COMMITTED, deadline_ms=20))
    assert found == [row.record for row in rows]


def mark_lost(remote_log: RemoteLogManager, start_offset: int) -> None:
    [lost] = [each for each in segments_of(remote_log) if each.start_offset == start_offset]
    going = a_step(lost, SegmentState.DELETE_SEGMENT_STARTED)
    remote_log.context.segments.update_remote_log_segment_metadata(going, held_by(remote_log, "test"))


@pytest.mark.parametrize("is_copied", [True, False])
@pytest.mark.parametrize("is_cut", [True, False])
def test_at_read_committed_nothing_is_given_whose_marker_a_replica_has_not(
    tmp_path: Path, *, is_copied: bool, is_cut: bool
) -> None:
    """Offset 5 is of a transaction that offset 12 aborts: there a later leader cut this replica, or it came no further.

    Remote are the offsets below 10, and those up to where it ends or nothing else.
    """
    steps: list[Step] = [Sent([0], producer=1), Sent([0] * 4), ROLL, Sent([0] * 2), Ended(1, ABORT)]
    files, _ = a_copied_topic(tmp_path, steps)
    with files.open() as remote_log:
        if not is_copied:
            mark_lost(remote_log, 10)
        if is_cut or is_copied:
            lineage = (EpochEntry(0, 0), EpochEntry(9, 12))
            remote_log.context.segments.put_lineage(ORDERS_0, lineage, held_by(remote_log, "test"))
    lagging = (lambda log: log) if is_cut else (lambda log: replace(log, last_stable_offset=5, high_watermark=12))
    with a_reader(files, lagging) as (_, reader):
        leader = 9 if is_cut or is_copied else 0
        assert reader.offsets(ORDERS_0, OffsetSpec.LATEST) == FoundOffset(12, -1, leader)
        assert reader.offsets(ORDERS_0, OffsetSpec.LATEST, Isolation.READ_COMMITTED) == FoundOffset(5, -1, leader)
        assert list(reader.records(ORDERS_0, 0, isolation=Isolation.READ_COMMITTED)) == records(0, 5)
        for undecided in (5, 6, 12):
            assert list(reader.records(ORDERS_0, undecided, isolation=Isolation.READ_COMMITTED)) == []


def test_a_slow_snapshot_ends_at_each_waiters_own_deadline(tmp_path: Path) -> None:
    proceed = threading.Event()

    def waits(log: PartitionLog) -> PartitionLog:
        assert proceed.wait(10)
        return log

    files = a_copied_remote_log(tmp_path)
    files.properties["remote.fetch.max.wait.ms"] = 20
    files.properties["remote.list.offsets.request.timeout.ms"] = 30
    with a_reader(files, waits) as (_, reader):
        for read, wait_ms in (
            (lambda: next(reader.records(ORDERS_0, 0)), 20),
            (lambda: reader.offsets(ORDERS_0, OffsetSpec.LATEST), 30),
            (lambda: reader.snapshot(ORDERS_0), 20),
        ):
            with pytest.raises(ReadTimedOutError, match=f"orders-0.*{wait_ms} ms"):
                read()
        proceed.set()


def mark_deleted(remote_log: RemoteLogManager) -> None:
    going = RemotePartitionDeleteMetadata(ORDERS_0, PartitionDeleteState.MARKED, NOW)
    remote_log.context.segments.put_remote_partition_delete_metadata(going, held_by(remote_log, "test"))


def test_remote_records_of_a_deleted_topic_are_not_returned(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    files.properties["log.dirs"] = []
    with files.open() as remote_log:
        segment = segments_of(remote_log)[0].segment_id.id
        mark_deleted(remote_log)
        with BlockingLogReader(remote_log.open_log_reader()) as reader:
            for read in (
                lambda: list(reader.segment_bytes(ORDERS_0, segment)),
                lambda: reader.index(ORDERS_0, segment, IndexKind.MANIFEST),
            ):
                with pytest.raises(RecordsDeletedError, match="offset 0 was deleted"):
                    read()
            with pytest.raises(OffsetOutOfRangeError):
                list(reader.records(ORDERS_0, 0))


def test_local_records_of_a_deleted_topic_are_returned(tmp_path: Path) -> None:
    with a_copied_remote_log(tmp_path).open() as remote_log:
        mark_deleted(remote_log)
        with BlockingLogReader(remote_log.open_log_reader()) as reader:
            assert {each.tier for each in reader.batches(ORDERS_0, 0)} == {Tier.LOCAL}


def test_below_the_global_log_start_no_segment_is_given(tmp_path: Path) -> None:
    with a_copied_remote_log(tmp_path).open() as remote_log:
        first, second, _ = (segment.segment_id.id for segment in segments_of(remote_log))
        move_log_start(remote_log, 10, held_by(remote_log, "test"))
        with BlockingLogReader(remote_log.open_log_reader()) as reader:
            with pytest.raises(RecordsDeletedError, match="begins at offset 10"):
                list(reader.segment_bytes(ORDERS_0, first))
            assert len(b"".join(reader.segment_bytes(ORDERS_0, second))) > 0


def test_a_read_gets_an_error_while_another_thread_closes_the_reader(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path)
    files.properties["log.dirs"] = []
    errors: list[BaseException] = []
    with files.open() as remote_log:
        staged = StagedStorage(remote_log.context.storage)
        inner = RemoteLogReader(replace(remote_log.context, storage=staged))
        reader = BlockingLogReader(inner)
        staged.stand_still()

        def read() -> None:
            try:
                list(reader.records(ORDERS_0, 0))
            except ConfigurationError as error:
                errors.append(error)

        waiting = threading.Thread(target=read, daemon=True)
        waiting.start()
        while not inner.remote_running:
            pass
        reader.close()
        waiting.join(10)
        staged.proceed()
        assert "closed" in str(errors[0])
        with pytest.raises(ConfigurationError, match="closed"):
            reader.snapshot(ORDERS_0)


def test_a_reader_that_continues_has_the_following_chunks_on_their_way(tmp_path: Path) -> None:
    files = a_copied_remote_log(tmp_path, {("orders", 0): 12})
    files.properties["log.dirs"] = []
    begun, sixth, was_on_its_way = list[int](), threading.Event(), list[bool]()

    def before(_: object, position: int) -> None:
        """Hold the first chunk of the third segment: of a fourth one, the indexes may still be on their way."""
        begun.append(position)
        if len(begun) == 6:
            sixth.set()
        if len(begun) == 5:
            was_on_its_way.append(sixth.wait(10))

    with files.open() as remote_log:
        staged = StagedStorage(remote_log.context.storage)
        staged.before = before
        inner = RemoteLogReader(replace(remote_log.context, storage=staged))
        with BlockingLogReader(inner) as reader:
            found = list(reader.records(ORDERS_0, 0))
            assert found == records(0, len(found))
    assert was_on_its_way == [True]


@pytest.mark.parametrize("fails", [False, True])
def test_a_read_shows_whether_its_next_batches_are_in_memory(tmp_path: Path, fails: bool) -> None:
    files = a_copied_remote_log(tmp_path, {("orders", 0): 12})
    files.properties["log.dirs"] = []
    begun, may_proceed = list[int](), threading.Event()

    def before(_: object, position: int) -> None:
        """Hold every chunk after the third: the fourth is fetched ahead, as it is in the same segment."""
        begun.append(position)
        if len(begun) > 3:
            may_proceed.wait(10)
            if fails:
                raise RemoteStorageError("out of reach")

    async def work(reader: RemoteLogReader) -> None:
        stream = reader.stream(ORDERS_0, 0)
        steps = stream.fetch()
        assert not stream.is_next_there()
        for _ in range(3):
            await anext(steps)
        assert not stream.is_next_there()
        may_proceed.set()
        while reader.remote_running or reader.remote_pending:
            await asyncio.sleep(0)
        assert stream.is_next_there() != fails
        await steps.aclose()

    with files.open() as remote_log:
        staged = StagedStorage(remote_log.context.storage)
        staged.before = before
        with RemoteLogReader(replace(remote_log.context, storage=staged)) as reader:
            asyncio.run(asyncio.wait_for(work(reader), 30))
