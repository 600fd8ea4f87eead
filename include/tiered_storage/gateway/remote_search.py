"""Find what consumers may read remotely, where a broker's log begins after the offset that they ask for.

The table of remote_fetch.py says what a consumer gets for each partition. Here it is decided: by the broker's offsets,
by a snapshot of the remote log, and, at read_committed, by how its open transactions ended.

Source: KIP-98 (aborted transactions), KIP-405 (remote fetch).
"""

from __future__ import annotations

from dataclasses import dataclass

from tiered_storage.errors import TieredStorageError
from tiered_storage.gateway.broker_questions import BrokerQuestions, NamedPartition
from tiered_storage.gateway.fetch_errors import code_in_fetch, kafka_code
from tiered_storage.gateway.remote_partitions import (
    ReadKey,
    RemoteRead,
    RemoteRecords,
    read_wait_ms,
    skipped_offsets,
)
from tiered_storage.gateway.served_cluster import ServedCluster
from tiered_storage.kafka_log.log.log_config import INT64_MAX
from tiered_storage.kafka_wire.connections.error_codes import (
    KAFKA_STORAGE_ERROR,
    NONE,
    OFFSET_OUT_OF_RANGE,
    UNKNOWN_TOPIC_OR_PARTITION,
)
from tiered_storage.kafka_wire.fetch_layout import (
    NO_OFFSET,
    AbortedTransaction,
    FetchLayout,
    PartitionEntry,
)
from tiered_storage.kafka_wire.partition_offsets import PartitionOffsets
from tiered_storage.kafka_wire.server.fetch_request import AskedPartition, FetchRequest
from tiered_storage.remote_log.model import TopicIdPartition
from tiered_storage.remote_log.read.partition_snapshot import PartitionSnapshot
from tiered_storage.remote_log.read.read_values import Isolation


@dataclass(frozen=True, slots=True)
class Position:
    """A partition that a client may read remotely: the broker has just authorised it, and does not have the offset.

    Where the broker no longer answers for it, `offsets` is the error code.
    """

    entry: PartitionEntry
    asked: AskedPartition
    partition: NamedPartition | None
    offsets: PartitionOffsets | int


@dataclass(frozen=True, slots=True)
class Outcomes:
    """The outcomes of the transactions that are open at the end of the remote log: which of them were `aborted`.

    From `decided_end` on, outcomes are unknown: a read_committed reader gets `code` there, and no records.
    """

    aborted: tuple[AbortedTransaction, ...] = ()
    decided_end: int = INT64_MAX
    code: int = NONE
    broker_start: int = 0
    """Where the broker's log begins, if that is after the end of the remote log."""


@dataclass(slots=True)
class Found:
    """A partition's result before its records are taken: an error code, or a read that is ready."""

    code: int = NONE
    log_start: int = NO_OFFSET
    read: RemoteRead | None = None
    key: ReadKey | None = None
    outcomes: Outcomes = Outcomes()
    skipped: RemoteRecords | None = None
    """The answer to a consumer for offsets that neither tier has."""


class RemoteSearch:
    """Finds the remote records of one client's Fetches. For one event loop."""

    def __init__(self, client: int, cluster: ServedCluster, questions: BrokerQuestions) -> None:
        """Read as `client`, the number of its connection."""
        self._client = client
        self._partitions = cluster.partitions
        self._questions = questions
        self._failures = cluster.failures
        self._most_wait_ms = cluster.limits.most_wait_ms
        self._skips_missing = cluster.limits.skips_missing
        self.had_remote = False
        """Whether a partition had remote records, found or not, since this was last cleared."""

    async def positions(self, request: FetchRequest, layout: FetchLayout) -> list[Position]:
        """Return what the broker does not have, or no longer, in the order of its answer."""
        entries = [
            each
            for each in layout.entries
            if each.error_code == OFFSET_OUT_OF_RANGE and (each.topic, each.partition) in request.partitions
        ]
        topics = await self._questions.topics({each.topic for each in entries})
        named = {
            (each.topic, each.partition): NamedPartition(topic, each.partition)
            for each in entries
            if not isinstance(topic := topics[each.topic], int)
        }
        asked = {named[key]: request.partitions[key] for key in named}
        offsets = await self._questions.offsets_below({each: position.offset for each, position in asked.items()})
        # An answer may be seconds old: start and end may have moved meanwhile.
        doubtful = [each for each in asked if not _is_below(asked[each], offsets[each])]
        if doubtful:
            offsets |= await self._questions.offsets(doubtful, now=True)
        found = []
        for entry in entries:
            key, topic = (entry.topic, entry.partition), topics[entry.topic]
            if isinstance(topic, int):
                found.append(Position(entry, request.partitions[key], None, topic))
            else:
                found.append(Position(entry, request.partitions[key], named[key], offsets[named[key]]))
        return found

    async def find(self, position: Position, request: FetchRequest, wanted: int) -> Found:
        """Look for a position in the remote log, and wait for its first records. Never raises our own errors."""
        known, partition = position.offsets, position.partition
        if partition is None or isinstance(known, int):
            return Found(code_in_fetch(known if isinstance(known, int) else UNKNOWN_TOPIC_OR_PARTITION))
        if position.asked.offset > known.high_watermark:
            return Found(OFFSET_OUT_OF_RANGE)
        if position.asked.offset >= known.start:
            # The broker has it now, or again.
            return Found(NONE, known.start)
        try:
            return await self._look(partition, known, position.asked.offset, request, wanted)
        except TieredStorageError as error:
            code = kafka_code(error)
            self.fails(partition, code, f"offset {position.asked.offset} is not read: {error}")
            return Found(code)

    async def _look(
        self, named: NamedPartition, known: PartitionOffsets, offset: int, request: FetchRequest, wanted: int
    ) -> Found:
        partition = self._partitions.partition(named.topic.name, named.topic.topic_id, named.number)
        snapshot = await self._partitions.snapshot(partition, offset)
        if not (snapshot.coverage.ranges or snapshot.is_log_start_known) or offset < snapshot.log_start_offset:
            return Found(OFFSET_OUT_OF_RANGE)
        self.had_remote = True
        if snapshot.remote_range(offset) is None:
            following = [each.start_offset for each in snapshot.coverage.ranges_from(offset)]
            reason = (
                f"offset {offset} is in neither tier: the remote log ends at offset {snapshot.remote_end}, and the "
                f"broker's begins at {known.start}: 'tiered-storage audit' reports the gap"
            )
            end = min([known.start, *following])
            return await self._missing(named, partition, offset, end, reason)
        isolation = Isolation.READ_COMMITTED if request.is_committed else Isolation.READ_UNCOMMITTED
        key = ReadKey(self._client, partition, isolation)
        read = self._partitions.open(key, offset, snapshot.remote_end, read_wait_ms(request, self._most_wait_ms))
        try:
            is_ready = await read.is_ready(wanted)
            is_decided = not (request.is_committed and is_ready)
            outcomes = Outcomes() if is_decided else await self._outcomes(named, partition, snapshot)
        except BaseException:
            self._partitions.end(read)
            raise
        if not is_ready or isinstance(outcomes, int):
            self._partitions.end(read)
            return Found(NONE if isinstance(outcomes, Outcomes) else outcomes, snapshot.log_start_offset)
        return Found(NONE, snapshot.log_start_offset, read, key, outcomes)

    async def _outcomes(
        self, named: NamedPartition, partition: TopicIdPartition, snapshot: PartitionSnapshot
    ) -> Outcomes | int:
        """Return the outcomes of the transactions still open at the remote log's end, or the consumer's error code."""
        aborted = await self._questions.aborted_across(named, snapshot.remote_end)
        if isinstance(aborted, int):
            return code_in_fetch(aborted)
        if aborted is not None:
            return Outcomes(aborted)
        known = (await self._questions.offsets([named]))[named]
        is_lost = isinstance(known, PartitionOffsets) and known.start > snapshot.remote_end
        if isinstance(known, PartitionOffsets) and is_lost:
            latest = await self._partitions.snapshot(partition, known.start - 1)
            if latest.remote_end != snapshot.remote_end:
                # The offsets were copied and trimmed after this snapshot: the consumer's next Fetch uses the new one.
                return NONE
        decided_end = await self._partitions.decided_end(snapshot)
        if isinstance(known, PartitionOffsets) and is_lost:
            return Outcomes((), decided_end, KAFKA_STORAGE_ERROR, known.start)
        return Outcomes((), decided_end)

    async def _missing(
        self, named: NamedPartition, partition: TopicIdPartition, start: int, end: int, reason: str
    ) -> Found:
        """Let a consumer skip the offsets from `start` to `end` (exclusive), or give it an error."""
        if not self._skips_missing:
            self.fails(named, KAFKA_STORAGE_ERROR, reason)
            return Found(KAFKA_STORAGE_ERROR)
        # A copy that was slower than the brokers' retention may still succeed.
        snapshot = await self._partitions.latest(partition)
        if snapshot.remote_range(start) is not None:
            return Found(NONE, snapshot.log_start_offset)
        if snapshot.may_become_remote(start, end):
            self.fails(
                named,
                KAFKA_STORAGE_ERROR,
                f"{reason}. A copy under way may still fill the gap, so consumers do not skip it yet",
            )
            return Found(KAFKA_STORAGE_ERROR)
        skipped = skipped_offsets(start, end)
        self._failures.skipped(named.topic.name, named.number, skipped.end_offset - start, reason)
        return Found(NONE, snapshot.log_start_offset, skipped=skipped)

    def fails(self, partition: NamedPartition, code: int, reason: str) -> None:
        self._failures.failed(partition.topic.name, partition.number, code, reason)


def _is_below(asked: AskedPartition, known: PartitionOffsets | int) -> bool:
    """Return whether the broker's log begins after the requested offset; its start never moves back."""
    return isinstance(known, PartitionOffsets) and asked.offset < known.start
