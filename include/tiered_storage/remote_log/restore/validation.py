"""How much of a restore is checked, besides the checksum of every fetched byte.

manifest   before: each segment's manifest matches its metadata
sizes      and its objects have the sizes that were sent; after: the files have theirs
records    and after: every record is decoded from what was written, in order and as many as were copied, and
           every index is checked against its log
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path

from tiered_storage.errors import RemoteObjectCorruptError
from tiered_storage.kafka_log.columnar.decoder import ColumnDecoder
from tiered_storage.kafka_log.files.log_segment import LogSegment
from tiered_storage.kafka_log.indexes.index_check import OffsetIndexCheck, TimeIndexCheck
from tiered_storage.kafka_log.indexes.offset_index import OffsetIndex
from tiered_storage.kafka_log.indexes.time_index import TimeIndex
from tiered_storage.kafka_log.indexes.transaction_index import TransactionIndex
from tiered_storage.kafka_log.kernels.constants import CONTROL_BIT
from tiered_storage.kafka_log.records.segment_scan import iterate_segment
from tiered_storage.remote_log.restore.request import RestoredPartition, RestoredSegment
from tiered_storage.remote_log.storage.batch_stream import fetch_whole
from tiered_storage.remote_log.storage.documents.manifest import Manifest
from tiered_storage.remote_log.storage.listable_storage import ListableStorage, as_listable
from tiered_storage.remote_log.storage.remote_storage_manager import IndexKind, RemoteStorageManager


class Validation(StrEnum):
    """How much is checked; each level includes the ones before it."""

    MANIFEST = "manifest"
    SIZES = "sizes"
    RECORDS = "records"

    @property
    def checks_sizes(self) -> bool:
        """Whether sizes are compared."""
        return self is not Validation.MANIFEST


def check_store(segments: Iterable[RestoredSegment], storage: RemoteStorageManager, validation: Validation) -> None:
    """Check what the store has of `segments` before any byte of them is fetched.

    Raises RemoteObjectNotFoundError, RemoteObjectCorruptError, and LaterVersionError for an object of a later release.
    The sizes of objects in a store that cannot be listed are known only after they are fetched.
    """
    for segment in segments:
        manifest_of(segment, storage)
        if validation.checks_sizes and (listable := as_listable(storage)) is not None:
            _check_objects(segment, listable)


def check_bytes(segments: Iterable[RestoredSegment], storage: RemoteStorageManager) -> None:
    """Read every byte of `segments`; the store compares the checksums. Raises as fetching them does."""
    for segment in segments:
        for _ in fetch_whole(segment.metadata, storage):
            pass


def manifest_of(segment: RestoredSegment, storage: RemoteStorageManager) -> Manifest:
    """Return the segment's manifest, checked against its metadata. Raises as `check_store`."""
    source = str(segment.metadata.segment_id)
    manifest = Manifest.parse(storage.fetch_index(segment.metadata, IndexKind.MANIFEST), f"{source}: manifest")
    manifest.check_against(segment.metadata, source)
    return manifest


def _check_objects(segment: RestoredSegment, storage: ListableStorage) -> None:
    for name, size in storage.expected_objects(segment.metadata).items():
        found = storage.object_size(name)
        if found != size:
            raise RemoteObjectCorruptError(
                f"{name}: has {found} bytes, {size} were sent: 'tiered-storage audit' shows what else is wrong, "
                "'tiered-storage repair' copies it again if the local segment still exists"
            )


def check_written(
    partition: RestoredPartition, directory: Path, storage: RemoteStorageManager, validation: Validation
) -> int | None:
    """Check what was written of `partition`; return the number of its records if they were all decoded.

    Raises RemoteObjectCorruptError if there are other bytes or records than were sent, CorruptRecordError and
    CorruptIndexError for unreadable ones.
    """
    records = 0
    for segment in partition.segments:
        local = LogSegment(segment.start_offset, directory)
        if validation.checks_sizes and segment.is_whole and local.size() != segment.metadata.size:
            raise RemoteObjectCorruptError(
                f"{local.log_path}: has {local.size()} bytes, {segment.metadata.size} were sent"
            )
        if validation is Validation.RECORDS:
            records += _check_records(segment, local, storage)
    return records if validation is Validation.RECORDS else None


def _check_records(segment: RestoredSegment, local: LogSegment, storage: RemoteStorageManager) -> int:
    """Decode all records of a written segment, and return their number without markers."""
    offset_index = OffsetIndexCheck(
        local.offset_index_path, OffsetIndex.read(local.offset_index_path, local.base_offset)
    )
    time_index = TimeIndexCheck(local.time_index_path, TimeIndex.read(local.time_index_path, local.base_offset))
    TransactionIndex.read(local.transaction_index_path, local.base_offset)
    decoder = ColumnDecoder(str(local.log_path), columns=["offset"])
    every = records = 0
    for window, batches in iterate_segment(local.log_path, local.base_offset, verify_crc=False):
        offset_index.feed(batches)
        time_index.feed(batches)
        if batches.last_offset[-1] > segment.end_offset:
            raise RemoteObjectCorruptError(f"{local.log_path}: has records after offset {segment.end_offset}")
        decoded = sum(rows.num_rows for rows in decoder.decode(window, batches))
        every += decoded
        records += decoded - int(batches.record_count[batches.attributes & CONTROL_BIT != 0].sum())
    offset_index.finish()
    time_index.finish()
    copied = manifest_of(segment, storage).record_count if segment.is_whole else None
    if copied not in {None, every}:
        raise RemoteObjectCorruptError(f"{local.log_path}: has {every} records, {copied} were copied")
    return records
