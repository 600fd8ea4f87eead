"""The responses of the metadata routes. A log end offset is exclusive; every other end offset is inclusive."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

from fastapi import Query

from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata
from tiered_storage.remote_log.read.read_values import FoundOffset, Isolation
from tiered_storage_airflow.read_service.service import HealthCheck


class IsolationName(StrEnum):
    """An isolation level, by its name in URLs."""

    READ_UNCOMMITTED = "read_uncommitted"
    READ_COMMITTED = "read_committed"

    @property
    def level(self) -> Isolation:
        """The level."""
        return Isolation[self.name]


IsolationQuery = Annotated[
    IsolationName, Query(description="Whether the result includes records of open and aborted transactions.")
]


@dataclass(frozen=True, slots=True)
class TopicAnswer:
    """One incarnation of a topic, and whether the user may read its records."""

    topic: str
    topic_id: str
    cluster_id: str
    partitions: list[int]
    may_read: bool


@dataclass(frozen=True, slots=True)
class TopicsAnswer:
    """The topics that the user may see."""

    topics: list[TopicAnswer]


@dataclass(frozen=True, slots=True)
class PartitionAnswer:
    """A partition's two tiers at one moment. `log_end_offset` is exclusive; timestamps are ms.

    `lag_offsets` counts stable offsets that are not remote yet. Copies and deletions are unfinished while they
    are under way, wait for their next run, or failed. `local_problem` is why the local tier cannot be read here.
    """

    topic: str
    topic_id: str
    cluster_id: str
    partition: int
    log_start_offset: int
    log_end_offset: int
    last_stable_offset: int
    earliest_local_offset: int | None
    latest_tiered_offset: int | None
    lag_offsets: int
    remote_segments: int
    remote_bytes: int
    local_segments: int
    local_bytes: int
    unfinished_copies: int
    unfinished_deletions: int
    delete_state: str | None
    local_problem: str | None


@dataclass(frozen=True, slots=True)
class OffsetAnswer:
    """An offset by its name or its timestamp. All fields are null if there is none; an unknown epoch is null too.

    `local_problem` is why the offset is unknown: the local tier, which may have it, cannot be read here.
    """

    offset: int | None
    timestamp: int | None
    leader_epoch: int | None
    local_problem: str | None = None

    @classmethod
    def of(cls, found: FoundOffset | None) -> OffsetAnswer:
        """Return the answer for `found`."""
        if found is None:
            return cls(None, None, None)
        timestamp, epoch = (None if value < 0 else value for value in (found.timestamp, found.leader_epoch))
        return cls(found.offset, timestamp, epoch)


@dataclass(frozen=True, slots=True)
class PartitionsAnswer:
    """Some partitions of a topic; `next` is the number of the next one, None: these are the last."""

    partitions: list[PartitionAnswer]
    next: int | None


@dataclass(frozen=True, slots=True)
class SegmentAnswer:
    """A remote segment; `end_offset` is inclusive, timestamps are ms."""

    segment_id: str
    start_offset: int
    end_offset: int
    size: int
    max_timestamp: int
    event_timestamp: int
    state: str
    leader_epochs: list[EpochEntry]

    @classmethod
    def of(cls, segment: RemoteLogSegmentMetadata) -> SegmentAnswer:
        """Return the answer for `segment`."""
        return cls(
            segment.segment_id.id,
            segment.start_offset,
            segment.end_offset,
            segment.size,
            segment.max_timestamp,
            segment.event_timestamp,
            segment.state.name,
            list(segment.leader_epochs),
        )


@dataclass(frozen=True, slots=True)
class SegmentsAnswer:
    """Some segments in order of start offset; `next` is the start offset of the next one, None: these are the last."""

    segments: list[SegmentAnswer]
    next: int | None


@dataclass(frozen=True, slots=True)
class IndexAnswer:
    """Entries of an index with `count` entries in `size` bytes; `next` is the number of the next one, None: the end."""

    segment_id: str
    index: str
    size: int
    count: int
    entries: list[dict[str, Any]]
    next: int | None


@dataclass(frozen=True, slots=True)
class HealthAnswer:
    """Whether the service can work, and the checks behind that."""

    ok: bool
    checks: list[HealthCheck]
