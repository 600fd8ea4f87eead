"""Read the metadata topic: where its partitions end, and the values from one offset to another.

There is no background thread: a caller who needs the latest state asks for the ends and fetches up to them.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from tiered_storage.errors import (
    ClusterUnreachableError,
    CorruptLogError,
    MalformedAnswerError,
    MetadataCorruptError,
    MetadataMissingError,
    MetadataUnavailableError,
    RemoteMetadataError,
    SourceClusterError,
)
from tiered_storage.kafka_log.records.record_batch import iterate_batches, iterate_records
from tiered_storage.kafka_wire.cluster import ClusterClient
from tiered_storage.kafka_wire.connections.apis import OffsetSpec
from tiered_storage.kafka_wire.connections.error_codes import (
    INCONSISTENT_TOPIC_ID,
    UNKNOWN_TOPIC_ID,
    UNKNOWN_TOPIC_OR_PARTITION,
    PartitionError,
)
from tiered_storage.kafka_wire.fetch import FetchBuffer, FetchPosition
from tiered_storage.kafka_wire.metadata import TopicPartition
from tiered_storage.kafka_wire.partition_requests import ListedOffset
from tiered_storage.remote_log.metadata.sql.topic_segments import MetadataTopicId
from tiered_storage.remote_log.metadata.topic.cluster.options import TopicOptions

FETCH_BYTES: Final = 4 << 20
_BUFFER_BYTES: Final = 128 << 20
"""The largest answer: a single batch may be larger than what was asked for."""
_MOST_VALUE_BYTES: Final = 64 << 20
"""No further batch of an answer is decompressed once its values have so many bytes."""
_GONE: Final = frozenset({UNKNOWN_TOPIC_ID, UNKNOWN_TOPIC_OR_PARTITION, INCONSISTENT_TOPIC_ID})

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class LogValues:
    """The values of a metadata partition with their offsets, up to `next_offset` (exclusive); None: a null value.

    `leader_epoch` is that of the last batch, None if there is none.
    """

    partition: int
    values: tuple[tuple[int, bytes | None], ...]
    next_offset: int
    leader_epoch: int | None = None


class MetadataLog:
    """The partitions of the metadata topic, for threads and, after a fork, for processes.

    Methods raise MetadataUnavailableError, naming the brokers, if they do not answer in `remote.log.metadata.consume.
    wait.ms`; MetadataMissingError if the topic is gone; MetadataCorruptError for records that cannot be read.
    """

    def __init__(self, options: TopicOptions) -> None:
        """Connect to nothing yet."""
        self._options = options
        self._lock = threading.Lock()
        self._client: ClusterClient | None = None
        self._process = 0
        self._buffer = FetchBuffer(_BUFFER_BYTES)

    def ends(self, topic: MetadataTopicId, partitions: Collection[int]) -> dict[int, int]:
        """Return the offset after the last record of each of the metadata partitions."""
        return {number: found.offset for number, found in self.latest(topic, partitions).items()}

    def latest(self, topic: MetadataTopicId, partitions: Collection[int]) -> dict[int, ListedOffset]:
        """Return the end of each of the metadata partitions, with the newest leader epoch that its leader knows."""
        return self._listed(topic, partitions, OffsetSpec.LATEST)

    def starts(self, topic: MetadataTopicId, partitions: Collection[int]) -> dict[int, int]:
        """Return the first offset of each of the metadata partitions."""
        return {number: found.offset for number, found in self._listed(topic, partitions, OffsetSpec.EARLIEST).items()}

    def epoch_ends(self, topic: MetadataTopicId, epochs: Mapping[int, int]) -> dict[int, int]:
        """Return where the leader epoch of each of the metadata partitions ends in its leader's log (exclusive).

        That of the largest epoch up to it, if the leader does not know it. Leaves out partitions without an answer.
        """
        wanted = {TopicPartition(topic.name, number): epoch for number, epoch in epochs.items()}
        asked = self._answered(topic, lambda client, seconds: client.offsets_for_leader_epochs(wanted, seconds=seconds))
        return {number: found.end_offset for number, found in asked.items() if found.end_offset >= 0}

    def fetch(self, topic: MetadataTopicId, partition: int, offset: int) -> LogValues:
        """Return the next values from `offset` on, which must be below the end: at least one batch."""

        def decode(records: memoryview) -> tuple[LogValues, int]:
            found = self._values(topic, partition, offset, records)
            return found, found.next_offset

        return self.read(topic, partition, offset, decode)[0]

    def read(
        self,
        topic: MetadataTopicId,
        partition: int,
        offset: int,
        decode: Callable[[memoryview], tuple[Found, int]],
    ) -> tuple[Found, int]:
        """Return what `decode` finds in the next batches, from the one with `offset` on, and the offset after them.

        The bytes are those of the brokers, the last batch possibly cut off, and valid until `decode` returns.
        """
        with self._lock:
            found, next_offset = decode(self._fetched(topic, partition, offset))
        if next_offset <= offset:
            raise MetadataUnavailableError(
                f"{self._where(topic, partition)}: the brokers gave nothing at offset {offset}: try again"
            )
        return found, next_offset

    def ask(self, what: str, call: Callable[[ClusterClient, float], Found]) -> Found:
        """Return what `call` finds with the client, in so many seconds; `what` is for messages."""
        with self._lock:
            return self._asked(what, call)

    def close(self) -> None:
        """Close the connections."""
        with self._lock:
            if self._client is not None and self._process == os.getpid():
                self._client.close()
            self._client = None

    def _asked(self, what: str, call: Callable[[ClusterClient, float], Found]) -> Found:
        if self._client is None or self._process != os.getpid():
            # Another process has the connections that were open at a fork.
            self._client = ClusterClient.by_properties(self._options.client("consumer"))
            self._process = os.getpid()
        try:
            return call(self._client, self._options.consume_wait_ms / 1000)
        except (ClusterUnreachableError, MalformedAnswerError) as error:
            raise self._unavailable(what, error) from error
        except SourceClusterError as error:
            raise RemoteMetadataError(f"{what}, from {self._options.servers}: {error}") from error

    def _listed(self, topic: MetadataTopicId, partitions: Collection[int], spec: OffsetSpec) -> dict[int, ListedOffset]:
        wanted = {TopicPartition(topic.name, number): int(spec) for number in partitions}
        return self._answered(topic, lambda client, seconds: client.list_offsets(wanted, seconds=seconds))

    def _answered(
        self,
        topic: MetadataTopicId,
        call: Callable[[ClusterClient, float], Mapping[TopicPartition, Found | PartitionError]],
    ) -> dict[int, Found]:
        """Return the answer of each metadata partition that `call` asks."""
        found: dict[int, Found] = {}
        for each, answer in self.ask(str(topic), call).items():
            if isinstance(answer, PartitionError):
                raise self._failed(topic, answer)
            found[each.partition] = answer
        return found

    def _fetched(self, topic: MetadataTopicId, partition: int, offset: int) -> memoryview:
        position = FetchPosition(topic.name, partition, offset, FETCH_BYTES, topic.topic_id)
        answer = self._asked(
            str(topic), lambda client, seconds: client.fetch([position], self._buffer, seconds=seconds)
        )
        for found in answer.partitions:
            if found.error is not None:
                raise self._failed(topic, found.error)
            return found.records
        return memoryview(b"")

    def _values(self, topic: MetadataTopicId, partition: int, offset: int, records: memoryview) -> LogValues:
        """Return the values of the first whole batches in `records`: fetches may cut the last one off."""
        found: list[tuple[int, bytes | None]] = []
        size = 0
        next_offset, epoch, where = offset, None, self._where(topic, partition)
        try:
            for header, batch in iterate_batches(records, source=where):
                if not header.is_control:
                    for each in iterate_records(batch, source=where):
                        if each.offset >= offset:
                            found.append((each.offset, each.value))
                            size += len(each.value or b"")
                next_offset, epoch = header.next_offset, header.partition_leader_epoch
                if size >= _MOST_VALUE_BYTES:
                    break
        except CorruptLogError as error:
            raise MetadataCorruptError(
                f"{where}: the records after offset {next_offset - 1} cannot be read ({error}): try again; if it "
                "repeats, the broker's log is damaged: let another replica lead the partition"
            ) from error
        return LogValues(partition, tuple(found), next_offset, epoch)

    def _failed(self, topic: MetadataTopicId, error: PartitionError) -> RemoteMetadataError:
        where = self._where(topic, error.partition)
        if error.code in _GONE:
            return MetadataMissingError(
                f"{where}: the brokers at {self._options.servers} do not have it ({error.name}): correct "
                f"bootstrap.servers, or restore the topic; without it no segment is known"
            )
        return self._unavailable(where, error.as_exception())

    def _unavailable(self, what: str, error: Exception) -> MetadataUnavailableError:
        return MetadataUnavailableError(
            f"{what}: the brokers at {self._options.servers} did not answer in {self._options.consume_wait_ms} ms "
            f"({error}): start them, or correct bootstrap.servers, then try again"
        )

    @staticmethod
    def _where(topic: MetadataTopicId, partition: int) -> str:
        return f"metadata topic {topic.name}, partition {partition}"
