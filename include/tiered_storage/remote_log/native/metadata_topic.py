"""Read the topic __remote_log_metadata: from running brokers, or from the log directory of a stopped one.

Every read goes on where the one before it ended, so that a long-running reader sees what brokers add. Nothing is
written, and no group is joined.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from tiered_storage.errors import CorruptRecordError, InvalidLogDirectoryError, MetadataMissingError, SourceClusterError
from tiered_storage.kafka_log.records.record_batch import iterate_batches, iterate_records
from tiered_storage.kafka_wire.cluster import ClusterClient
from tiered_storage.kafka_wire.connections.apis import OffsetSpec
from tiered_storage.kafka_wire.connections.error_codes import NONE, PartitionError
from tiered_storage.kafka_wire.fetch import FetchBuffer, FetchLimits, FetchPosition
from tiered_storage.kafka_wire.metadata import TopicPartition
from tiered_storage.remote_log.model import TopicIdPartition
from tiered_storage.remote_log.source.opening import open_segment
from tiered_storage.remote_log.source.partition_log import LocalSegment, UnreadablePartition, name_of
from tiered_storage.remote_log.source.segment_source import SegmentSource

TOPIC = "__remote_log_metadata"
_ANSWER_BYTES = 8 << 20
_LARGEST_ANSWER = 64 << 20


@dataclass(frozen=True, slots=True)
class MetadataRecordValue:
    """The value of one record of the topic, and its place.

    `broken` is why nothing could be read from this offset on, and up to where; then there is no value. With neither of
    the two, everything up to this offset was read: a tombstone, or the end of a batch.
    """

    partition: int
    offset: int
    value: bytes | None
    broken: str | None = None


class MetadataTopic(Protocol):
    """Reads the topic's records. For one thread at a time."""

    @property
    def where(self) -> str:
        """The topic's place, for messages."""
        ...

    @property
    def lost(self) -> Mapping[int, int]:
        """The first offset of each partition whose earlier records were deleted before they were read."""
        ...

    @property
    def missing(self) -> Sequence[int]:
        """The partitions that were not read, as far as others with higher numbers show them."""
        ...

    def read(self, positions: Mapping[int, int]) -> Iterator[MetadataRecordValue]:
        """Yield the records that the topic has now, of each partition in log order.

        `positions` has the offset of each partition where to begin; one that it lacks begins with its first record.
        Raises SourceClusterError, InvalidLogDirectoryError for a damaged partition, MetadataMissingError if there is no
        such topic, and OSError.
        """
        ...

    def close(self) -> None:
        """Close connections; repeated calls are harmless."""
        ...


class BrokersMetadataTopic:
    """See MetadataTopic; `client` asks the brokers, and `close` closes it."""

    def __init__(self, client: ClusterClient, topic: str = TOPIC) -> None:
        """Ask nothing yet."""
        self._client, self._topic = client, topic
        self._buffer = FetchBuffer(_LARGEST_ANSWER)
        self._lost: dict[int, int] = {}

    @property
    def where(self) -> str:
        """See MetadataTopic."""
        return f"{self._topic} at {','.join(map(str, self._client.settings.bootstrap))}"

    @property
    def lost(self) -> Mapping[int, int]:
        """See MetadataTopic."""
        return self._lost

    @property
    def missing(self) -> Sequence[int]:
        """See MetadataTopic: `read` asks for every partition, and fails without an answer."""
        return ()

    def read(self, positions: Mapping[int, int]) -> Iterator[MetadataRecordValue]:
        """See MetadataTopic."""
        starts, ends = self._ranges(positions)
        waiting = [number for number in starts if starts[number] < ends[number]]
        while waiting:
            wanted = [FetchPosition(self._topic, number, starts[number], _ANSWER_BYTES) for number in waiting]
            answer = self._client.fetch(wanted, self._buffer, FetchLimits(max_bytes=_ANSWER_BYTES))
            before = dict(starts)
            for found in answer.partitions:
                if found.error is not None:
                    raise found.error.as_exception()
                at = starts[found.partition]
                try:
                    for record in _records(found.records, self._topic, found.partition, at):
                        at = max(at, record.offset + 1)
                        yield record
                except CorruptRecordError as error:
                    raise SourceClusterError(
                        f"{self.where}: partition {found.partition} cannot be read from offset {at} on: "
                        f"{error.reason}: look at its leader's log with kafka-dump-log.sh"
                    ) from error
                starts[found.partition] = at
            # The first partitions may use up the whole answer (KIP-74): the others come empty, and are asked for again.
            if answer.partitions and starts == before:
                # A batch that can never be read must not be asked for again and again.
                stuck = ", ".join(
                    f"partition {each.partition} at {starts[each.partition]}" for each in answer.partitions
                )
                raise SourceClusterError(f"{self.where}: no whole batch was received of {stuck}")
            waiting = [number for number in waiting if starts[number] < ends[number]]
            waiting = [*waiting[1:], *waiting[:1]]

    def close(self) -> None:
        """See MetadataTopic."""
        self._client.close()

    def _ranges(self, positions: Mapping[int, int]) -> tuple[dict[int, int], dict[int, int]]:
        """Return where each partition's read begins, and where it ends (exclusive)."""
        found = self._client.metadata([self._topic]).topics.get(self._topic)
        if found is None or found.error_code != NONE or not found.partitions:
            raise MetadataMissingError(
                f"{self.where}: there is no such topic: a cluster that tiers by itself has one; correct "
                "rlmm.config.url, or let the login describe it"
            )
        every = found.topic_partitions
        firsts, ends = (
            {each.partition: self._offset(each, answer) for each, answer in self._client.list_offsets(asked).items()}
            for asked in (
                dict.fromkeys(every, int(OffsetSpec.EARLIEST)),
                dict.fromkeys(every, int(OffsetSpec.LATEST)),
            )
        )
        self._lost |= {number: first for number, first in firsts.items() if first > positions.get(number, 0)}
        return {number: max(first, positions.get(number, first)) for number, first in firsts.items()}, ends

    @staticmethod
    def _offset(_: TopicPartition, answer: object) -> int:
        if isinstance(answer, PartitionError):
            raise answer.as_exception()
        return int(getattr(answer, "offset"))  # noqa: B009 -- of a ListedOffset


class DirectoryMetadataTopic:
    """See MetadataTopic; `source` is the log directory of a stopped broker, or a copy of it."""

    def __init__(self, source: SegmentSource, place: str, topic: str = TOPIC) -> None:
        """Look at nothing yet; messages name `place`."""
        self._source, self._place, self._topic = source, place, topic
        self._is_read = False
        self._lost: dict[int, int] = {}
        self._missing: tuple[int, ...] = ()

    @property
    def where(self) -> str:
        """See MetadataTopic."""
        return f"{self._topic} in {self._place}"

    @property
    def lost(self) -> Mapping[int, int]:
        """See MetadataTopic."""
        return self._lost

    @property
    def missing(self) -> Sequence[int]:
        """See MetadataTopic."""
        return self._missing

    def read(self, positions: Mapping[int, int]) -> Iterator[MetadataRecordValue]:
        """See MetadataTopic. The log of a stopped broker does not change: once it is read, nothing is new."""
        if self._is_read:
            return
        found = self._partitions()
        if not found:
            raise MetadataMissingError(
                f"{self.where}: there is no such topic: name the log directory of a broker that had it in "
                "rlmm.config.url"
            )
        numbers = {each.partition for each in found}
        self._missing = tuple(number for number in range(max(numbers)) if number not in numbers)
        for partition in sorted(found):
            log = self._source.partition(partition)
            if log is None:
                raise InvalidLogDirectoryError(f"{self.where}: partition {partition.partition} was removed meanwhile")
            at = positions.get(partition.partition, 0)
            if log.log_start_offset > at:
                self._lost[partition.partition] = log.log_start_offset
            for segment in log.segments:
                if segment.end_offset is None or segment.end_offset >= at:
                    yield from self._of_segment(segment, partition.partition, at)
        self._is_read = True

    def _partitions(self) -> Sequence[TopicIdPartition]:
        """Return the topic's partitions here. Raises InvalidLogDirectoryError for a damaged one."""
        found: list[TopicIdPartition] = []
        for each in self._source.names():
            if name_of(each)[0] != self._topic:
                continue
            if isinstance(each, UnreadablePartition):
                raise InvalidLogDirectoryError(
                    f"{self.where}: {each.partition} cannot be read: {each.reason}: repair it, or name the log "
                    "directory of another broker that has it"
                )
            found.append(each.topic_id_partition)
        return found

    def close(self) -> None:
        """See MetadataTopic."""
        self._source.close()

    def _of_segment(self, segment: LocalSegment, number: int, start_offset: int) -> Iterator[MetadataRecordValue]:
        """Yield the records of a segment from `start_offset` on, up to the first batch whose header is broken."""
        reached = max(start_offset, segment.base_offset)
        try:
            for window, _ in open_segment(segment.location).windows(verify_crc=False):
                for record in _records(window, self._topic, number, start_offset):
                    reached = max(reached, record.offset + 1)
                    yield record
        except CorruptRecordError as error:
            end = "the end of its log" if segment.end_offset is None else f"offset {segment.end_offset}"
            yield MetadataRecordValue(number, reached, None, f"nothing was read from here to {end}: {error}")


def _records(window: memoryview, topic: str, number: int, start_offset: int) -> Iterator[MetadataRecordValue]:
    """Yield the records of the whole batches in `window` from `start_offset` on.

    After those of each batch comes one without a value, at its last offset: a batch of control records has no others.
    Raises CorruptRecordError for a broken header; a batch whose records are broken yields one with the reason.
    """
    source = f"{topic}-{number}"
    for header, batch in iterate_batches(window, source=source):
        try:
            if not header.is_control and header.last_offset >= start_offset:
                for record in iterate_records(batch, source=source):
                    if record.offset >= start_offset:
                        yield MetadataRecordValue(number, record.offset, record.value)
        except CorruptRecordError as error:
            yield MetadataRecordValue(number, max(header.base_offset, start_offset), None, str(error))
        yield MetadataRecordValue(number, header.last_offset, None)
