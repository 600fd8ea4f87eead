"""What other processes do to a metadata store in tests; importable, so that a new process finds it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.synchronize import Barrier

from support.clocks import ManualClock
from support.metadata_stores import FINISHED, a_segment, a_step
from support.processes import PATIENCE_SECONDS
from tiered_storage.errors import LeaseHeldError, LeaseLostError
from tiered_storage.remote_log.metadata.metadata_store import MetadataStore
from tiered_storage.remote_log.metadata.sql.store import open_metadata_store
from tiered_storage.remote_log.model import Lease, RemoteLogSegmentId, TopicIdPartition


def open_fresh_stores(_number: int, barrier: Barrier, urls: Sequence[str]) -> list[str]:
    """Open each of `urls` at the same moment as the other processes; return the UUIDs of the stores."""
    uuids = []
    for url in urls:
        barrier.wait(PATIENCE_SECONDS)
        with open_metadata_store(url, ManualClock()) as store:
            uuids.append(store.identity.metadata_uuid)
    return uuids


def acquire_at_once(number: int, barrier: Barrier, url: str, partitions: Sequence[TopicIdPartition]) -> list[int]:
    """Try for the lease of each partition against the other processes; return the partitions that were won."""
    won = []
    with open_metadata_store(url, ManualClock()) as store:
        barrier.wait(PATIENCE_SECONDS)
        for partition in partitions:
            try:
                store.leases.acquire(partition, f"process-{number}", 60_000)
            except LeaseHeldError:
                continue
            won.append(partition.partition)
    return won


def acquire_in_turns(_number: int, barrier: Barrier, url: str, partition: TopicIdPartition, steps: int) -> list[int]:
    """Take the lease again and again, against other processes of the same owner; return the numbers that were given."""
    with open_metadata_store(url, ManualClock()) as store:
        barrier.wait(PATIENCE_SECONDS)
        return [store.leases.acquire(partition, "one owner", 60_000).fencing_number for _ in range(steps)]


@dataclass(slots=True)
class SegmentsWritten:
    """The segments that a process added and finished, as (partition, id), and its last refused attempt."""

    added: list[tuple[int, str]] = field(default_factory=list)
    finished: list[tuple[int, str]] = field(default_factory=list)
    last_refusal: str = ""

    def write(self, store: MetadataStore, lease: Lease, start: int) -> None:
        """Add a segment of ten offsets under `lease` and finish it, unless the lease is lost."""
        partition = lease.topic_id_partition
        name = (partition.partition, f"lease-{lease.fencing_number}-at-{start}")
        segment = a_segment(lease, start, start + 9, segment_id=RemoteLogSegmentId(partition, name[1]))
        try:
            store.segments.add_remote_log_segment_metadata(segment, lease)
            self.added.append(name)
            store.segments.update_remote_log_segment_metadata(a_step(segment, FINISHED), lease)
            self.finished.append(name)
        except LeaseLostError as error:
            self.last_refusal = f"{name}: {error}"


def write_segments_at_once(
    number: int, barrier: Barrier, url: str, own: Sequence[TopicIdPartition], contested: TopicIdPartition, count: int
) -> SegmentsWritten:
    """Write `count` segments of partition `number` of `own` at the same time as the other processes.

    Processes 0 and 1 also write to `contested`, and take its lease from one another before each segment. At the end,
    process 0 tries again with the first lease that it got.
    """
    written = SegmentsWritten()
    with open_metadata_store(url, ManualClock(), busy_timeout_ms=PATIENCE_SECONDS * 1000) as store:
        lease = store.leases.acquire(own[number], f"process-{number}", 60_000)
        fights = number < 2
        first = store.leases.acquire(contested, "fighters", 60_000) if fights else lease
        barrier.wait(PATIENCE_SECONDS)
        for step in range(count):
            written.write(store, lease, step * 10)
            if fights:
                written.write(store, store.leases.acquire(contested, "fighters", 60_000), step * 10)
        barrier.wait(PATIENCE_SECONDS)
        if number == 0:
            written.write(store, first, count * 10)
    return written
