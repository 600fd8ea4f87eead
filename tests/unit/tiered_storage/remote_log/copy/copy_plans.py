"""Plans of a copy for tests: what is due, and what the metadata know already."""

from __future__ import annotations

from support.metadata_stores import a_segment, a_step
from support.remote_logs import ORDERS_0, held_by
from tiered_storage.remote_log.copy.tasks import CopyPlan
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.model import SegmentState, TopicIdPartition

FINISHED = SegmentState.COPY_SEGMENT_FINISHED
ENABLED = {"remote.storage.enable": True}


def due(plan: CopyPlan) -> list[tuple[str, int, int]]:
    return [(str(one.topic_id_partition), one.base_offset, one.end_offset) for one in plan.segments]


def finish(
    remote_log: RemoteLogManager,
    start: int,
    end: int,
    *,
    state: SegmentState = FINISHED,
    epochs: tuple[tuple[int, int], ...] | None = None,
    of: TopicIdPartition = ORDERS_0,
) -> None:
    """Let the metadata know a remote segment, without its objects."""
    lease = held_by(remote_log, "test", of)
    segment = a_segment(lease, start, end, epochs=epochs)
    remote_log.context.segments.add_remote_log_segment_metadata(segment, lease)
    for step in SegmentState:
        if SegmentState.COPY_SEGMENT_STARTED < step <= state:
            remote_log.context.segments.update_remote_log_segment_metadata(a_step(segment, step), lease)
    remote_log.context.leases.release(lease)
