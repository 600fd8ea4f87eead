"""Remote segments by their ids."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated

from fastapi import Path

from tiered_storage.errors import RemoteObjectNotFoundError
from tiered_storage.remote_log.model import RemoteLogSegmentId, RemoteLogSegmentMetadata, SegmentState
from tiered_storage_airflow.read_service.partitions import Asked
from tiered_storage_airflow.read_service.problem import ProblemError, not_found

SegmentPath = Annotated[str, Path(description="The segment's id.", pattern=r"^[A-Za-z0-9_-]{22}$")]


async def find_segment(asked: Asked, segment_id: str) -> RemoteLogSegmentMetadata:
    """Return a segment in any state. Raises ProblemError: 404 where there never was one, 410 where it was deleted."""
    return await asked.service.asking.run(lambda: _find(asked, segment_id))


async def readable_segment(asked: Asked, segment_id: str) -> RemoteLogSegmentMetadata:
    """Return a segment that readers may see. Raises ProblemError: 404, 409 before its copy has ended, 410 deleted."""
    segment = await find_segment(asked, segment_id)
    state = await asked.service.asking.run(lambda: asked.service.log.segments.partition_state(asked.partition))
    if state.delete_state is not None or segment.end_offset < (state.log_start_offset or 0):
        raise _gone(segment_id)
    if segment.state is SegmentState.COPY_SEGMENT_STARTED:
        raise ProblemError(409, "NotFinished", f"the copy of segment {segment_id} has not ended", retriable=True)
    if segment.state is not SegmentState.COPY_SEGMENT_FINISHED:
        raise _gone(segment_id)
    return segment


async def told_if_gone(
    asked: Asked, segment: RemoteLogSegmentMetadata, pieces: AsyncGenerator[bytes, None]
) -> AsyncGenerator[bytes, None]:
    """Pass `pieces` on; where they are not found any more because the segment was deleted meanwhile, say just that."""
    try:
        async with aclosing(pieces):
            async for piece in pieces:
                yield piece
    except RemoteObjectNotFoundError:
        await readable_segment(asked, segment.segment_id.id)
        raise


def _find(asked: Asked, segment_id: str) -> RemoteLogSegmentMetadata:
    segments = asked.service.log.segments
    found = segments.segment_by_id(RemoteLogSegmentId(asked.partition, segment_id))
    if found is not None:
        return found
    if segments.known_segment_ids(asked.partition, [segment_id]):
        raise _gone(segment_id)
    raise not_found(f"{asked.partition} has no remote segment {segment_id}")


def _gone(segment_id: str) -> ProblemError:
    return ProblemError(410, "Gone", f"the segment {segment_id} was deleted, or is about to be")
