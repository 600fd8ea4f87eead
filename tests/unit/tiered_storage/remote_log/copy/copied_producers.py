"""Copies of segments of producers, and damage to the files beside them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from support.clocks import ManualClock
from support.local_logs import NOW
from support.remote_logs import ORDERS_0, location_of, unsynced
from tiered_storage.errors import RemoteObjectNotFoundError
from tiered_storage.kafka_log.files.kafka_uuid import random_uuid
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.kafka_log.files.log_segment import LogSegment, list_segments, producer_snapshot_path
from tiered_storage.kafka_log.indexes.transaction_index import (
    ENTRY_BYTES,
    TransactionIndex,
    encode_aborted_transactions,
)
from tiered_storage.kafka_log.log.log_config import LogConfig
from tiered_storage.kafka_log.producers.producer_history import ProducerHistory
from tiered_storage.remote_log.copy.copier import CopySizes, copy_segment
from tiered_storage.remote_log.copy.tasks import CopyOutcome, CopyTask
from tiered_storage.remote_log.model import Lease, RemoteLogSegmentId, RemoteLogSegmentMetadata
from tiered_storage.remote_log.storage.remote_storage_manager import IndexKind
from tiered_storage.remote_log.storage.segment_objects import ObjectRemoteStorageManager

CLOCK = ManualClock(NOW + 5)
SIZES = CopySizes(window=300, index_interval=150, remote_index_chunk=400)
CONFIG = LogConfig(segment_bytes=700, index_interval_bytes=150)


def end_of(segment: LogSegment) -> int:
    """The base offset of the segment after this one."""
    return next(each.base_offset for each in list_segments(segment.directory) if each > segment)


def snapshot_before(segment: LogSegment) -> Path:
    return producer_snapshot_path(segment.directory, segment.base_offset)


def snapshot_after(segment: LogSegment) -> Path:
    return producer_snapshot_path(segment.directory, end_of(segment))


def copied(
    segment: LogSegment,
    storage: ObjectRemoteStorageManager,
    history: ProducerHistory | None = None,
    readable_from: int = 0,
) -> CopyOutcome:
    metadata = RemoteLogSegmentMetadata(
        RemoteLogSegmentId(ORDERS_0, random_uuid()),
        segment.base_offset,
        end_of(segment) - 1,
        -1,
        NOW,
        segment.size(),
        (EpochEntry(0, 0),),
    )
    task = CopyTask(metadata, Lease(ORDERS_0, "copy", 1, NOW), location_of(segment.log_path), (), readable_from)
    with unsynced():
        return copy_segment(task, storage, SIZES, CLOCK, history)


def fetched(outcome: CopyOutcome, storage: ObjectRemoteStorageManager, kind: IndexKind) -> bytes:
    """What travelled; nothing where it is not there."""
    assert outcome.failure is None, outcome.failure
    assert outcome.finished is not None
    try:
        return storage.fetch_index(outcome.task.metadata.updated(outcome.finished), kind)
    except RemoteObjectNotFoundError:
        return b""


def refused(outcome: CopyOutcome, storage: ObjectRemoteStorageManager) -> str:
    """Why a segment was not copied."""
    assert outcome.failure is not None
    assert not [found.name for found in storage.list_objects() if found.name.endswith(".commit")]
    assert (outcome.failure.error, outcome.failure.retriable) == ("InvalidLogDirectoryError", False)
    return outcome.failure.message


def forget_what_was_before(segment: LogSegment) -> None:
    """Leave a log that begins with `segment`, and nothing that records producers before it."""
    for earlier in list_segments(segment.directory):
        if earlier < segment:
            earlier.log_path.unlink()
    for path in segment.directory.glob("*.snapshot"):
        if int(path.stem) <= segment.base_offset:
            path.unlink()


def missing(path: Path) -> None:
    path.unlink()


def empty(path: Path) -> None:
    path.write_bytes(b"")


def nonsense(path: Path) -> None:
    path.write_bytes(b"\xff" * ENTRY_BYTES)


def torn(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def false_at(position: int) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        content = bytearray(path.read_bytes())
        content[position] ^= 1
        path.write_bytes(content)

    return damage


def one_more(path: Path) -> None:
    index = TransactionIndex.read(path, int(path.stem))
    last = index.transactions[-1]
    more = replace(last, last_offset=last.last_offset + 1)
    path.write_bytes(encode_aborted_transactions([*index.transactions, more]))
