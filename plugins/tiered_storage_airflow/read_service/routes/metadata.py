"""The routes that describe topics, partitions and segments."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from itertools import islice
from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query, Request

from tiered_storage.errors import RemoteObjectNotFoundError
from tiered_storage.remote_log.model import SegmentState, TopicIdPartition
from tiered_storage.remote_log.read.read_values import Isolation
from tiered_storage.settings.read_rights import Right
from tiered_storage_airflow.read_service.login import VisitorDep
from tiered_storage_airflow.read_service.partitions import (
    LARGEST_PARTITION,
    DescribedDep,
    SegmentPath,
    TopicPath,
    admit,
    find_segment,
    known_partitions,
    partitions_of,
    readable_segment,
)
from tiered_storage_airflow.read_service.problem import not_found, title_of
from tiered_storage_airflow.read_service.routes.index_content import IndexName, index_entries
from tiered_storage_airflow.read_service.routes.schemas import (
    IndexAnswer,
    PartitionAnswer,
    PartitionsAnswer,
    SegmentAnswer,
    SegmentsAnswer,
    TopicAnswer,
    TopicsAnswer,
)
from tiered_storage_airflow.read_service.service import OpenService, OpenServiceDep

router = APIRouter(tags=["metadata"])
SegmentStateName = Literal["COPY_SEGMENT_STARTED", "COPY_SEGMENT_FINISHED", "DELETE_SEGMENT_STARTED"]


@router.get("/topics")
async def topics(service: OpenServiceDep, visitor: VisitorDep) -> TopicsAnswer:
    """Return the topics that the user may see, remote and local ones."""
    rights, known = await service.rights_now(), await known_partitions(service)
    may = partial(rights.allows, visitor.name, visitor.roles)
    return await service.threads.asking.run(lambda: _visible(known, may))


def _visible(known: Collection[TopicIdPartition], allows: Callable[[Right, str], bool]) -> TopicsAnswer:
    incarnations: dict[tuple[str, str, str], list[int]] = {}
    for each in known:
        incarnations.setdefault((each.topic, each.cluster_id, each.topic_id), []).append(each.partition)
    return TopicsAnswer(
        [
            TopicAnswer(topic, topic_id, cluster_id, sorted(numbers), allows(Right.READ, topic))
            for (topic, cluster_id, topic_id), numbers in sorted(incarnations.items())
            if allows(Right.DESCRIBE, topic)
        ]
    )


@router.get("/topics/{topic}/partitions")
async def partitions(
    request: Request,
    service: OpenServiceDep,
    visitor: VisitorDep,
    topic: TopicPath,
    start: Annotated[int, Query(description="The first partition number.", ge=0, le=LARGEST_PARTITION)] = 0,
    limit: Annotated[int, Query(description="The most partitions.", ge=1, le=1000)] = 100,
) -> PartitionsAnswer:
    """Return the partitions of all incarnations of a topic, each with its offsets."""
    await admit(request, service, visitor, Right.DESCRIBE, topic)
    partitions, following = await partitions_of(service, topic, start, limit)
    return PartitionsAnswer([await describe(service, each) for each in partitions], following)


@router.get("/topics/{topic}/partitions/{partition}")
async def partition(asked: DescribedDep) -> PartitionAnswer:
    """Return the offsets of a partition, and how much of it is in which tier."""
    return await describe(asked.service, asked.partition)


@router.get("/topics/{topic}/partitions/{partition}/segments")
async def segments(
    asked: DescribedDep,
    start: Annotated[int, Query(description="The start offset of the first segment.", ge=0, le=2**63 - 1)] = 0,
    limit: Annotated[int, Query(description="The most segments.", ge=1, le=2000)] = 1000,
    state: Annotated[SegmentStateName | None, Query(description="Only segments in this state.")] = None,
) -> SegmentsAnswer:
    """Return remote segments in order of start offset, in every state but deleted."""

    def find() -> SegmentsAnswer:
        listed = (
            segment
            for segment in asked.service.log.context.segments.list_remote_log_segments(asked.partition)
            if segment.start_offset >= start and state in {None, segment.state.name}
        )
        shown = [SegmentAnswer.of(segment) for segment in islice(listed, limit)]
        for following in listed:
            # Segments with the same start offset stay together, so that the next page begins after all of them.
            if following.start_offset != shown[-1].start_offset:
                return SegmentsAnswer(shown, following.start_offset)
            shown.append(SegmentAnswer.of(following))
        return SegmentsAnswer(shown, None)

    return await asked.service.threads.asking.run(find)


@router.get("/topics/{topic}/partitions/{partition}/segments/{segment_id}")
async def segment(asked: DescribedDep, segment_id: SegmentPath) -> SegmentAnswer:
    """Return one remote segment."""
    return SegmentAnswer.of(await find_segment(asked, segment_id))


@router.get("/topics/{topic}/partitions/{partition}/segments/{segment_id}/indexes/{name}")
async def index(
    asked: DescribedDep,
    segment_id: SegmentPath,
    name: Annotated[IndexName, Path(description="Which index.")],
    start: Annotated[int, Query(description="The number of the first entry.", ge=0, le=2**31 - 1)] = 0,
    limit: Annotated[int, Query(description="The most entries.", ge=1, le=2000)] = 1000,
) -> IndexAnswer:
    """Return the entries of an index of a remote segment, after verifying its checksum."""
    segment = await readable_segment(asked, segment_id)
    service = asked.service
    try:
        raw = await service.tiers.index(asked.partition, segment_id, name.kind)
    except RemoteObjectNotFoundError as error:
        await readable_segment(asked, segment_id)
        if "has no index" in str(error):
            raise not_found(f"the segment {segment_id} has no index {name.value}") from error
        raise
    entries, count = await service.threads.moving.run(lambda: index_entries(name, raw, segment, start, limit))
    following = start + len(entries)
    return IndexAnswer(segment_id, name.value, len(raw), count, entries, following if following < count else None)


async def describe(service: OpenService, partition: TopicIdPartition) -> PartitionAnswer:
    """Return the description of a partition."""
    snapshot = await service.tiers.snapshot(partition)
    segments = service.log.context.segments
    count, state = await service.threads.asking.run(
        lambda: (segments.count_remote_log_segments(partition), segments.partition_state(partition))
    )
    local, tiered, end = snapshot.local, snapshot.coverage.end_offset, snapshot.end_offset(Isolation.READ_UNCOMMITTED)
    copied_up_to = snapshot.local_start if tiered is None else tiered + 1
    return PartitionAnswer(
        topic=partition.topic,
        topic_id=partition.topic_id,
        cluster_id=partition.cluster_id,
        partition=partition.partition,
        log_start_offset=snapshot.log_start_offset,
        log_end_offset=end,
        last_stable_offset=snapshot.end_offset(Isolation.READ_COMMITTED),
        earliest_local_offset=None if local is None else snapshot.local_start,
        latest_tiered_offset=tiered,
        lag_offsets=0 if local is None else max(0, local.last_stable_offset - copied_up_to),
        remote_segments=count.get(SegmentState.COPY_SEGMENT_FINISHED, 0),
        remote_bytes=sum(covered.size for covered in snapshot.coverage.ranges),
        local_segments=0 if local is None else len(local.segments),
        local_bytes=0 if local is None else sum(segment.size for segment in local.segments),
        unfinished_copies=count.get(SegmentState.COPY_SEGMENT_STARTED, 0),
        unfinished_deletions=count.get(SegmentState.DELETE_SEGMENT_STARTED, 0),
        delete_state=None if state.delete_state is None else state.delete_state.name,
        local_problem=None if snapshot.hidden is None else title_of(snapshot.hidden),
    )
