"""The places of a partition's offsets, as runs of offsets in the same place."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from tiered_storage.kafka_log.producers.transaction_state import Isolation
from tiered_storage.remote_log.read.partition_snapshot import PartitionSnapshot


class Place(StrEnum):
    """Where offsets lie."""

    REMOTE = "remote"
    BOTH = "both"
    LOCAL = "local"
    ACTIVE = "active"
    """In the local segment that is still written to."""
    MISSING = "missing"
    """Nowhere, although they lie between the log start and the end."""


@dataclass(frozen=True, slots=True)
class Region:
    """The offsets `start` (inclusive) to `end` (exclusive), all in one place."""

    place: Place
    start: int
    end: int


def regions_of(snapshot: PartitionSnapshot) -> list[Region]:
    """Return the regions of a partition from its log start to its end, in order, without a gap between them."""
    start, end = snapshot.log_start_offset, snapshot.end_offset(Isolation.READ_UNCOMMITTED)
    remote = [(max(each.start_offset, start), min(each.end_offset + 1, end)) for each in snapshot.coverage.ranges]
    local_start = end if snapshot.local is None else max(start, snapshot.local.log_start_offset)
    local_end = end if snapshot.local is None else min(end, snapshot.local.readable_end)
    active = _active_start(snapshot, local_end)
    edges = sorted({start, end, local_start, local_end, active, *(edge for each in remote for edge in each)})
    found: list[Region] = []
    at = 0
    for first, last in pairwise(edges):
        if first < start or last > end:
            continue
        while at < len(remote) and remote[at][1] <= first:
            at += 1
        is_remote = at < len(remote) and remote[at][0] <= first
        place = _place(is_remote, is_local=local_start <= first < local_end, is_active=active <= first < local_end)
        if found and found[-1].place is place:
            found[-1] = Region(place, found[-1].start, last)
        else:
            found.append(Region(place, first, last))
    return found


def _active_start(snapshot: PartitionSnapshot, local_end: int) -> int:
    if snapshot.local is None or not snapshot.local.segments or not snapshot.local.segments[-1].is_active:
        return local_end
    return max(snapshot.local.segments[-1].base_offset, snapshot.local_start)


def _place(is_remote: bool, *, is_local: bool, is_active: bool) -> Place:
    if is_remote:
        return Place.BOTH if is_local else Place.REMOTE
    if not is_local:
        return Place.MISSING
    return Place.ACTIVE if is_active else Place.LOCAL
