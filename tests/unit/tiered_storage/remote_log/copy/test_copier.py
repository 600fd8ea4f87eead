from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from support.clocks import ManualClock
from support.command_line import mentions
from support.remote_logs import (
    BATCH_BYTES,
    NOW,
    ORDERS_0,
    SEGMENT_BYTES,
    SIZES,
    a_remote_log,
    batches_in,
    flip_bit,
    location_of,
    record,
    records,
    rewrite_segment,
)
from tiered_storage.errors import RemoteObjectNotFoundError, RemoteStorageFullError
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.kafka_log.files.log_segment import LogSegment, producer_snapshot_path
from tiered_storage.kafka_log.indexes.index_builder import IndexBuilder
from tiered_storage.kafka_log.records.record_batch import encode_batch
from tiered_storage.kafka_log.records.segment_scan import scan_segment
from tiered_storage.remote_log.copy.copier import CopySizes, copy_segment
from tiered_storage.remote_log.copy.tasks import CopyOutcome, CopyTask
from tiered_storage.remote_log.indexes.remote_index_lookup import RemoteIndexes
from tiered_storage.remote_log.model import (
    Lease,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    SegmentState,
)
from tiered_storage.remote_log.storage.clients.local_directory import LocalDirectory
from tiered_storage.remote_log.storage.remote_storage_manager import IndexKind, LogSegmentData
from tiered_storage.remote_log.storage.segment_objects import ObjectRemoteStorageManager

CLOCK = ManualClock(NOW + 5)
LINEAGE = (EpochEntry(0, 0),)


@pytest.fixture
def segment(tmp_path: Path) -> LogSegment:
    """A closed segment from offset 10 to 19, with all its files."""
    return a_remote_log(tmp_path, {("orders", 0): 2}).local_segments()[1]


def task_for(
    segment: LogSegment,
    *,
    end_offset: int = 19,
    lineage: tuple[EpochEntry, ...] = LINEAGE,
    size: int | None = None,
) -> CopyTask:
    metadata = RemoteLogSegmentMetadata(
        RemoteLogSegmentId(ORDERS_0, "AAAAAAAAAAAAAAAAAAAAAA"),
        segment.base_offset,
        end_offset,
        -1,
        NOW,
        segment.size() if size is None else size,
        lineage,
    )
    return CopyTask(metadata, Lease(ORDERS_0, "copy", 1, NOW), location_of(segment.log_path), lineage)


def run(task: CopyTask, storage: ObjectRemoteStorageManager) -> CopyOutcome:
    return copy_segment(task, storage, SIZES, CLOCK)


def failed(outcome: CopyOutcome, storage: ObjectRemoteStorageManager) -> tuple[str, str]:
    """Return error and message; nothing of a failed copy may look whole."""
    assert outcome.finished is None
    assert outcome.failure is not None
    assert not [found.name for found in storage.list_objects() if found.name.endswith(".commit")]
    return outcome.failure.error, outcome.failure.message


def finished(outcome: CopyOutcome) -> RemoteLogSegmentMetadata:
    """Return the segment's metadata as the commit would leave it."""
    assert outcome.failure is None, outcome.failure
    assert outcome.finished is not None
    return outcome.task.metadata.updated(outcome.finished)


def test_a_copy_with_more_custom_metadata_than_allowed_fails_and_leaves_nothing(
    segment: LogSegment, storage: ObjectRemoteStorageManager
) -> None:
    size = len(finished(run(task_for(segment), storage)).custom_metadata or b"")
    allowed = copy_segment(task_for(segment), storage, replace(SIZES, custom_metadata=size), CLOCK)
    refused = copy_segment(task_for(segment), storage, replace(SIZES, custom_metadata=size - 1), CLOCK)

    assert allowed.failure is None
    error, message = failed(refused, storage)
    assert error == "ConfigurationError"
    assert "remote.log.metadata.custom.metadata.max.bytes" in message
    assert list(storage.list_objects()) == []


def test_a_segment_arrives_byte_for_byte_with_all_that_belongs_to_it(
    segment: LogSegment, storage: ObjectRemoteStorageManager
) -> None:
    outcome = run(task_for(segment), storage)
    copied = finished(outcome)

    assert b"".join(storage.fetch_log_segment(copied)) == segment.log_path.read_bytes()
    for kind, path in [
        (IndexKind.OFFSET, segment.offset_index_path),
        (IndexKind.TIMESTAMP, segment.time_index_path),
        (IndexKind.PRODUCER_SNAPSHOT, producer_snapshot_path(segment.directory, 20)),
    ]:
        assert storage.fetch_index(copied, kind) == path.read_bytes(), kind
    assert storage.fetch_index(copied, IndexKind.LEADER_EPOCH) == b"0\n1\n0 0\n"
    with pytest.raises(RemoteObjectNotFoundError):
        storage.fetch_index(copied, IndexKind.TRANSACTION)
    storage.verify(copied)
    assert outcome.record_count == 10
    assert outcome.damages == outcome.notices == ()
    assert outcome.seconds > 0
    assert Path(outcome.library).name == "tiered_storage"


def test_the_outcome_is_the_step_that_commits_it(segment: LogSegment, storage: ObjectRemoteStorageManager) -> None:
    copied = finished(run(task_for(segment), storage))

    assert copied.state is SegmentState.COPY_SEGMENT_FINISHED
    assert copied.max_timestamp == record(19).timestamp
    assert copied.event_timestamp == CLOCK.now
    assert copied.custom_metadata


def test_the_remote_indexes_lead_to_every_offset(segment: LogSegment, storage: ObjectRemoteStorageManager) -> None:
    copied = finished(run(task_for(segment), storage))

    indexes = RemoteIndexes.parse(
        "test",
        10,
        *(
            storage.fetch_index(copied, kind)
            for kind in (
                IndexKind.REMOTE_LOG_INDEX, IndexKind.REMOTE_OFFSET_INDEX, IndexKind.REMOTE_TIME_INDEX,
            )
        ),
    )  # fmt: skip
    assert indexes.first_offsets.tolist() == [10, 15]
    for offset in range(10, 20):
        chunk = indexes.chunk_for_offset(offset)
        assert chunk is not None
        assert chunk.first_offset <= offset <= chunk.last_offset
        assert (chunk.position, chunk.length) == ((offset - 10) // 5 * BATCH_BYTES, BATCH_BYTES)


def test_all_leader_epochs_up_to_the_end_travel_along(segment: LogSegment, storage: ObjectRemoteStorageManager) -> None:
    lineage = (EpochEntry(0, 0), EpochEntry(2, 15))
    first, second = batches_in(segment.log_path)
    rewrite_segment(segment.log_path, [first, second[:12] + struct.pack(">i", 2) + second[16:]])

    copied = finished(run(task_for(segment, lineage=lineage), storage))

    assert storage.fetch_index(copied, IndexKind.LEADER_EPOCH) == b"0\n2\n0 0\n2 15\n"


@pytest.mark.parametrize("window", [64, 100, BATCH_BYTES, BATCH_BYTES + 1, 10 * SEGMENT_BYTES])
def test_any_window_makes_the_same_objects(
    segment: LogSegment, storage: ObjectRemoteStorageManager, tmp_path: Path, window: int
) -> None:
    other = ObjectRemoteStorageManager(LocalDirectory(tmp_path / "other"))

    finished(run(task_for(segment), storage))
    finished(copy_segment(task_for(segment), other, CopySizes(window, 100, 400), CLOCK))

    for found in storage.list_objects():
        assert (tmp_path / "other" / found.name).read_bytes() == (tmp_path / "store" / found.name).read_bytes()


def corrupt_flip(segment: LogSegment) -> None:
    flip_bit(segment.log_path, BATCH_BYTES + 100)


def corrupt_cut_inside(segment: LogSegment) -> None:
    os.truncate(segment.log_path, SEGMENT_BYTES - 7)


def corrupt_cut_between(segment: LogSegment) -> None:
    os.truncate(segment.log_path, BATCH_BYTES)


def corrupt_magic(segment: LogSegment) -> None:
    first, second = batches_in(segment.log_path)
    rewrite_segment(segment.log_path, [first, second[:16] + b"\3" + second[17:]])


def corrupt_empty(segment: LogSegment) -> None:
    os.truncate(segment.log_path, 0)


def corrupt_repeat(segment: LogSegment) -> None:
    first, _ = batches_in(segment.log_path)
    rewrite_segment(segment.log_path, [first, first])


def corrupt_swap(segment: LogSegment) -> None:
    rewrite_segment(segment.log_path, list(batches_in(segment.log_path))[::-1])


def corrupt_neighbours(segment: LogSegment) -> None:
    """Put the first batch of the segment before in the first one's place."""
    before = next(batches_in(LogSegment(0, segment.directory).log_path))
    _, second = batches_in(segment.log_path)
    rewrite_segment(segment.log_path, [before, second])


@pytest.mark.parametrize(
    ("damage", "error", "reason"),
    [
        (corrupt_flip, "CorruptRecordError", f"at byte {BATCH_BYTES}: the batch's CRC-32C"),
        (corrupt_cut_inside, "CorruptRecordError", f"at byte {BATCH_BYTES}: truncated"),
        (corrupt_cut_between, "CorruptRecordError", "offset 14, but the next segment begins at 20"),
        (corrupt_magic, "UnsupportedMagicError", f"at byte {BATCH_BYTES}: the batch has magic 3"),
        (corrupt_empty, "CorruptRecordError", "next segment begins at 20"),
        (corrupt_repeat, "CorruptRecordError", f"at byte {BATCH_BYTES}: the batch starts at offset 10"),
        (corrupt_swap, "CorruptRecordError", f"at byte {BATCH_BYTES}: the batch starts at offset 10"),
        (corrupt_neighbours, "CorruptRecordError", "at byte 0: the batch starts at offset 0"),
    ],
)
def test_a_segment_that_is_not_as_a_broker_wrote_it_is_never_marked_as_whole(
    segment: LogSegment,
    storage: ObjectRemoteStorageManager,
    damage: Callable[[LogSegment], None],
    error: str,
    reason: str,
) -> None:
    damage(segment)

    name, message = failed(run(task_for(segment), storage), storage)

    assert name == error
    assert str(segment.log_path) in message
    assert reason in message


def test_a_segment_cut_since_it_was_planned_is_noticed(
    segment: LogSegment, storage: ObjectRemoteStorageManager
) -> None:
    task = task_for(segment)
    os.truncate(segment.log_path, BATCH_BYTES)

    error, message = failed(run(task, storage), storage)

    assert error == "CorruptRecordError"
    assert mentions(message, segment.log_path, BATCH_BYTES, SEGMENT_BYTES)


def test_a_segment_grown_since_it_was_planned_is_noticed(
    segment: LogSegment, storage: ObjectRemoteStorageManager
) -> None:
    task = task_for(segment, end_offset=24)
    with segment.log_path.open("ab") as file:
        file.write(encode_batch(records(20, 25)))

    _, message = failed(run(task, storage), storage)

    assert f"{SEGMENT_BYTES} bytes were announced" in message


def test_a_segment_that_is_gone_is_a_failure_that_names_it(
    segment: LogSegment, storage: ObjectRemoteStorageManager
) -> None:
    task = task_for(segment)
    segment.log_path.unlink()

    error, message = failed(run(task, storage), storage)

    assert error == "FileNotFoundError"
    assert str(segment.log_path) in message


@pytest.mark.parametrize(
    ("lineage", "offset", "said"),
    [
        ((EpochEntry(1, 0),), 10, 1),
        ((EpochEntry(0, 0), EpochEntry(1, 15)), 15, 1),
    ],
)
def test_batches_of_another_leader_than_the_lineage_names_are_refused(
    segment: LogSegment,
    storage: ObjectRemoteStorageManager,
    lineage: tuple[EpochEntry, ...],
    offset: int,
    said: int,
) -> None:
    _, message = failed(run(task_for(segment, lineage=lineage), storage), storage)

    assert mentions(message, f"offset {offset} ", "leader epoch 0")
    assert f"where leader-epoch-checkpoint says {said}" in message


@pytest.mark.parametrize(
    ("batch_epoch", "lineage"),
    [(-1, ()), (5, ()), (-1, (EpochEntry(9, 15),)), (5, (EpochEntry(9, 15),))],
    ids=[
        "the broker did not stamp it",
        "no lineage is known",
        "not stamped, and the lineage begins later",
        "the lineage begins later",
    ],
)
def test_batches_without_a_known_lineage_are_copied(
    segment: LogSegment, storage: ObjectRemoteStorageManager, batch_epoch: int, lineage: tuple[EpochEntry, ...]
) -> None:
    first, second = batches_in(segment.log_path)
    later = 9 if lineage and lineage[0].start_offset == 15 else batch_epoch
    rewrite_segment(
        segment.log_path,
        [
            first[:12] + struct.pack(">i", batch_epoch) + first[16:],
            second[:12] + struct.pack(">i", later) + second[16:],
        ],
    )

    finished(run(task_for(segment, lineage=lineage), storage))


def test_a_batch_that_is_not_stamped_is_refused_where_the_log_has_epochs(
    segment: LogSegment, storage: ObjectRemoteStorageManager
) -> None:
    """Its epoch was damaged: a broker that keeps epochs stamps every batch."""
    first, second = batches_in(segment.log_path)
    rewrite_segment(segment.log_path, [first, second[:12] + struct.pack(">i", -1) + second[16:]])

    _, message = failed(run(task_for(segment, lineage=LINEAGE), storage), storage)

    assert mentions(message, "offset 15", "leader epoch -1")


def test_gaps_that_compaction_left_inside_are_kept(segment: LogSegment, storage: ObjectRemoteStorageManager) -> None:
    batches = [encode_batch([record(11), record(14)]), encode_batch([record(19)])]
    rewrite_segment(segment.log_path, batches)
    for path in (segment.offset_index_path, segment.time_index_path):
        path.unlink()

    outcome = run(task_for(segment), storage)

    assert b"".join(storage.fetch_log_segment(finished(outcome))) == b"".join(batches)
    assert outcome.record_count == 3


def rebuilt(segment: LogSegment) -> tuple[bytes, bytes]:
    indexes = IndexBuilder(segment.base_offset, SIZES.index_interval)
    indexes.append(scan_segment(segment.log_path, segment.base_offset))
    indexes.close()
    return indexes.offset_index().to_bytes(), indexes.time_index().to_bytes()


@pytest.mark.parametrize("which", ["index", "timeindex"])
@pytest.mark.parametrize("damage", ["missing", "torn", "falling", "false", "past the end"])
def test_a_missing_or_false_index_is_reported_and_a_rebuilt_one_travels(
    segment: LogSegment, storage: ObjectRemoteStorageManager, which: str, damage: str
) -> None:
    path = segment.offset_index_path if which == "index" else segment.time_index_path
    content = path.read_bytes()
    entry = 8 if which == "index" else 12
    assert len(content) >= entry
    if damage == "missing":
        path.unlink()
    elif damage == "torn":
        path.write_bytes(content + b"\1")
    elif damage == "falling":
        path.write_bytes(content + b"\0" * (entry - 1) + b"\1")
    elif damage == "false":
        flip_bit(path, entry - 1)
    else:
        path.write_bytes(
            content + (b"\x7f" + bytes(3) if which == "index" else b"\x7f" + bytes(7)) + b"\x7f" + bytes(3)
        )

    outcome = run(task_for(segment), storage)
    copied = finished(outcome)

    messages = outcome.notices if damage == "missing" else outcome.damages
    assert [str(path) in message for message in messages] == [True], messages
    assert "rebuilt" in messages[0]
    assert (outcome.damages == ()) == (damage == "missing")
    assert storage.fetch_index(copied, IndexKind.OFFSET) == rebuilt(segment)[0]
    assert storage.fetch_index(copied, IndexKind.TIMESTAMP) == rebuilt(segment)[1]


def test_a_sparser_index_is_true_and_no_damage(segment: LogSegment, storage: ObjectRemoteStorageManager) -> None:
    segment.offset_index_path.write_bytes(b"")

    assert run(task_for(segment), storage).damages == ()


def test_both_indexes_may_be_false_at_once(segment: LogSegment, storage: ObjectRemoteStorageManager) -> None:
    flip_bit(segment.offset_index_path, 7)
    flip_bit(segment.time_index_path, 11)

    assert len(run(task_for(segment), storage).damages) == 2


def test_a_store_that_fails_makes_a_failure_that_says_whether_to_try_again(segment: LogSegment) -> None:
    class FullStore(ObjectRemoteStorageManager):
        def copy_log_segment_data(self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData) -> bytes:
            next(data.chunks)
            raise RemoteStorageFullError(f"no room for {metadata.start_offset}")

    outcome = run(task_for(segment), FullStore(LocalDirectory(segment.directory / "store")))

    assert outcome.failure is not None
    assert (outcome.failure.error, outcome.failure.message) == ("RemoteStorageFullError", "no room for 10")
    assert outcome.failure.retriable


def test_windows_are_read_one_at_a_time(segment: LogSegment) -> None:
    seen: list[int] = []

    class Watching(ObjectRemoteStorageManager):
        def copy_log_segment_data(self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData) -> bytes:
            def watched() -> Iterator[memoryview]:
                for chunk in data.chunks:
                    seen.append(len(chunk))
                    yield chunk

            return super().copy_log_segment_data(metadata, replace(data, chunks=watched()))

    store = Watching(LocalDirectory(segment.directory.parent / "store"))
    finished(copy_segment(task_for(segment), store, CopySizes(BATCH_BYTES, 100, 400), CLOCK))

    assert seen == [BATCH_BYTES, BATCH_BYTES]
