"""Wrap the data keys of encrypted segments again, by the active key of the key ring. Their data stay as they are.

A rotation may be repeated at any time: segments whose data keys the active key wraps already are left. It takes the
lease of each partition that has others, so no deletion runs beside it; copies and reads do no harm.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from tiered_storage.errors import LeaseHeldError, LeaseLostError, RemoteStorageError
from tiered_storage.remote_log.context import RemoteLogContext
from tiered_storage.remote_log.jobs.lease_keeper import kept_alive
from tiered_storage.remote_log.model import Finding, Lease, RemoteLogSegmentMetadata, SegmentState, TopicIdPartition
from tiered_storage.remote_log.selection import Selection
from tiered_storage.remote_log.storage.concurrent_requests import concurrent_map
from tiered_storage.remote_log.storage.listable_storage import ListableStorage, listing_storage

_HAS_OBJECTS = frozenset({SegmentState.COPY_SEGMENT_FINISHED, SegmentState.DELETE_SEGMENT_STARTED})
"""A segment marked for deletion may be undeleted, so its key is needed until its objects are deleted."""


@dataclass(slots=True)
class KeyRotation:
    """What a rotation did, or would do: numbers of segments; `keys` has those of each key that wraps them now.

    `failures` name each segment whose data key could not be wrapped again, `left` each partition of another owner.
    """

    active: str
    due: int = 0
    rotated: int = 0
    keys: Counter[str] = field(default_factory=Counter)
    failures: list[Finding] = field(default_factory=list)
    left: list[Finding] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class KeyRotator:
    """Rotates the keys of the remote log of `context`, as `owner` of leases."""

    context: RemoteLogContext
    owner: str

    def rotate(self, selection: Selection, *, dry_run: bool = False) -> KeyRotation:
        """Wrap the data keys of the selected segments again; with `dry_run`, only report what is due.

        Raises EncryptionKeyError if the key ring has no usable active key, ConfigurationError for a store that cannot
        be listed, StoreMismatchError and OutdatedMetadataError, and what the store raises if it does not answer.
        """
        storage = listing_storage(self.context.storage)
        report = KeyRotation(self.context.options.key_ring.active_key().id)
        if not dry_run:
            self.context.bind_store()
        for partition in self.context.segments.list_partitions():
            if selection.matches(partition.topic, partition.partition):
                self._rotate_partition(partition, storage, report, dry_run=dry_run)
        return report

    def _rotate_partition(
        self, partition: TopicIdPartition, storage: ListableStorage, report: KeyRotation, *, dry_run: bool
    ) -> None:
        keys = _keys_of(self._stored(partition), storage, report.failures)
        report.keys.update(keys.values())
        due = {segment for segment, key_id in keys.items() if key_id != report.active}
        report.due += len(due)
        if not due or dry_run:
            return
        with self._under_lease(partition, report) as lease:
            if lease is not None:
                # Again: an expiry may have deleted some before the lease.
                self._rewrap([one for one in self._stored(partition) if one in due], keys, storage, report, lease)

    def _rewrap(
        self,
        segments: Iterable[RemoteLogSegmentMetadata],
        keys: Mapping[RemoteLogSegmentMetadata, str],
        storage: ListableStorage,
        report: KeyRotation,
        lease: Lease,
    ) -> None:
        for segment in segments:
            # A run that stood still may have a key that was removed since.
            self.context.leases.check(lease)
            with _failures_recorded(segment, report.failures):
                storage.rewrap_key(segment)
                report.rotated += 1
                report.keys.subtract([keys[segment]])
                report.keys[report.active] += 1

    def _stored(self, partition: TopicIdPartition) -> list[RemoteLogSegmentMetadata]:
        every = self.context.segments.list_remote_log_segments(partition)
        return [one for one in every if one.state in _HAS_OBJECTS and one.custom_metadata is not None]

    @contextmanager
    def _under_lease(self, partition: TopicIdPartition, report: KeyRotation) -> Iterator[Lease | None]:
        leases, duration = self.context.leases, self.context.settings.lease_duration_ms
        try:
            lease = leases.acquire(partition, self.owner, duration)
        except LeaseHeldError as error:
            report.left.append(Finding(str(partition), str(error)))
            yield None
            return
        try:
            with kept_alive(leases, [lease], duration):
                yield lease
        except LeaseLostError as error:
            report.left.append(Finding(str(partition), str(error)))
        finally:
            leases.release(lease)


def _keys_of(
    segments: Sequence[RemoteLogSegmentMetadata], storage: ListableStorage, failures: list[Finding]
) -> dict[RemoteLogSegmentMetadata, str]:
    """Return, of those that are encrypted, the id of the key that wraps each one's data key."""

    def look(segment: RemoteLogSegmentMetadata) -> tuple[RemoteLogSegmentMetadata, str | None]:
        with _failures_recorded(segment, failures):
            return segment, storage.key_id(segment)
        return segment, None

    return {segment: key_id for segment, key_id in concurrent_map(look, segments) if key_id is not None}


@contextmanager
def _failures_recorded(segment: RemoteLogSegmentMetadata, failures: list[Finding]) -> Iterator[None]:
    """Note an error of this segment alone; raise what concerns the whole store."""
    try:
        yield
    except RemoteStorageError as error:
        if error.retriable:
            raise
        failures.append(Finding(str(segment.topic_id_partition), f"{segment.segment_id.id}: {error}"))
