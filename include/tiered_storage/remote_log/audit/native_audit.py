"""The audit of a cluster that tiers by itself: compare the objects of Kafka's remote tier with its metadata.

Quick: every object of a finished segment is there, those of a known size with that size, there are no others, and no
offset is missing or held twice. Deep: every byte is also read, each batch's checksum, offsets and leader epochs are
checked, Kafka's indexes are compared with the batches, and each aborted transaction with records must be in the
transaction index. Brokers go on copying and deleting meanwhile, so whatever looks wrong is checked a second time. The
names of all objects are held in memory.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from tiered_storage.errors import (
    CorruptLogError,
    EncryptionKeyError,
    RemoteObjectCorruptError,
    RemoteObjectNotFoundError,
    RemoteStorageError,
)
from tiered_storage.kafka_log.indexes.transaction_index import AbortedTxn
from tiered_storage.kafka_log.producers.producer_history import KnownProducers, follow
from tiered_storage.kafka_log.producers.producer_snapshot import parse_producer_snapshot
from tiered_storage.remote_log.audit.bundle_check import BundleChecks
from tiered_storage.remote_log.audit.offsets import offset_anomalies
from tiered_storage.remote_log.audit.report import Anomaly, AnomalyKind, AuditReport, AuditTally, kind_of
from tiered_storage.remote_log.context import RemoteLogContext
from tiered_storage.remote_log.coverage import finished
from tiered_storage.remote_log.jobs.throttle import RateLimit
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata, SegmentState, TopicIdPartition
from tiered_storage.remote_log.native.read_only_storage import NativeRemoteStorage
from tiered_storage.remote_log.native.segment_files import FoundObject
from tiered_storage.remote_log.progress import OnMoved
from tiered_storage.remote_log.selection import Selection
from tiered_storage.remote_log.storage.batch_stream import BatchStream
from tiered_storage.remote_log.storage.remote_storage_manager import IndexKind

KAFKAS_REQUIRED = (IndexKind.OFFSET, IndexKind.TIMESTAMP, IndexKind.LEADER_EPOCH)
"""Kafka writes these with each segment; a producer snapshot and a transaction index may be absent."""


def audit_native_tier(
    context: RemoteLogContext,
    storage: NativeRemoteStorage,
    selection: Selection,
    limit: RateLimit | None,
    on_moved: OnMoved,
) -> AuditReport:
    """Audit the selected partitions; within `limit` read all bytes too (None: a quick audit).

    An unreferenced object counts once it is older than remote.log.orphan.grace.ms. `on_moved` is called with the bytes
    read, and with each finished segment. Raises errors of store and metadata that are not specific to a segment.
    """
    now = context.clock()
    tally = AuditTally.begun_at(now)
    # The store first: the metadata of everything seen there were written before it.
    listed = {found.name: found for found in storage.files.list_objects() if _is_selected(found, selection)}
    partitions = [one for one in context.segments.list_partitions() if selection.matches(one.topic, one.partition)]
    audit = _Audit(context, storage, tally, listed, limit, on_moved)
    known_ids: set[str] = set()
    known_names: set[str] = set()
    for partition in partitions:
        segments = audit.look_at(partition)
        known_ids |= {segment.segment_id.id for segment in segments}
        # The metadata may give a segment other names than the usual ones.
        known_names |= {name for each in segments for name in audit.names_of(each) if name in listed}
    audit.look_for_unreferenced(known_ids, known_names, now - context.settings.remote_log_orphan_grace_ms)
    tally.notices.extend(context.notices)
    return tally.report()


@dataclass(frozen=True, slots=True)
class _Audit:
    context: RemoteLogContext
    storage: NativeRemoteStorage
    tally: AuditTally
    listed: dict[str, FoundObject]
    limit: RateLimit | None
    on_moved: OnMoved

    def names_of(self, segment: RemoteLogSegmentMetadata) -> Collection[str]:
        """Return the names of a segment's objects; none if its metadata are damaged, which is reported elsewhere."""
        try:
            return self.storage.files.object_names(segment)
        except RemoteObjectCorruptError:
            return ()

    def look_at(self, partition: TopicIdPartition) -> Sequence[RemoteLogSegmentMetadata]:
        """Audit one partition; return its segments in every state."""
        segments = list(self.context.segments.list_remote_log_segments(partition))
        self.tally.looked_at(partition)
        visible = finished(segments)
        self.tally.segments += len(visible)
        self.tally.size += sum(segment.size for segment in visible)
        by_end = {segment.end_offset: segment for segment in visible}
        for segment in visible:
            found = self._anomalies(segment, by_end.get(segment.start_offset - 1))
            if found and self._is_still_finished(segment):
                self.tally.add(found)
        state = self.context.segments.partition_state(partition)
        self.tally.add(offset_anomalies(partition, segments, state, None))
        return segments

    def look_for_unreferenced(self, known_ids: set[str], known_names: set[str], young_from: int) -> None:
        """Report the objects of no known segment that are older than `young_from` (ms)."""
        self.tally.objects += len(self.listed)
        suspicious = [
            found
            for found in self.listed.values()
            if found.segment_id not in known_ids and found.name not in known_names
        ]
        old = [found for found in suspicious if found.last_modified < young_from]
        self.tally.young += len(suspicious) - len(old)
        for found in old:
            try:
                self.storage.files.object_size(found.name)
            except RemoteObjectNotFoundError:
                continue  # deleted since the listing
            why = (
                "no metadata have it, and its name is not that of a segment's object: another program put it here, or "
                "the settings name another root or prefix than the brokers'"
                if found.segment_id is None
                else "no metadata have its segment: a copy or a deletion of a broker has left it"
            )
            self.tally.add([Anomaly(AnomalyKind.UNREFERENCED_OBJECT, found.name, f"{found.size} bytes, {why}")])

    def _anomalies(
        self, segment: RemoteLogSegmentMetadata, before: RemoteLogSegmentMetadata | None
    ) -> Sequence[Anomaly]:
        try:
            wrong = list(self._wrong_objects(segment))
            if wrong or self.limit is None:
                return wrong
            wrong_bytes = self._wrong_bytes(segment, before, self.limit)
            found = [Anomaly.of_segment(kind, segment, why) for kind, why in wrong_bytes]
        except EncryptionKeyError as error:
            return [Anomaly.of_segment(AnomalyKind.MISSING_KEY, segment, str(error))]
        except (RemoteObjectNotFoundError, RemoteObjectCorruptError) as error:
            return [Anomaly.of_segment(kind_of(error), segment, str(error))]
        except RemoteStorageError as error:
            self.tally.could_not_read(segment, str(error))
            return []
        self.on_moved(0, 1)
        return found

    def _wrong_objects(self, segment: RemoteLogSegmentMetadata) -> Iterator[Anomaly]:
        files = self.storage.files
        for name, size in files.expected_objects(segment).items():
            there = self.listed.get(name)
            if there is not None and size in {None, there.size}:
                continue
            try:
                now = files.object_size(name)
            except RemoteObjectNotFoundError:
                yield Anomaly.of_segment(AnomalyKind.MISSING_OBJECT, segment, "there is no such object", name)
                continue
            if size not in {None, now}:
                yield Anomaly.of_segment(AnomalyKind.WRONG_SIZE, segment, f"has {now} bytes, not {size}", name)

    def _wrong_bytes(
        self, segment: RemoteLogSegmentMetadata, before: RemoteLogSegmentMetadata | None, limit: RateLimit
    ) -> Iterator[tuple[AnomalyKind, str]]:
        name = f"{self.storage.files.root}/{self.storage.files.log_name(segment)}"
        indexes = self._indexes(segment)
        checks = BundleChecks(segment)
        checks.open(name, indexes, KAFKAS_REQUIRED)
        stream = BatchStream(name, segment.start_offset, segment.size)
        producers, aborted = self._producers_before(segment, before).state(), list[AbortedTxn]()
        try:
            for piece in self.storage.files.read_log(segment, 0, segment.size):
                limit.spend(len(piece))
                for window, table in stream.windows(piece):
                    checks.feed(table)
                    aborted += follow(producers, name, window, table)
            stream.finish()
            checks.finish()
        except CorruptLogError as error:
            yield AnomalyKind.WRONG_CHECKSUM, str(error)
        for disagreement in checks.errors:
            yield AnomalyKind.WRONG_CHECKSUM, str(disagreement)
        if aborted and IndexKind.TRANSACTION not in indexes:
            why = (
                f"its transaction index is lost: {len(aborted)} transactions were aborted in it, the first ends at "
                f"offset {aborted[0].last_offset}; readers at read_committed get their records"
            )
            yield AnomalyKind.MISSING_OBJECT, why

    def _producers_before(
        self, segment: RemoteLogSegmentMetadata, before: RemoteLogSegmentMetadata | None
    ) -> KnownProducers:
        """Return the producers where `segment` begins, by the snapshot of the segment `before` it if that is sound."""
        start = segment.start_offset
        if start == 0:
            return KnownProducers(0)
        if before is not None:
            # What is wrong with that one is reported there.
            with suppress(RemoteStorageError, CorruptLogError):
                raw = self.storage.fetch_index(before, IndexKind.PRODUCER_SNAPSHOT)
                return KnownProducers(start, parse_producer_snapshot(raw, str(before.segment_id)))
        return KnownProducers(start, (), start)

    def _indexes(self, segment: RemoteLogSegmentMetadata) -> dict[IndexKind, bytes]:
        optional = (IndexKind.PRODUCER_SNAPSHOT, IndexKind.TRANSACTION)
        contents = {kind: self.storage.fetch_index(segment, kind) for kind in KAFKAS_REQUIRED}
        for kind in optional:
            try:
                contents[kind] = self.storage.fetch_index(segment, kind)
            except RemoteObjectNotFoundError:
                continue
        return contents

    def _is_still_finished(self, segment: RemoteLogSegmentMetadata) -> bool:
        known = self.context.segments.segment_by_id(segment.segment_id)
        return known is not None and known.state is SegmentState.COPY_SEGMENT_FINISHED


def _is_selected(found: FoundObject, selection: Selection) -> bool:
    if found.topic is None or found.partition is None:
        return not selection.is_narrowed
    return selection.matches(found.topic, found.partition)
