"""The deep audit of one remote segment: read everything back and check it.

    data       its CRC-32C is the one computed before sending, and every batch's own checksum is right; offsets
               rise, and the leader epochs are those of the segment
    bundle     its CRC-32C, and each section's; Kafka's indexes, the remote index trio and the transaction index agree
               with the batches, the producer snapshot can be read, the leader epochs are the segment's
    manifest   its ids, ranges, counts and timestamps are those of the batches and of the metadata

One piece of the data (4 MiB) is held in memory, and a batch that two pieces share.
"""

from __future__ import annotations

from collections.abc import Iterator

from tiered_storage.errors import (
    CorruptLogError,
    CorruptRecordError,
    EncryptionKeyError,
    RemoteObjectCorruptError,
    RemoteObjectNotFoundError,
)
from tiered_storage.kafka_log.records.batch_table import BatchTable
from tiered_storage.remote_log.audit.bundle_check import BundleChecks
from tiered_storage.remote_log.audit.report import Anomaly, AnomalyKind, kind_of
from tiered_storage.remote_log.jobs.throttle import RateLimit
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata
from tiered_storage.remote_log.storage.batch_stream import BatchStream
from tiered_storage.remote_log.storage.documents.object_names import segment_object_names
from tiered_storage.remote_log.storage.listable_storage import ListableStorage


def audit_segment(segment: RemoteLogSegmentMetadata, storage: ListableStorage, limit: RateLimit) -> tuple[Anomaly, ...]:
    """Read back a finished segment, within `limit`, and return its anomalies.

    Raises RemoteStorageError if the store itself fails.
    """
    audit = _SegmentAudit(segment, storage, limit)
    try:
        return tuple(Anomaly.of_segment(kind, segment, message) for kind, message in audit.findings())
    except EncryptionKeyError as error:
        return (Anomaly.of_segment(AnomalyKind.MISSING_KEY, segment, str(error)),)


class _SegmentAudit:
    """Audits one segment; call `findings` once."""

    def __init__(self, segment: RemoteLogSegmentMetadata, storage: ListableStorage, limit: RateLimit) -> None:
        names = segment_object_names(segment.segment_id, segment.start_offset)
        self._segment = segment
        self._storage = storage
        self._limit = limit
        self._data, self._bundle = storage.place_of(names.data), storage.place_of(names.indexes)
        self._broken: CorruptRecordError | None = None

    def findings(self) -> Iterator[tuple[AnomalyKind, str]]:
        """Yield the anomalies: of the bundle, of the data, and of both together."""
        checks = BundleChecks(self._segment)
        try:
            contents = dict(self._storage.fetch_bundle(self._segment))
        except (RemoteObjectNotFoundError, RemoteObjectCorruptError) as error:
            yield kind_of(error), str(error)
        else:
            self._limit.spend(sum(map(len, contents.values())))
            checks.open(self._bundle, contents)
        wrong = self._read_data(checks)
        yield from wrong
        if not wrong:
            checks.finish()
        for disagreement in checks.errors:
            yield AnomalyKind.WRONG_CHECKSUM, str(disagreement)

    def _read_data(self, checks: BundleChecks) -> list[tuple[AnomalyKind, str]]:
        stream = BatchStream(self._data, self._segment.start_offset, self._segment.size)
        try:
            for piece in self._storage.fetch_log_segment(self._segment):
                self._limit.spend(len(piece))
                for table in self._batches(stream, piece):
                    checks.feed(table)
            if self._broken is None:
                stream.finish()
        except (RemoteObjectNotFoundError, RemoteObjectCorruptError) as error:
            because = "" if self._broken is None else f"; its first broken batch: {self._broken}"
            return [(kind_of(error), f"{error}{because}")]
        except CorruptLogError as error:
            return [(AnomalyKind.WRONG_CHECKSUM, str(error))]
        return [] if self._broken is None else [(AnomalyKind.WRONG_CHECKSUM, f"{self._broken}; it was copied so")]

    def _batches(self, stream: BatchStream, piece: bytes) -> Iterator[BatchTable]:
        """Yield the batches that `piece` completes, none after the first that is broken."""
        if self._broken is not None:
            return
        try:
            yield from stream.feed(piece)
        except CorruptRecordError as error:
            self._broken = error
