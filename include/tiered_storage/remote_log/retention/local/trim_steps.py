"""Split the trim of a large partition into steps, so that a run that is cut short has freed some space.

The remote copies of a step's local segments are read back right before the step, and nothing of the next step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tiered_storage.remote_log.model import RemoteLogSegmentMetadata
from tiered_storage.remote_log.source.partition_log import LocalSegment

STEP_BYTES = 4 << 30
"""How much is read back before a step, or what one local segment needs: a minute or two with most stores."""


def trim_steps(
    segments: Sequence[LocalSegment],
    held_by: Sequence[RemoteLogSegmentMetadata],
    step_bytes: int,
    together_below: int = 0,
) -> Iterator[tuple[tuple[LocalSegment, ...], tuple[RemoteLogSegmentMetadata, ...]]]:
    """Yield the local segments of each step, in order, and those of `held_by` that hold any offset of them.

    A step has as many as remote segments of `step_bytes` together hold, and at least one. All that begin below the
    offset `together_below` are in the first step.
    """
    ordered = sorted(held_by, key=lambda each: each.start_offset)
    step: list[LocalSegment] = []
    holders: dict[str, RemoteLogSegmentMetadata] = {}
    first = 0
    for local in segments:
        while first < len(ordered) and ordered[first].end_offset < local.base_offset:
            first += 1
        needed = {one.segment_id.id: one for one in _holding(local, ordered, first)}
        is_full = sum(one.size for one in (holders | needed).values()) > step_bytes
        if step and is_full and local.base_offset >= together_below:
            yield tuple(step), tuple(holders.values())
            step, holders = [], {}
        step.append(local)
        holders |= needed
    if step:
        yield tuple(step), tuple(holders.values())


def _holding(
    local: LocalSegment, ordered: Sequence[RemoteLogSegmentMetadata], first: int
) -> Iterator[RemoteLogSegmentMetadata]:
    end = local.base_offset if local.end_offset is None else local.end_offset
    for at in range(first, len(ordered)):
        if ordered[at].start_offset > end:
            return
        if ordered[at].end_offset >= local.base_offset:
            yield ordered[at]
