"""Where the log of a follower starts, and what it takes from the remote tier for the offsets below.

    wanted    the leader's first local offset (the document's next-local offset); with
              follower.fetch.last.tiered.offset.enable the offset after the last remote one (KIP-1023), if the leader
              still has it, and none is missing remotely that the leader has before it
    start     the offset after the remote segment that has the one before `wanted`: its producer snapshot is the state
              of the producers there. It may lie above `wanted`; those records are remote too
    epochs    all leader epochs from the log start over both tiers to `start`
    producers the snapshot of that segment; if the store has none that can be used, or a later leader truncated the
              segment, they follow from the batches after the last snapshot before

Source: KIP-405, section Follower Replication; TierStateMachine of released Kafka.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tiered_storage.errors import (
    CorruptIndexError,
    LineageContradictedError,
    RemoteObjectCorruptError,
    RemoteObjectNotFoundError,
)
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.kafka_log.producers.producer_history import KnownProducers, follow
from tiered_storage.kafka_log.producers.producer_snapshot import parse_producer_snapshot
from tiered_storage.kafka_log.producers.producer_state import ProducerState
from tiered_storage.remote_log.coverage import CoveredRange
from tiered_storage.remote_log.read.partition_snapshot import PartitionSnapshot
from tiered_storage.remote_log.source.partition_log import PartitionLog, epochs_within
from tiered_storage.remote_log.storage.batch_stream import checked_batches, fetch_whole
from tiered_storage.remote_log.storage.remote_storage_manager import IndexKind, RemoteStorageManager


@dataclass(frozen=True, slots=True)
class FollowerStart:
    """A follower's log starts at `offset`, with the `producers` known there and the `epochs` of what is before it.

    `log_start_offset` is the log start over both tiers. `rebuilt_from` is the offset from which batches were read to
    find the producers; None: a snapshot of the store has them, or nothing is remote.
    """

    offset: int
    log_start_offset: int
    epochs: tuple[EpochEntry, ...]
    producers: KnownProducers
    rebuilt_from: int | None = None


def plan_start(
    snapshot: PartitionSnapshot, leader: PartitionLog, storage: RemoteStorageManager, *, from_last_tiered: bool
) -> FollowerStart:
    """Return where a follower of `leader` starts; `snapshot` is of both tiers, with that log as the local one.

    Raises RemoteObjectNotFoundError if offsets below the leader's log are missing in the remote tier,
    LineageContradictedError if the leader's log ends before the start, and what reading the store raises.
    """
    wanted = _wanted(snapshot, leader, from_last_tiered=from_last_tiered)
    log_start = snapshot.log_start_offset
    has_been_remote = bool(snapshot.coverage.ranges) or snapshot.is_log_start_known
    if wanted <= log_start or not has_been_remote:
        # Nothing that readers may see is below it.
        return FollowerStart(wanted, wanted, (), KnownProducers(wanted, (), wanted or None))
    before = snapshot.existing_remote_range(wanted - 1)
    offset = before.end_offset + 1
    if offset > leader.readable_end:
        raise LineageContradictedError(
            f"{snapshot.partition}: its remote log has offsets up to {offset - 1}, and {leader.place} ends at offset "
            f"{leader.readable_end - 1}: nothing is followed; see whether an outdated replica leads"
        )
    ranges = [each for each in snapshot.coverage.ranges if each.end_offset < offset]
    producers, rebuilt_from = producers_after(ranges, storage)
    return FollowerStart(
        offset, log_start, epochs_within(snapshot.lineage, log_start, offset - 1), producers, rebuilt_from
    )


def _wanted(snapshot: PartitionSnapshot, leader: PartitionLog, *, from_last_tiered: bool) -> int:
    local_start = max(leader.log_start_offset, snapshot.global_log_start)
    if not from_last_tiered:
        return min(local_start, leader.readable_end)
    # A gap of the remote log is only on the disks of replicas, and this one may be the next to lead.
    gaps = snapshot.coverage.missing(local_start, snapshot.remote_end - 1)
    end = gaps[0][0] if gaps else snapshot.remote_end
    return max(local_start, min(end, leader.readable_end))


def producers_after(ranges: Sequence[CoveredRange], storage: RemoteStorageManager) -> tuple[KnownProducers, int | None]:
    """Return the producers after the last of `ranges`, and from which offset batches were read for that, if any were.

    Raises what reading the store raises; a missing or corrupt producer snapshot is passed over.
    """
    known, at = _nearest_snapshot(ranges, storage)
    if at == len(ranges):
        return known, None
    state = known.state()
    for covered in ranges[at:]:
        _feed(state, covered, storage)
    end = ranges[-1].end_offset + 1
    return KnownProducers(end, state.snapshot(), known.seen_from), known.end_offset


def _nearest_snapshot(ranges: Sequence[CoveredRange], storage: RemoteStorageManager) -> tuple[KnownProducers, int]:
    """Return the producers at the latest offset that a snapshot shows, and the number of the first range after it.

    Goes back as far as the ranges follow one another.
    """
    for at in range(len(ranges), 0, -1):
        covered = ranges[at - 1]
        if (known := _snapshot_after(covered, storage)) is not None:
            return known, at
        if at == 1 or ranges[at - 2].end_offset + 1 < covered.start_offset:
            start = covered.start_offset
            return KnownProducers(start, (), start or None), at - 1
    return KnownProducers(0), 0


def _snapshot_after(covered: CoveredRange, storage: RemoteStorageManager) -> KnownProducers | None:
    """Return the producers after a range; None if its segment has no snapshot for that offset that can be read."""
    segment = covered.segment
    if covered.end_offset != segment.end_offset:
        return None
    try:
        raw = storage.fetch_index(segment, IndexKind.PRODUCER_SNAPSHOT)
        producers = parse_producer_snapshot(raw, f"{segment.segment_id}: producer snapshot")
    except (RemoteObjectNotFoundError, RemoteObjectCorruptError, CorruptIndexError):
        return None
    return KnownProducers(segment.end_offset + 1, producers)


def _feed(state: ProducerState, covered: CoveredRange, storage: RemoteStorageManager) -> None:
    """Let `state` take the batches of a range. Raises what reading the store raises."""
    segment = covered.segment
    for window, table in checked_batches(segment, fetch_whole(segment, storage)):
        taken = table.rows(0, int(table.last_offset.searchsorted(covered.end_offset, side="right")))
        if len(taken):
            follow(state, str(segment.segment_id), window, taken)
    state.end_offset = covered.end_offset + 1
