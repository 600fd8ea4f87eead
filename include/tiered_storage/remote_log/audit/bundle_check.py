"""Check everything in a segment's bundle against the segment's batches, each part on its own."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Protocol

import numpy as np

from tiered_storage.errors import CorruptIndexError, CorruptLogError, CorruptRecordError
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import parse_leader_epochs
from tiered_storage.kafka_log.indexes.index_check import OffsetIndexCheck, TimeIndexCheck
from tiered_storage.kafka_log.indexes.offset_index import OffsetIndex
from tiered_storage.kafka_log.indexes.time_index import TimeIndex
from tiered_storage.kafka_log.indexes.transaction_index import ENTRY_BYTES, TransactionIndex
from tiered_storage.kafka_log.producers.producer_snapshot import parse_producer_snapshot
from tiered_storage.kafka_log.records.batch_table import BatchTable
from tiered_storage.remote_log.indexes.batch_epochs import wrong_epoch
from tiered_storage.remote_log.indexes.remote_index_check import RemoteIndexCheck
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata
from tiered_storage.remote_log.source.partition_log import epochs_within
from tiered_storage.remote_log.storage.documents.manifest import Manifest
from tiered_storage.remote_log.storage.remote_storage_manager import IndexKind

REQUIRED = (
    IndexKind.REMOTE_LOG_INDEX,
    IndexKind.REMOTE_OFFSET_INDEX,
    IndexKind.REMOTE_TIME_INDEX,
    IndexKind.OFFSET,
    IndexKind.TIMESTAMP,
    IndexKind.LEADER_EPOCH,
)
"""Every copy has these; producer snapshot and transaction index may be absent."""

_CONTROL = 0x20


class Check(Protocol):
    """Takes a segment's batches in order; both methods raise CorruptLogError at the first contradiction."""

    def feed(self, batches: BatchTable) -> None:
        """Take the next batches."""
        ...

    def finish(self) -> None:
        """End the check."""
        ...


class BundleChecks:
    """Runs every check that a bundle allows; an error ends only its own check. `errors` has all of them."""

    def __init__(self, segment: RemoteLogSegmentMetadata) -> None:
        """Check the batches of `segment` against its metadata, and against its bundle once that is opened."""
        self._segment = segment
        self._checks: list[Check] = [_EpochCheck(segment)]
        self.errors: list[CorruptLogError] = []

    def open(
        self, source: str, contents: Mapping[IndexKind, bytes], required: Collection[IndexKind] = REQUIRED
    ) -> None:
        """Also check the batches against `contents`, the bundle at `source`, which must have all that is `required`."""
        base = self._segment.start_offset
        for kind in required:
            if kind not in contents:
                self.errors.append(CorruptIndexError(source, 0, f"the bundle has no index {kind.name}"))
        if {kind for kind in REQUIRED if kind.name.startswith("REMOTE")} <= contents.keys():
            self._begin(lambda: RemoteIndexCheck(source, self._segment, contents))
        makers: dict[IndexKind, Callable[[bytes, str], Check | None]] = {
            IndexKind.OFFSET: lambda raw, at: OffsetIndexCheck(at, OffsetIndex.parse(raw, at, base)),
            IndexKind.TIMESTAMP: lambda raw, at: TimeIndexCheck(at, TimeIndex.parse(raw, at, base)),
            IndexKind.TRANSACTION: lambda raw, at: _AbortCheck(at, TransactionIndex.parse(raw, at, base)),
            IndexKind.PRODUCER_SNAPSHOT: self._check_snapshot,
            IndexKind.LEADER_EPOCH: self._check_lineage,
            IndexKind.MANIFEST: lambda raw, at: _ManifestCheck(at, Manifest.parse(raw, at), self._segment),
        }
        for kind, make in makers.items():
            if kind in contents:
                self._begin(lambda make=make, kind=kind: make(contents[kind], f"{source}: {kind.name}"))  # type: ignore[misc]

    def feed(self, batches: BatchTable) -> None:
        """Take the next batches of the segment."""
        self._run(lambda check: check.feed(batches))

    def finish(self) -> None:
        """End all checks."""
        self._run(lambda check: check.finish())

    def _begin(self, make: Callable[[], Check | None]) -> None:
        try:
            check = make()
        except CorruptLogError as error:
            self.errors.append(error)
            return
        if check is not None:
            self._checks.append(check)

    def _run(self, step: Callable[[Check], None]) -> None:
        for check in list(self._checks):
            try:
                step(check)
            except CorruptLogError as error:
                self._checks.remove(check)
                self.errors.append(error)

    def _check_snapshot(self, raw: bytes, source: str) -> None:
        for producer in parse_producer_snapshot(raw, source):
            if producer.last_offset > self._segment.end_offset:
                reason = f"producer {producer.producer_id} has offset {producer.last_offset}, past the segment's end"
                raise CorruptIndexError(source, 0, reason)

    def _check_lineage(self, raw: bytes, source: str) -> None:
        lineage = parse_leader_epochs(raw, source)
        mine = epochs_within(lineage, self._segment.start_offset, self._segment.end_offset)
        if mine != self._segment.leader_epochs:
            raise CorruptIndexError(
                source, 0, f"its epochs {mine} are not the segment's, {self._segment.leader_epochs}"
            )


class _EpochCheck:
    """The leader epochs in the segment's metadata are those of its batches, and so is its end."""

    def __init__(self, segment: RemoteLogSegmentMetadata) -> None:
        self._segment = segment
        self._source = str(segment.segment_id)
        self._last_offset = -1

    def feed(self, batches: BatchTable) -> None:
        wrong = wrong_epoch(batches, self._segment.leader_epochs)
        if wrong is not None:
            raise CorruptRecordError(self._source, wrong.position, str(wrong))
        self._last_offset = int(batches.last_offset[-1])

    def finish(self) -> None:
        if self._last_offset != self._segment.end_offset:
            reason = f"the log ends with offset {self._last_offset}, the segment with {self._segment.end_offset}"
            raise CorruptRecordError(self._source, self._segment.size, reason)


class _ManifestCheck:
    """Counts and timestamps of the manifest are those of the batches, its largest timestamp also the metadata's."""

    def __init__(self, source: str, manifest: Manifest, segment: RemoteLogSegmentMetadata) -> None:
        self._source = source
        self._manifest = manifest
        self._segment = segment
        self._batches = self._records = 0
        self._latest = -1

    def feed(self, batches: BatchTable) -> None:
        self._batches += len(batches)
        self._records += int(batches.record_count.sum())
        self._latest = max(self._latest, int(batches.max_timestamp.max()))

    def finish(self) -> None:
        manifest = self._manifest
        for what, expected, found in (
            ("batches", manifest.batch_count, self._batches),
            ("records", manifest.record_count, self._records),
            ("as the largest timestamp", manifest.max_timestamp, self._latest),
        ):
            if expected not in {None, found}:
                raise CorruptIndexError(self._source, 0, f"it has {expected} {what}, the log has {found}")
        if manifest.max_timestamp != self._segment.max_timestamp:
            reason = f"its largest timestamp is {manifest.max_timestamp}, in the metadata {self._segment.max_timestamp}"
            raise CorruptIndexError(self._source, 0, reason)


class _AbortCheck:
    """Every aborted transaction of the index ends with a marker of its producer in the segment."""

    def __init__(self, source: str, index: TransactionIndex) -> None:
        self._source = source
        self._entries = index.transactions
        self._offsets = np.array([entry.last_offset for entry in self._entries], np.int64)
        self._producers = np.array([entry.producer_id for entry in self._entries], np.int64)
        self._checked = 0

    def feed(self, batches: BatchTable) -> None:
        end = int(np.searchsorted(self._offsets, batches.last_offset[-1], side="right"))
        offsets = self._offsets[self._checked : end]
        rows = np.searchsorted(batches.last_offset, offsets)
        is_marker = (
            (batches.last_offset[rows] == offsets)
            & ((batches.attributes[rows] & _CONTROL) != 0)
            & (batches.producer_id[rows] == self._producers[self._checked : end])
        )
        wrong = np.flatnonzero(~is_marker)
        if wrong.size:
            raise self._no_marker(self._checked + int(wrong[0]))
        self._checked = end

    def finish(self) -> None:
        if self._checked < len(self._entries):
            raise self._no_marker(self._checked)

    def _no_marker(self, number: int) -> CorruptIndexError:
        reason = f"the index disagrees with its log: no marker ends {self._entries[number]}"
        return CorruptIndexError(self._source, number * ENTRY_BYTES, reason)
