"""Check whether a damaged segment is redundant: others hold its offsets, and all their bytes are read back intact.

Sizes, or an audit without findings, prove nothing about bytes that were not read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from tiered_storage.errors import RemoteObjectCorruptError, RemoteObjectNotFoundError
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.remote_log.copy.sent_records import why_other_records
from tiered_storage.remote_log.coverage import Coverage
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata
from tiered_storage.remote_log.retention.permission.object_checks import ensure_whole
from tiered_storage.remote_log.storage.listable_storage import ListableStorage


@dataclass(frozen=True, slots=True)
class WholeChecks:
    """Reads segments back completely from `storage`, each once.

    Calls `before_each`, for example to check a lease, and `on_bytes` with the size of each piece of data.
    """

    storage: ListableStorage
    before_each: Callable[[], object] = lambda: None
    on_bytes: Callable[[int], object] = lambda _: None
    _known: dict[str, str | None] = field(default_factory=dict)

    def why_not_whole(self, segment: RemoteLogSegmentMetadata) -> str | None:
        """Return what is wrong with the objects of `segment`, None if nothing is.

        Raises what the store raises if it cannot be reached: then the answer is unknown.
        """
        segment_id = segment.segment_id.id
        if segment_id not in self._known:
            self.before_each()
            self._known[segment_id] = self._read(segment)
        return self._known[segment_id]

    def _read(self, segment: RemoteLogSegmentMetadata) -> str | None:
        try:
            ensure_whole(segment, self.storage, self.on_bytes)
        except (RemoteObjectNotFoundError, RemoteObjectCorruptError) as error:
            return str(error)
        return None


def why_needed(
    segment: RemoteLogSegmentMetadata,
    coverage: Coverage,
    log_start: int,
    lineage: Sequence[EpochEntry],
    checks: WholeChecks,
) -> str | None:
    """Return why `segment` is needed; None if `coverage` of others holds all of it from `log_start` on, intact.

    Each batch of it that is still readable must be in them. Raises what the store raises if it cannot be reached.
    """
    if segment.end_offset < log_start:
        return None
    held = coverage.holding(max(segment.start_offset, log_start), segment.end_offset)
    if held is None:
        return "no other segment holds all of its offsets yet"
    for covered in held:
        if (wrong := checks.why_not_whole(covered.segment)) is not None:
            return f"{covered.segment.segment_id.id}, which would replace it, is damaged: {wrong}"
    return why_other_records(segment, coverage, log_start, lineage, checks.storage)


def held_twice(
    segments: Sequence[RemoteLogSegmentMetadata], lineage: Sequence[EpochEntry], log_start: int
) -> list[RemoteLogSegmentMetadata]:
    """Return the finished segments whose every offset from `log_start` on others also hold, and those others."""
    coverage = Coverage.of(segments, lineage)
    found: dict[str, RemoteLogSegmentMetadata] = {}
    for segment in segments:
        if segment.end_offset < log_start:
            continue
        held = coverage.holding(max(segment.start_offset, log_start), segment.end_offset)
        is_read = held is not None and any(covered.segment is segment for covered in held)
        if held is not None and not is_read:
            found.update((one.segment_id.id, one) for one in (segment, *(covered.segment for covered in held)))
    found.update((one.segment_id.id, one) for one in _between_neighbours(coverage, log_start))
    return list(found.values())


def _between_neighbours(coverage: Coverage, log_start: int) -> Iterator[RemoteLogSegmentMetadata]:
    """Yield each segment whose neighbours meet inside it, and the neighbours."""
    reached = log_start
    ranges = [covered for covered in coverage.ranges if covered.end_offset >= log_start]
    for at in range(len(ranges) - 1):
        if reached >= ranges[at + 1].start_offset:
            yield from (covered.segment for covered in ranges[max(at - 1, 0) : at + 2])
        reached = ranges[at].end_offset + 1
