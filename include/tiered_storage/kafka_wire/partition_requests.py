"""Requests that a leader answers partition by partition: ListOffsets, OffsetForLeaderEpoch and DeleteRecords.

Also DescribeLogDirs, which leaves out partitions that it has no answer for, and OffsetFetch, asked of the leader of a
partition of the offsets topic: it coordinates the groups whose ids hash to that partition.

Source: KIP-79, KIP-98, KIP-107, KIP-113, KIP-320; GroupMetadataManager of released Kafka.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from itertools import count, groupby
from typing import Any, NamedTuple, Protocol, TypeVar

from tiered_storage.errors import ClusterRefusedError, ConfigurationError, MalformedAnswerError
from tiered_storage.kafka_wire.connections.apis import (
    DELETE_RECORDS,
    DESCRIBE_LOG_DIRS,
    LIST_OFFSETS,
    OFFSET_FETCH,
    OFFSET_FOR_LEADER_EPOCH,
    Api,
    OffsetSpec,
)
from tiered_storage.kafka_wire.connections.frames import elements, entity, request, request_module
from tiered_storage.kafka_wire.fetch import IsolationLevel
from tiered_storage.kafka_wire.fetch_layout import EpochEnd
from tiered_storage.kafka_wire.metadata import TopicPartition

CONSUMER = -1
"""The replica id of a client that is not a broker."""
_NONE = -1
"""Marks an unknown offset, timestamp or leader epoch."""

FoundT_co = TypeVar("FoundT_co", covariant=True)


_FIRST_VERSIONS = {
    OffsetSpec.MAX_TIMESTAMP: (7, "3.0"),
    OffsetSpec.EARLIEST_LOCAL: (8, "3.6"),
    OffsetSpec.LATEST_TIERED: (9, "3.9"),
    OffsetSpec.EARLIEST_PENDING_UPLOAD: (11, "4.3"),
}
"""The first version of ListOffsets, and the first release of Kafka, that has it."""


class ListedOffset(NamedTuple):
    """An offset, the timestamp (ms) of its record and its leader epoch; -1 for each that is unknown."""

    offset: int
    timestamp: int
    leader_epoch: int


class PartitionRequest(Protocol[FoundT_co]):
    """A request about several partitions of one leader."""

    @property
    def api(self) -> Api:
        """The request's API."""
        ...

    @property
    def partitions(self) -> Iterable[TopicPartition]:
        """All partitions that it is about."""
        ...

    def build(self, version: int, epochs: Mapping[TopicPartition, int], seconds: float) -> Any:
        """Return kio's request for the partitions in `epochs`, which has their current leader epochs.

        A broker may take `seconds`. Raises ClusterRefusedError if the version lacks what is asked.
        """
        ...

    def read(self, answer: Any) -> Iterator[tuple[TopicPartition, int, FoundT_co]]:
        """Yield each partition of kio's `answer`, its error code, and what was found if that is 0."""
        ...


@dataclass(frozen=True, slots=True)
class ListOffsets:
    """Look up an offset of each partition: by an OffsetSpec, or the first with a timestamp (ms) at or after the given
    one.
    """

    wanted: Mapping[TopicPartition, int]
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED
    api = LIST_OFFSETS

    @property
    def partitions(self) -> Iterable[TopicPartition]:
        """All partitions that it is about."""
        return self.wanted

    def build(self, version: int, epochs: Mapping[TopicPartition, int], seconds: float) -> Any:
        """Return kio's request; see PartitionRequest."""
        for spec in {self.wanted[each] for each in epochs} & set(_FIRST_VERSIONS):
            first, release = _FIRST_VERSIONS[OffsetSpec(spec)]
            if version < first:
                raise ClusterRefusedError(
                    f"the broker's ListOffsets version {version} has no {OffsetSpec(spec).name} ({spec}), which came "
                    f"with Kafka {release}"
                )
        module = request_module(LIST_OFFSETS, version)
        return request(
            LIST_OFFSETS,
            version,
            replica_id=CONSUMER,
            isolation_level=int(self.isolation),
            timeout=_milliseconds(seconds),
            topics=tuple(
                entity(
                    module.ListOffsetsTopic,
                    name=topic,
                    partitions=tuple(
                        entity(
                            module.ListOffsetsPartition,
                            partition_index=each.partition,
                            current_leader_epoch=epochs[each],
                            timestamp=int(self.wanted[each]),
                        )
                        for each in some
                    ),
                )
                for topic, some in _by_topic(epochs)
            ),
        )

    def read(self, answer: Any) -> Iterator[tuple[TopicPartition, int, ListedOffset]]:
        """Yield each partition's answer; see PartitionRequest. Raises MalformedAnswerError for an invalid offset."""
        for topic in elements(answer.topics):
            for each in elements(topic.partitions):
                partition = TopicPartition(topic.name, each.partition_index)
                found = ListedOffset(each.offset, each.timestamp, each.leader_epoch)
                if min(found) < _NONE:
                    # Written down, such a number would make the metadata unreadable.
                    raise MalformedAnswerError(f"{partition}: it has {found}, with a number below {_NONE}")
                yield partition, int(each.error_code), found


@dataclass(frozen=True, slots=True)
class OffsetsForLeaderEpochs:
    """Look up where a leader epoch of each partition ends: the largest epoch up to it, and its end offset."""

    wanted: Mapping[TopicPartition, int]
    api = OFFSET_FOR_LEADER_EPOCH

    @property
    def partitions(self) -> Iterable[TopicPartition]:
        """All partitions that it is about."""
        return self.wanted

    def build(self, version: int, epochs: Mapping[TopicPartition, int], seconds: float) -> Any:  # noqa: ARG002
        """Return kio's request; see PartitionRequest."""
        module = request_module(OFFSET_FOR_LEADER_EPOCH, version)
        return request(
            OFFSET_FOR_LEADER_EPOCH,
            version,
            replica_id=CONSUMER,
            topics=tuple(
                entity(
                    module.OffsetForLeaderTopic,
                    topic=topic,
                    partitions=tuple(
                        entity(
                            module.OffsetForLeaderPartition,
                            partition=each.partition,
                            current_leader_epoch=epochs[each],
                            leader_epoch=self.wanted[each],
                        )
                        for each in some
                    ),
                )
                for topic, some in _by_topic(epochs)
            ),
        )

    def read(self, answer: Any) -> Iterator[tuple[TopicPartition, int, EpochEnd]]:
        """Yield each partition's answer; see PartitionRequest.

        Raises MalformedAnswerError for a later epoch than the one asked for.
        """
        for topic in elements(answer.topics):
            for each in elements(topic.partitions):
                partition = TopicPartition(topic.topic, each.partition)
                found = EpochEnd(each.leader_epoch, each.end_offset)
                asked = self.wanted.get(partition, found.epoch)
                if found.epoch > asked:
                    # A caller that asks for earlier and earlier epochs would never end.
                    raise MalformedAnswerError(f"{partition}: asked for epochs up to {asked}, it has {found.epoch}")
                yield partition, int(each.error_code), found


@dataclass(frozen=True, slots=True)
class DeleteRecords:
    """Delete the records of each partition before an offset; the answer is the log start afterwards.

    Raises ConfigurationError for a negative offset, by which Kafka means all records.
    """

    before: Mapping[TopicPartition, int]
    api = DELETE_RECORDS

    def __post_init__(self) -> None:
        """Refuse negative offsets."""
        for each, offset in self.before.items():
            if offset < 0:
                raise ConfigurationError(
                    f"{each}: records cannot be deleted before offset {offset}: give one from 0 on"
                )

    @property
    def partitions(self) -> Iterable[TopicPartition]:
        """All partitions that it is about."""
        return self.before

    def build(self, version: int, epochs: Mapping[TopicPartition, int], seconds: float) -> Any:
        """Return kio's request; see PartitionRequest."""
        module = request_module(DELETE_RECORDS, version)
        return request(
            DELETE_RECORDS,
            version,
            timeout=_milliseconds(seconds),
            topics=tuple(
                entity(
                    module.DeleteRecordsTopic,
                    name=topic,
                    partitions=tuple(
                        entity(module.DeleteRecordsPartition, partition_index=each.partition, offset=self.before[each])
                        for each in some
                    ),
                )
                for topic, some in _by_topic(epochs)
            ),
        )

    def read(self, answer: Any) -> Iterator[tuple[TopicPartition, int, int]]:
        """Yield each partition's answer; see PartitionRequest."""
        for topic in elements(answer.topics):
            for each in elements(topic.partitions):
                yield TopicPartition(topic.name, each.partition_index), int(each.error_code), int(each.low_watermark)


@dataclass(frozen=True, slots=True)
class CommittedOffsetsOfGroup:
    """Ask the leader of a partition of the offsets topic for what a group of that partition has committed.

    The group, `group_id`, need not exist. An answer shows that the leader has loaded all groups of the partition.
    """

    partition: TopicPartition
    group_id: str
    api = OFFSET_FETCH

    @property
    def partitions(self) -> Iterable[TopicPartition]:
        """The one partition that it is about."""
        return (self.partition,)

    def build(self, version: int, epochs: Mapping[TopicPartition, int], seconds: float) -> Any:  # noqa: ARG002
        """Return kio's request; see PartitionRequest."""
        # Without topics a broker could answer by itself.
        return request(OFFSET_FETCH, version, group_id=self.group_id, topics=None)

    def read(self, answer: Any) -> Iterator[tuple[TopicPartition, int, dict[TopicPartition, int]]]:
        """Yield the partition's answer: the committed offsets by their partitions; see PartitionRequest.

        Raises MalformedAnswerError if one of them is not an offset, occurs twice, or has an error, which no broker
        answers to this question.
        """
        found: dict[TopicPartition, int] = {}
        for topic in elements(answer.topics):
            for each in elements(topic.partitions):
                read = TopicPartition(str(topic.name), int(each.partition_index))
                if read in found or int(each.error_code) or each.committed_offset < _NONE:
                    raise MalformedAnswerError(
                        f"of {read} it has the offset {each.committed_offset} and error {int(each.error_code)}"
                        f"{', twice' if read in found else ''}"
                    )
                if each.committed_offset != _NONE:
                    found[read] = int(each.committed_offset)
        yield self.partition, int(answer.error_code), found


def coordinating_partition(group_id: str, partitions: int) -> int:
    """Return which of the offsets topic's `partitions` (their number) has the offsets of a group: by Java's hash of its
    id."""
    found = 0
    for (unit,) in struct.iter_unpack(">H", group_id.encode("utf-16-be")):
        found = (31 * found + unit) & 0xFFFFFFFF
    signed = found - (1 << 32) if found >> 31 else found
    return abs(signed) % partitions if signed != -(1 << 31) else 0


@cache
def groups_of_partitions(partitions: int) -> Mapping[int, str]:
    """Return a group id for each of the offsets topic's `partitions` (their number); no client uses these groups."""
    found: dict[int, str] = {}
    for number in count():
        group_id = f"remote-log-looks-{number}"
        found.setdefault(coordinating_partition(group_id, partitions), group_id)
        if len(found) == partitions:
            break
    return dict(sorted(found.items()))


def log_dirs_request(version: int, partitions: Iterable[TopicPartition]) -> Any:
    """Return kio's request for the sizes of `partitions`.

    A broker reports sizes only to a login with Describe on the cluster. To others it lists nothing, from version 3 on
    with an error code.
    """
    kind = request_module(DESCRIBE_LOG_DIRS, version).DescribableLogDirTopic
    topics = tuple(
        entity(kind, topic=topic, partitions=tuple(each.partition for each in some))
        for topic, some in _by_topic(partitions)
    )
    return request(DESCRIBE_LOG_DIRS, version, topics=topics)


def read_log_sizes(answer: Any) -> dict[TopicPartition, int]:
    """Return the bytes of each log in kio's `answer`; a replica on its way into another directory does not count."""
    return {
        TopicPartition(topic.name, each.partition_index): int(each.partition_size)
        for directory in elements(answer.results)
        for topic in elements(directory.topics)
        for each in elements(topic.partitions)
        if not each.is_future_key
    }


def _by_topic(partitions: Iterable[TopicPartition]) -> Iterator[tuple[str, list[TopicPartition]]]:
    for topic, some in groupby(sorted(partitions), lambda each: each.topic):
        yield topic, list(some)


def _milliseconds(seconds: float) -> timedelta:
    return timedelta(milliseconds=round(seconds * 1000))
