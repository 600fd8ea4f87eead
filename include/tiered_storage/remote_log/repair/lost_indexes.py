"""Rebuild the lost or corrupt bundle of a remote segment from its complete `.log`.

The segment is copied within the store under a new segment id: what a commit marker and metadata once recorded of a
segment never changes. On the way its bytes are compared with the checksum computed before they were sent, and each
batch with its own checksum and with the segment's leader epochs. Kafka's indexes, the remote index trio and the
manifest come from the batches, the leader epochs from the partition's lineage.

Transaction index and producer snapshot also depend on earlier segments: producers are followed from the snapshot in the
previous bundle, or from offset 0. Without such a snapshot, none is written; and a segment with aborted transactions
that may have begun earlier stays as it is, since readers would get aborted records.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby

from tiered_storage.errors import (
    CorruptIndexError,
    CorruptLogError,
    EncryptionKeyError,
    LaterVersionError,
    RemoteObjectCorruptError,
    RemoteObjectNotFoundError,
    TieredStorageError,
)
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry, encode_leader_epochs
from tiered_storage.kafka_log.indexes.index_builder import IndexBuilder
from tiered_storage.kafka_log.indexes.transaction_index import AbortedTxn, encode_aborted_transactions
from tiered_storage.kafka_log.producers.producer_history import KnownProducers, follow
from tiered_storage.kafka_log.producers.producer_snapshot import encode_producer_snapshot, parse_producer_snapshot
from tiered_storage.kafka_log.records.control_record import abort_markers
from tiered_storage.remote_log.audit.bundle_check import BundleChecks
from tiered_storage.remote_log.coverage import finished
from tiered_storage.remote_log.indexes.remote_index_builder import RemoteIndexBuilder
from tiered_storage.remote_log.jobs.lease_keeper import kept_alive
from tiered_storage.remote_log.jobs.throttle import RateLimit
from tiered_storage.remote_log.lineage import on_lineage, up_to, whole_lineage
from tiered_storage.remote_log.metadata.manifest_sync import listed_partition
from tiered_storage.remote_log.model import Finding, Lease, RemoteLogSegmentMetadata, TopicIdPartition
from tiered_storage.remote_log.repair.uncommitted_segments import StoreCopier, proven
from tiered_storage.remote_log.source.partition_log import epochs_within
from tiered_storage.remote_log.storage.batch_stream import BatchStream
from tiered_storage.remote_log.storage.documents.object_names import segment_object_names
from tiered_storage.remote_log.storage.listable_storage import ListableStorage
from tiered_storage.remote_log.storage.remote_storage_manager import IndexKind, LogSegmentData

_OF_THIS_SEGMENT = (RemoteObjectCorruptError, RemoteObjectNotFoundError, EncryptionKeyError)


def has_lost_indexes(segment: RemoteLogSegmentMetadata, storage: ListableStorage) -> bool:
    """Return whether bundle or marker of a finished segment are lost or corrupt, and its `.log` has its full size.

    False if a later release wrote them. Raises RemoteStorageError if the store cannot be reached.
    """
    try:
        name = segment_object_names(segment.segment_id, segment.start_offset).data
        if storage.object_size(name) != storage.expected_objects(segment)[name]:
            return False
    except RemoteObjectNotFoundError:
        return False
    if storage.later_version(segment) is not None:
        return False
    try:
        storage.fetch_bundle(segment)
    except LaterVersionError:
        return False
    except (RemoteObjectNotFoundError, RemoteObjectCorruptError):
        return True
    return False


@dataclass(frozen=True, slots=True)
class LostIndexes:
    """Rebuilds them; `copies` copies within the store. Reads are charged to `limit`."""

    copies: StoreCopier
    index_interval_bytes: int
    limit: RateLimit

    def rebuild(
        self, segments: Iterable[RemoteLogSegmentMetadata]
    ) -> tuple[list[RemoteLogSegmentMetadata], list[Finding], list[Finding]]:
        """Rebuild those of `segments` that still lack their indexes; return the old segments, failures and notices.

        The old segments stay: a repair marks them once the new ones were read back completely.
        """
        done: list[RemoteLogSegmentMetadata] = []
        failures: list[Finding] = []
        notices: list[Finding] = []
        ordered = sorted(segments, key=lambda each: (each.topic_id_partition, each.start_offset))
        for partition, of_partition in groupby(ordered, lambda each: each.topic_id_partition):
            try:
                for segment, lease in self._under_lease(partition, list(of_partition)):
                    try:
                        notices += self._rebuild(segment, lease)
                        done.append(segment)
                    except (*_OF_THIS_SEGMENT, CorruptLogError) as error:
                        failures.append(Finding(str(partition), f"{segment.segment_id.id} stays as it is: {error}"))
            except TieredStorageError as error:
                failures.append(Finding(str(partition), str(error)))
        return done, failures, notices

    def _under_lease(
        self, partition: TopicIdPartition, wanted: Sequence[RemoteLogSegmentMetadata]
    ) -> Iterator[tuple[RemoteLogSegmentMetadata, Lease]]:
        copies, ids = self.copies, {segment.segment_id for segment in wanted}
        lease = copies.context.leases.acquire(partition, copies.owner, copies.lease_duration_ms)
        try:
            listed_partition(partition, copies.storage)
            with kept_alive(copies.context.leases, [lease], copies.lease_duration_ms):
                for segment in finished(copies.context.segments.list_remote_log_segments(partition)):
                    if segment.segment_id in ids and has_lost_indexes(segment, copies.storage):
                        yield segment, lease
        finally:
            copies.context.leases.release(lease)

    def _rebuild(self, segment: RemoteLogSegmentMetadata, lease: Lease) -> list[Finding]:
        copies, partition = self.copies, lease.topic_id_partition
        known = copies.context.segments.partition_state(partition)
        readable = finished(copies.context.segments.list_remote_log_segments(partition))
        lineage = whole_lineage(readable, known.lineage)
        of_segment = epochs_within(lineage, segment.start_offset, segment.end_offset)
        if not on_lineage(segment, lineage) or of_segment != segment.leader_epochs:
            raise RemoteObjectCorruptError(
                f"offsets {segment.start_offset} to {segment.end_offset} were copied under other leader epochs than "
                "the partition's lineage has now, so which belong into its indexes is unknown"
            )
        log_start = known.log_start_offset
        if log_start is None:
            log_start = min(each.start_offset for each in readable)
        stored = copies.storage.find_copy(segment)
        if stored is not None and stored.finished.custom_metadata == segment.custom_metadata:
            # Only the commit marker is lost: the bundle is as it was sent.
            copies.copy_again(segment, lambda remote: proven(stored, copies.storage, remote), known, lineage, lease)
            return []
        rebuilt = _Rebuilt(
            segment,
            copies.storage,
            self._producers_before(segment, readable),
            up_to(lineage, segment.end_offset),
            log_start,
            IndexBuilder(segment.start_offset, self.index_interval_bytes),
            self.limit,
        )
        copies.copy_again(segment, rebuilt.data, known, lineage, lease)
        return [Finding(str(partition), notice) for notice in rebuilt.notices]

    def _producers_before(
        self, segment: RemoteLogSegmentMetadata, readable: Sequence[RemoteLogSegmentMetadata]
    ) -> KnownProducers:
        """Return the producers at the segment's base offset, from the bundle of the previous segment."""
        start = segment.start_offset
        if start == 0:
            return KnownProducers(0)
        for before in readable:
            if before.end_offset + 1 == start:
                with suppress(RemoteObjectNotFoundError, RemoteObjectCorruptError, CorruptIndexError):
                    raw = self.copies.storage.fetch_index(before, IndexKind.PRODUCER_SNAPSHOT)
                    return KnownProducers(start, parse_producer_snapshot(raw, str(before.segment_id)))
        return KnownProducers(start, (), start)


@dataclass(slots=True)
class _Rebuilt:
    """The bytes of a stored segment, verified as they pass, and the indexes built from them."""

    segment: RemoteLogSegmentMetadata
    storage: ListableStorage
    before: KnownProducers
    lineage: tuple[EpochEntry, ...]
    readable_from: int
    indexes: IndexBuilder
    limit: RateLimit
    notices: list[str] = field(default_factory=list)
    _aborted: list[AbortedTxn] = field(default_factory=list)
    _abort_markers: int = 0

    def data(self, remote: RemoteIndexBuilder) -> LogSegmentData:
        """Return the segment data to copy; `remote` collects the chunks of the new object."""
        state = self.before.state()

        def chunks() -> Iterator[memoryview]:
            segment = self.segment
            place = self.storage.place_of(segment_object_names(segment.segment_id, segment.start_offset).data)
            stream, checks = BatchStream(place, segment.start_offset, segment.size), BundleChecks(segment)
            for piece in self.storage.fetch_log_segment(segment):
                self.limit.spend(len(piece))
                for window, table in stream.windows(piece):
                    checks.feed(table)
                    remote.append(table)
                    self.indexes.append(table)
                    self._abort_markers += len(abort_markers(place, window, table))
                    self._aborted += follow(state, place, window, table)
                yield memoryview(piece)
            stream.finish()
            checks.finish()
            for wrong in checks.errors:
                raise wrong
            self.indexes.close()
            self._check(place)

        def contents() -> dict[IndexKind, bytes]:
            found = {
                **remote.indexes(),
                IndexKind.OFFSET: self.indexes.offset_index().to_bytes(),
                IndexKind.TIMESTAMP: self.indexes.time_index().to_bytes(),
                IndexKind.LEADER_EPOCH: encode_leader_epochs(self.lineage),
            }
            if self._aborted:
                found[IndexKind.TRANSACTION] = encode_aborted_transactions(self._aborted)
            if self.before.seen_from is None:
                found[IndexKind.PRODUCER_SNAPSHOT] = encode_producer_snapshot(state.snapshot())
            else:
                self.notices.append(
                    f"offsets {self.segment.start_offset} to {self.segment.end_offset} have their indexes again, but "
                    "no producer snapshot: the segment before them has none to start from"
                )
            return found

        return LogSegmentData(self.segment.size, chunks(), contents)

    def _check(self, place: str) -> None:
        latest = self.indexes.latest.timestamp
        if latest != self.segment.max_timestamp:
            reason = f"its largest timestamp is {latest}, in the metadata {self.segment.max_timestamp}"
            raise CorruptLogError(place, 0, reason)
        if self._abort_markers and self.before.seen_from is not None and self.readable_from < self.before.seen_from:
            raise CorruptLogError(
                place,
                0,
                f"{self._abort_markers} transactions are aborted in it, and where they began is unknown, since the "
                "segment before it has no producer snapshot: restore its .indexes from a backup or from a version in "
                "the store",
            )
