"""Commit copies that are complete in the store but uncommitted, and whose offsets nothing else holds.

Such copies exist if a run was killed before its commit and the local log was deleted, or if the metadata are from a
backup of that moment, or were rebuilt without a commit marker. A segment marked for deletion cannot return, and no
attempt commits another's copy: the bytes are copied again within the store, under a new id. They are verified on the
way: the data by the manifest's checksum of what was sent, and by every batch's own; indexes and manifest by the
batches, as in a deep audit. The old objects are deleted like any second copy.

Nothing is guessed: copies that known leaders contradict stay as they are, and after the first copy of a partition that
fails verification none is committed, since readers must find no gap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import groupby

from tiered_storage.errors import (
    InvalidLogDirectoryError,
    LaterVersionError,
    RemoteObjectCorruptError,
    TieredStorageError,
)
from tiered_storage.kafka_log.files.kafka_uuid import random_uuid
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.remote_log.audit.bundle_check import BundleChecks
from tiered_storage.remote_log.context import RemoteLogContext
from tiered_storage.remote_log.coverage import finished as readable
from tiered_storage.remote_log.indexes.remote_index_builder import RemoteIndexBuilder
from tiered_storage.remote_log.jobs.lease_keeper import kept_alive
from tiered_storage.remote_log.lineage import merged, on_lineage, trusted_lineage, whole_lineage
from tiered_storage.remote_log.metadata.manifest_sync import (
    StoredState,
    listed_partition,
    manifests_of,
    write_partition_state,
)
from tiered_storage.remote_log.model import (
    Finding,
    Lease,
    PartitionState,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    SegmentState,
    TopicIdPartition,
)
from tiered_storage.remote_log.retention.orphan_check import OrphanCheck, located_by
from tiered_storage.remote_log.storage.batch_stream import BatchStream
from tiered_storage.remote_log.storage.commit_marker import StoredCopy
from tiered_storage.remote_log.storage.documents.object_names import partition_folder, segment_object_names
from tiered_storage.remote_log.storage.listable_storage import ListableStorage, ensure_encodes, listing_storage
from tiered_storage.remote_log.storage.remote_storage_manager import IndexKind, LogSegmentData

_UNFINISHED = {SegmentState.COPY_SEGMENT_STARTED, SegmentState.DELETE_SEGMENT_STARTED}


@dataclass(frozen=True, slots=True)
class StoreCopier:
    """Copies segments of `context` within its store as `owner`, each under a new segment id, and commits them.

    The store must list its objects.
    """

    context: RemoteLogContext
    owner: str
    new_segment_id: Callable[[], str] = random_uuid

    @property
    def storage(self) -> ListableStorage:
        """The store. Raises ConfigurationError if it does not list its objects."""
        return listing_storage(self.context.storage)

    @property
    def lease_duration_ms(self) -> int:
        """How long (ms) a lease lasts."""
        return self.context.settings.lease_duration_ms

    def copy_again(
        self,
        copy: RemoteLogSegmentMetadata,
        data: Callable[[RemoteIndexBuilder], LogSegmentData],
        state: PartitionState,
        lineage: tuple[EpochEntry, ...],
        lease: Lease,
    ) -> RemoteLogSegmentMetadata:
        """Copy `data` as the offsets of `copy`, and make it visible; `state` is that of the partition.

        `data` is called with the collector of the new object's remote indexes. Raises what it raises, and what store
        and metadata raise: then nothing of the new copy is visible.
        """
        context, storage, partition = self.context, self.storage, lease.topic_id_partition
        metadata = context.segments
        copied = replace(
            copy,
            segment_id=RemoteLogSegmentId(partition, self.new_segment_id()),
            state=SegmentState.COPY_SEGMENT_STARTED,
            event_timestamp=context.clock(),
            custom_metadata=None,
            fencing_number=lease.fencing_number,
        )
        metadata.add_remote_log_segment_metadata(replace(copied, max_timestamp=-1), lease)
        encoding, remote = (
            context.encoding_of(context.decided_topic(partition)),
            RemoteIndexBuilder(copied, context.settings.remote_log_index_chunk_bytes),
        )
        ensure_encodes(storage, encoding)
        sent = replace(data(remote), encoding=encoding, ends=remote.chunk_ends)
        custom_metadata = storage.copy_log_segment_data(copied, sent)
        # In the order of every commit: the store first, and the global log start before the segment is visible.
        stored_state = StoredState.of(replace(state, lineage=lineage), metadata.list_remote_log_segments(partition))
        write_partition_state(storage, context.leases, lease, stored_state, context.clock())
        metadata.put_lineage(partition, lineage, lease)
        if metadata.log_start_offset(partition) is None and state.log_start_offset is not None:
            # Never above the known log start, although the store may be ahead: only an expiry deletes what is below.
            metadata.advance_log_start_offset(partition, state.log_start_offset, lease)
        update = RemoteLogSegmentMetadataUpdate(
            copied.segment_id,
            SegmentState.COPY_SEGMENT_FINISHED,
            context.clock(),
            custom_metadata,
            copy.max_timestamp,
        )
        return metadata.update_remote_log_segment_metadata(update, lease)


@dataclass(frozen=True, slots=True)
class UncommittedSegments:
    """Finds and commits them; those started or marked within `grace_ms` may still be under way.

    `check` returns whether anything else holds their offsets.
    """

    copies: StoreCopier
    check: OrphanCheck
    grace_ms: int

    def find(self, partitions: Iterable[TopicIdPartition]) -> tuple[list[RemoteLogSegmentMetadata], list[Finding]]:
        """Return what can be committed in `partitions`, each with its manifest's metadata, as a finished copy.

        Also returns why incomplete ones are neither committed nor deleted. Nothing is found if a later release wrote
        the partition manifest. Raises what store and metadata raise. Data are read only to compare them with a local
        log of the same offsets, and if the indexes are lost.
        """
        found: list[RemoteLogSegmentMetadata] = []
        left: list[Finding] = []
        for partition in partitions:
            with suppress(LaterVersionError):
                whole, others = self._found_in(partition)
                found.extend(whole)
                left.extend(others)
        return found, left

    def finish(self, found: Iterable[RemoteLogSegmentMetadata]) -> tuple[list[RemoteLogSegmentMetadata], list[Finding]]:
        """Commit those of `found` that are still valid; return the visible segments, and what stays uncommitted."""
        finished: list[RemoteLogSegmentMetadata] = []
        failures: list[Finding] = []
        for partition, of_partition in groupby(sorted(found, key=_place), lambda each: each.topic_id_partition):
            wanted = {segment.segment_id for segment in of_partition}
            try:
                finished.extend(self._finish_in(partition, wanted, failures))
            except TieredStorageError as error:
                failures.append(Finding(str(partition), str(error)))
        return finished, failures

    def _found_in(self, partition: TopicIdPartition) -> tuple[list[RemoteLogSegmentMetadata], list[Finding]]:
        due = self.copies.context.clock() - self.grace_ms
        old = [
            segment
            for segment in self.copies.context.segments.list_remote_log_segments(partition)
            if segment.state in _UNFINISHED and segment.custom_metadata is None and segment.event_timestamp <= due
        ]
        if not old:
            return [], []
        state = self._state(partition)
        if state.delete_state is not None:
            return [], []
        listed = list(self.copies.storage.list_objects(partition_folder(partition)))
        kept = self.check.why_kept(partition, old, listed, to_finish=True)
        whole: list[RemoteLogSegmentMetadata] = []
        left: list[Finding] = []
        for segment in located_by(listed, old):
            why = kept.get(segment.segment_id.id)
            if why is None:
                continue
            if (copy := self.copies.storage.find_copy(segment)) is None:
                left.append(Finding(str(partition), f"{segment.segment_id.id}: {why}"))
            elif copy.finished.end_offset >= (state.log_start_offset or 0):
                # Without its indexes: those of a thousand copies need too much memory.
                whole.append(copy.finished)
        return sorted(whole, key=_place), left

    def _state(self, partition: TopicIdPartition) -> PartitionState:
        """Return the partition's state from metadata and store: after a killed writer, the store is ahead.

        A corrupt document is ignored; a repair has written it again before this.
        """
        known = self.copies.context.segments.partition_state(partition)
        documents = manifests_of(self.copies.storage)
        try:
            document = None if documents is None else documents.read(partition)
        except RemoteObjectCorruptError:
            document = None
        if document is None:
            return known
        starts = [each for each in (known.log_start_offset, document.state.log_start_offset) if each is not None]
        return PartitionState(
            max(starts, default=None),
            merged(known.lineage, document.state.lineage),
            known.delete_state or document.state.delete_state,
            known.earlier_log_starts,
        )

    def _leaders(self, partition: TopicIdPartition, known: Sequence[EpochEntry]) -> tuple[EpochEntry, ...]:
        """Return the known leaders, with those of the local log if the source has it.

        Raises what the source raises if it cannot be read, and LineageContradictedError.
        """
        try:
            log = self.check.local(partition)
        except OSError as error:
            raise InvalidLogDirectoryError(f"{partition}: its local log cannot be read: {error}") from error
        return trusted_lineage(known, None if log is None or log.topic_id_is_derived else log)

    def _finish_in(
        self, partition: TopicIdPartition, wanted: set[RemoteLogSegmentId], failures: list[Finding]
    ) -> Iterator[RemoteLogSegmentMetadata]:
        lease = self.copies.context.leases.acquire(partition, self.copies.owner, self.copies.lease_duration_ms)
        try:
            listed_partition(partition, self.copies.storage)
            reached, failed = -1, None
            with kept_alive(self.copies.context.leases, [lease], self.copies.lease_duration_ms):
                for copy in self._found_in(partition)[0]:
                    if copy.segment_id not in wanted or copy.end_offset <= reached:
                        continue
                    if failed is not None and copy.start_offset > max(failed.start_offset, reached + 1):
                        return
                    try:
                        yield self._finish(copy, lease)
                    except TieredStorageError as error:
                        message = f"{copy.segment_id.id} stays as it is, and so do later copies: {error}"
                        failures.append(Finding(str(partition), message))
                        failed = failed or copy
                        continue
                    reached = copy.end_offset
                    failed = None if failed is not None and reached >= failed.end_offset else failed
        finally:
            self.copies.context.leases.release(lease)

    def _finish(self, copy: RemoteLogSegmentMetadata, lease: Lease) -> RemoteLogSegmentMetadata:
        partition = lease.topic_id_partition
        stored = self.copies.storage.find_copy(copy)
        if stored is None:
            raise RemoteObjectCorruptError(f"offsets {copy.start_offset} to {copy.end_offset} are no longer complete")
        known = self._state(partition)
        visible = [copy, *readable(self.copies.context.segments.list_remote_log_segments(partition))]
        lineage = whole_lineage(visible, self._leaders(partition, known.lineage))
        if not on_lineage(copy, lineage):
            raise RemoteObjectCorruptError(
                f"offsets {copy.start_offset} to {copy.end_offset} were copied under leader epochs that no longer "
                "hold: another leader took over, and which of the offsets it kept is unknown"
            )
        log_start = known.log_start_offset
        if log_start is None:
            log_start = min(each.start_offset for each in visible)
        state = replace(known, log_start_offset=log_start)

        return self.copies.copy_again(
            copy, lambda remote: proven(stored, self.copies.storage, remote), state, lineage, lease
        )


def proven(stored: StoredCopy, storage: ListableStorage, remote: RemoteIndexBuilder) -> LogSegmentData:
    """Return the bytes of a stored copy, verified as they pass, and its indexes, with the chunks in `remote`."""
    of_copy = _Proven(stored, storage, remote)
    return LogSegmentData(stored.finished.size, of_copy.chunks(), of_copy.indexes)


@dataclass(frozen=True, slots=True)
class _Proven:
    """The bytes of a stored copy, verified as they pass, and the new copy's indexes, whose chunks are in `remote`."""

    stored: StoredCopy
    storage: ListableStorage
    remote: RemoteIndexBuilder

    def chunks(self) -> Iterator[memoryview]:
        """Yield the data piece by piece. Raises CorruptLogError or RemoteObjectCorruptError if they are damaged."""
        copy = self.stored.finished
        names = segment_object_names(copy.segment_id, copy.start_offset)
        checks = BundleChecks(copy)
        checks.open(self.storage.place_of(names.indexes), self.stored.contents)
        stream = BatchStream(self.storage.place_of(names.data), copy.start_offset, copy.size)
        for piece in self.storage.fetch_log_segment(copy):
            for table in stream.feed(piece):
                self.remote.append(table)
                checks.feed(table)
            yield memoryview(piece)
        stream.finish()
        checks.finish()
        for wrong in checks.errors:
            raise wrong

    def indexes(self) -> dict[IndexKind, bytes]:
        """Return the stored copy's indexes; the manifest and the remote indexes name the object, so they are new."""
        return {**self.stored.contents, **self.remote.indexes()}


def _place(segment: RemoteLogSegmentMetadata) -> tuple[TopicIdPartition, int, int, str]:
    return segment.topic_id_partition, segment.start_offset, -segment.end_offset, segment.segment_id.id
