"""Resolve the names in a request to a partition that the user may see."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Path, Query, Request

from tiered_storage.errors import (
    AmbiguousPartitionError,
    RemoteObjectNotFoundError,
    TieredStorageError,
    UnknownPartitionError,
)
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.model import RemoteLogSegmentId, RemoteLogSegmentMetadata, SegmentState, TopicIdPartition
from tiered_storage.remote_log.source.partition_log import PartitionLog
from tiered_storage.remote_log.source.segment_source import configured_partitions
from tiered_storage.settings.properties.types import topic_name
from tiered_storage.settings.read_rights import Right
from tiered_storage_airflow.read_service.access import access_of
from tiered_storage_airflow.read_service.login import Visitor, VisitorDep, checked_again
from tiered_storage_airflow.read_service.problem import ProblemError, not_found
from tiered_storage_airflow.read_service.service import OpenService, OpenServiceDep

LARGEST_PARTITION = 2**31 - 1
TopicPath = Annotated[str, Path(description="The topic's name.", max_length=249)]
PartitionPath = Annotated[int, Path(description="The partition's number.", ge=0, le=LARGEST_PARTITION)]
TopicIdQuery = Annotated[
    str | None,
    Query(description="The topic's id; needed if the name had several incarnations.", pattern=r"^[A-Za-z0-9_-]{22}$"),
]


@dataclass(frozen=True, slots=True)
class Asked:
    """A requested partition, the user who requested it, and the right that the user has on it."""

    service: OpenService
    partition: TopicIdPartition
    visitor: Visitor
    right: Right

    async def ensure_right(self) -> None:
        """Raise as `checked_again` and `ensure_right` if the login has expired or the right was revoked meanwhile."""
        visitor = await checked_again(self.visitor)
        await ensure_right(self.service, visitor, self.right, self.partition.topic)


async def ensure_right(service: OpenService, visitor: Visitor, right: Right, topic: str) -> None:
    """Raise ProblemError: 404 if the user may not see the topic, 403 if they may only describe it."""
    rights = await service.rights_now()
    if not rights.allows(visitor.name, visitor.roles, Right.DESCRIBE, topic):
        raise no_topic(topic)
    if not rights.allows(visitor.name, visitor.roles, right, topic):
        raise ProblemError(403, "Forbidden", f"you may see the topic {topic}, but not read its records")


async def admit(request: Request, service: OpenService, visitor: Visitor, right: Right, topic: str) -> None:
    """Note in the access log which topic is asked for, and that the user has `right` on it; raise as `ensure_right`."""
    access = access_of(request)
    access.topic = topic
    await ensure_right(service, visitor, right, topic)
    access.has_right = True


def no_topic(topic: str) -> ProblemError:
    """Return the same error for a missing topic and for one that the user may not see."""
    return not_found(f"there is no topic {topic!r} that you may see")


def asked(right: Right) -> Callable[..., object]:
    """Return the dependency that finds the partition of a route, for users with `right` on its topic."""

    async def find(
        request: Request,
        service: OpenServiceDep,
        visitor: VisitorDep,
        topic: TopicPath,
        partition: PartitionPath,
        topic_id: TopicIdQuery = None,
    ) -> Asked:
        access_of(request).partition = partition
        await admit(request, service, visitor, right, topic)
        log, asking = service.log, service.threads.asking
        remote = await service.seen.remote.get(lambda: asking.run(log.context.segments.list_partitions))
        found = await asking.run(lambda: partition_or_problem(log, remote, topic, partition, topic_id))
        return Asked(service, found, visitor, right)

    return find


DescribedDep = Annotated[Asked, Depends(asked(Right.DESCRIBE))]
ReadDep = Annotated[Asked, Depends(asked(Right.READ))]


async def known_partitions(service: OpenService) -> list[TopicIdPartition]:
    """Return all partitions, remote and local; the list may be a moment old."""
    return await service.seen.partitions.get(lambda: service.threads.asking.run(lambda: _known(service.log)))


def _known(log: RemoteLogManager) -> list[TopicIdPartition]:
    """Return all partitions, remote and local; an unreadable local tier adds none."""
    found = set(log.context.segments.list_partitions())
    with suppress(TieredStorageError, OSError):
        logs = configured_partitions(log.context.source)
        found |= {each.topic_id_partition for each in logs if isinstance(each, PartitionLog)}
    return list(found)


async def partitions_of(
    service: OpenService, topic: str, start: int, limit: int
) -> tuple[list[TopicIdPartition], int | None]:
    """Return about `limit` partitions of all incarnations of a topic, from number `start` on, and the next number.

    The incarnations of a number stay together. Raises ProblemError (404) if the topic has no partition at all.
    """
    found = [each for each in await known_partitions(service) if each.topic == topic]
    if not found:
        raise no_topic(topic)
    due = sorted((each for each in found if each.partition >= start), key=lambda each: (each.partition, each.topic_id))
    end = limit
    while 0 < end < len(due) and due[end].partition == due[end - 1].partition:
        end += 1
    return due[:end], due[end].partition if end < len(due) else None


def partition_or_problem(
    log: RemoteLogManager, remote: Sequence[TopicIdPartition], topic: str, number: int, topic_id: str | None = None
) -> TopicIdPartition:
    """Find a partition as RemoteLogManager.find_partition does.

    Raises ProblemError: 404 if there is none, 409 if the name had several incarnations and `topic_id` is None.
    """
    try:
        topic_name(topic)
    except ValueError:
        raise no_topic(topic) from None
    try:
        return log.find_partition(topic, number, topic_id, remote, whose_cluster_is_lost=True)
    except UnknownPartitionError as error:
        raise not_found(f"there is no partition {number} of the topic {topic!r}") from error
    except AmbiguousPartitionError as error:
        raise ProblemError(409, "AmbiguousPartition", f"{error}; choose one by topic_id") from error


SegmentPath = Annotated[str, Path(description="The segment's id.", pattern=r"^[A-Za-z0-9_-]{22}$")]


async def find_segment(asked: Asked, segment_id: str) -> RemoteLogSegmentMetadata:
    """Return a segment in any state. Raises ProblemError: 404 if there never was one, 410 if it was deleted."""
    return await asked.service.threads.asking.run(lambda: _find(asked, segment_id))


async def readable_segment(asked: Asked, segment_id: str) -> RemoteLogSegmentMetadata:
    """Return a readable segment. Raises ProblemError: 404, 409 until its copy is finished, 410 if it was deleted."""
    segment = await find_segment(asked, segment_id)
    state = await asked.service.threads.asking.run(
        lambda: asked.service.log.context.segments.partition_state(asked.partition)
    )
    if state.delete_state is not None or segment.end_offset < (state.log_start_offset or 0):
        raise _gone(segment_id)
    if segment.state is SegmentState.COPY_SEGMENT_STARTED:
        raise ProblemError(409, "NotFinished", f"the copy of segment {segment_id} is not finished", retriable=True)
    if segment.state is not SegmentState.COPY_SEGMENT_FINISHED:
        raise _gone(segment_id)
    return segment


async def unless_deleted(
    asked: Asked, segment: RemoteLogSegmentMetadata, pieces: AsyncGenerator[bytes, None]
) -> AsyncGenerator[bytes, None]:
    """Yield `pieces`. If the segment was deleted meanwhile, raise the error for that instead of "not found"."""
    try:
        async with aclosing(pieces):
            async for piece in pieces:
                yield piece
    except RemoteObjectNotFoundError:
        await readable_segment(asked, segment.segment_id.id)
        raise


def _find(asked: Asked, segment_id: str) -> RemoteLogSegmentMetadata:
    segments = asked.service.log.context.segments
    found = segments.segment_by_id(RemoteLogSegmentId(asked.partition, segment_id))
    if found is not None:
        return found
    if segments.known_segment_ids(asked.partition, [segment_id]):
        raise _gone(segment_id)
    raise not_found(f"{asked.partition} has no remote segment {segment_id}")


def _gone(segment_id: str) -> ProblemError:
    return ProblemError(410, "Gone", f"the segment {segment_id} was deleted, or is about to be")
