"""Fill what a broker answers to a Fetch with remote records, where its own log begins after the offset asked for.

The broker answers first, so its rights, quotas and epochs decide. Only a partition that it answers with
OFFSET_OUT_OF_RANGE is looked for in the remote log:

    above the high watermark                                            OFFSET_OUT_OF_RANGE stays
    below the global log start, or the topic id has no remote log       OFFSET_OUT_OF_RANGE stays
    remote                                                              whole batches, within the limits of the Fetch
    between the remote log's end and the broker's log start (a hole)    KAFKA_STORAGE_ERROR, or a batch without records
                                                                        where gateway.skip.missing.offsets says so
    the broker no longer answers for the partition                      its error: the leader has moved, for example

A consumer resets its offset after OFFSET_OUT_OF_RANGE, so that stays only where both ends of the log are known.

Source: KIP-74 (limits), KIP-98 (aborted transactions), KIP-405 (remote fetch).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tiered_storage.errors import TieredStorageError
from tiered_storage.gateway.broker_questions import BrokerQuestions, NamedPartition
from tiered_storage.gateway.connections.owed_answers import Filled
from tiered_storage.gateway.fetch_errors import code_in_fetch, kafka_code
from tiered_storage.gateway.limits.client_quotas import ClientName
from tiered_storage.gateway.limits.memory_budget import MemoryAccount
from tiered_storage.gateway.remote_partitions import (
    AT_ONCE,
    MEMORY_SECONDS,
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
from tiered_storage.kafka_wire.connections.frames import SIZE_BYTES, body_of
from tiered_storage.kafka_wire.fetch_layout import (
    NO_OFFSET,
    AbortedTransaction,
    FetchLayout,
    PartitionEntry,
    encode_entry,
    encoded_end,
    read_fetch,
    set_throttle_time,
)
from tiered_storage.kafka_wire.partition_offsets import PartitionOffsets
from tiered_storage.kafka_wire.server.fetch_request import AskedPartition, FetchRequest
from tiered_storage.kafka_wire.server.request_header import RequestHeader
from tiered_storage.kafka_wire.server.send_queue import Buffer, Replacement, spliced
from tiered_storage.remote_log.model import TopicIdPartition
from tiered_storage.remote_log.read.partition_snapshot import PartitionSnapshot
from tiered_storage.remote_log.read.read_values import Isolation

PAUSE_MS: Final = 100
"""How long an answer without records takes at least, if the client waits so long."""
QUEUED_SECONDS: Final = 5.0
"""How long a Fetch that asks for nothing but remote records waits for its place in the queue: clients wait 30 s."""


@dataclass(frozen=True, slots=True)
class _Position:
    """A partition that a client may read remotely: the broker has just authorised it, and does not have the offset.

    Where the broker no longer answers for it, `offsets` is the error code.
    """

    entry: PartitionEntry
    asked: AskedPartition
    partition: NamedPartition | None
    offsets: PartitionOffsets | int


@dataclass(frozen=True, slots=True)
class _Outcomes:
    """The outcomes of the transactions that are open at the end of the remote log: which of them were `aborted`.

    From `decided_end` on, outcomes are unknown: a read_committed reader gets `code` there, and no records.
    """

    aborted: tuple[AbortedTransaction, ...] = ()
    decided_end: int = INT64_MAX
    code: int = NONE
    broker_start: int = 0
    """Where the broker's log begins, if that is after the end of the remote log."""


@dataclass(slots=True)
class _Found:
    """What is known of a partition before its records are taken: an error code, or a read that is ready."""

    code: int = NONE
    log_start: int = NO_OFFSET
    read: RemoteRead | None = None
    key: ReadKey | None = None
    outcomes: _Outcomes = _Outcomes()
    skipped: RemoteRecords | None = None
    """What a consumer gets instead of offsets that neither tier has."""


class RemoteFetch:
    """Fills the answers to one client's Fetches. For one event loop."""

    def __init__(self, client: int, cluster: ServedCluster, questions: BrokerQuestions, memory: MemoryAccount) -> None:
        """Read as `client`, the number of its connection; `memory` is the connection's account."""
        self._client = client
        self._partitions = cluster.partitions
        self._questions = questions
        self._metrics = cluster.metrics
        self._failures = cluster.failures
        self._memory = memory
        self._quotas = cluster.quotas
        self._most_wait_ms = cluster.limits.most_wait_ms
        self._skips_missing = cluster.limits.skips_missing
        self._had_remote = False
        self._place: asyncio.Future[None] | None = None
        """In the queue of remote work: a Fetch that does not get there leaves its place to the next one."""
        self._fetches = 0

    def needs_share(self) -> bool:
        """Return whether the last Fetch had partitions with remote records: the next answer needs room for them.

        A broker that fills every answer with local records would leave none.
        """
        needs, self._had_remote = self._had_remote, False
        return needs

    def close(self) -> None:
        """End the client's reads."""
        if self._place is not None:
            self._place.cancel()
        self._partitions.forget(self._client)

    @staticmethod
    def layout(frame: memoryview, header: RequestHeader) -> FetchLayout:
        """Read the broker's answer. Raises MalformedAnswerError."""
        body = body_of(frame[SIZE_BYTES:], header.api, header.version, header.correlation_id)
        return read_fetch(body, header.version)

    @staticmethod
    def is_concerned(request: FetchRequest, layout: FetchLayout) -> bool:
        """Return whether any partition of the answer may be remote."""
        return request.is_consumer and any(each.error_code == OFFSET_OUT_OF_RANGE for each in layout.entries)

    async def fill(
        self,
        frame: memoryview,
        request: FetchRequest,
        layout: FetchLayout,
        more: Sequence[Replacement],
        client: ClientName,
    ) -> Filled:
        """Return the broker's answer with remote records for `client`; `more` replaces what follows its partitions."""
        turns, wait_s = self._partitions.turns, read_wait_ms(request, self._most_wait_ms) / 1000
        is_all_remote = all(each.error_code == OFFSET_OUT_OF_RANGE for each in layout.entries)
        may_begin = await self._is_first_in_queue(max(wait_s, QUEUED_SECONDS) if is_all_remote else wait_s)
        filled = self._filled(frame, request, layout, more, client, wait_s, may_begin=may_begin)
        return await (turns.counted(filled) if may_begin else turns.timed(filled))

    async def _is_first_in_queue(self, seconds: float) -> bool:
        """Wait for the client's place in the queue of remote work; the client keeps it if that takes longer."""
        place = self._place = self._place or self._partitions.turns.queue()
        if not place.done():
            await asyncio.wait([place], timeout=seconds)
        if place.done():
            self._place = None
        return place.done()

    async def _filled(
        self,
        frame: memoryview,
        request: FetchRequest,
        layout: FetchLayout,
        more: Sequence[Replacement],
        client: ClientName,
        wait_s: float,
        *,
        may_begin: bool,
    ) -> Filled:
        await self._partitions.turns.next()
        positions = await self._positions(request, layout)
        left, is_first = request.max_bytes - layout.records_size, layout.records_size == 0
        allowed = self._quotas.room(client)
        left = min(left, allowed)
        room = self._partitions.room(left, [each.asked for each in positions]) if allowed else 0
        may_read = may_begin and allowed > 0 and (not room or await self._memory.wait(room, MEMORY_SECONDS))
        begun = asyncio.get_running_loop().time()
        patient, self._fetches = self._fetches, self._fetches + 1
        held = served = 0
        replacements: list[Replacement] = []
        may_wait = is_first
        for at in range(0, len(positions), AT_ONCE):
            some = positions[at : at + AT_ONCE]
            is_late = asyncio.get_running_loop().time() - begun >= wait_s
            if not may_read or is_late or (left <= 0 and not is_first):
                found = [_Found() for _ in some]
                self._had_remote = True
            else:
                share = max(left, 0) // len(some)
                # One position gets its turn however many others wait, each time another one: otherwise a Fetch might
                # never get any records.
                end = begun + wait_s
                ends = [
                    None if is_first and not at and each == patient % len(some) else end for each in range(len(some))
                ]
                found = await asyncio.gather(
                    *(
                        self._partitions.turns.timed(
                            self._find_within(end, 2 * wait_s, each, request, min(share, each.asked.max_bytes), client)
                        )
                        for end, each in zip(ends, some, strict=True)
                    )
                )
                await self._partitions.turns.next()
            for position, each in zip(some, found, strict=True):
                records = self._take(position, each, min(left, position.asked.max_bytes), client, whole=is_first)
                if records is not None:
                    left -= records.size
                    held += records.memory
                    served += records.size
                    is_first = may_wait = False
                may_wait = may_wait and each.code == NONE
                replacements.append(_entry(request, position, each, records))
        if may_wait and allowed:
            # A consumer asks again at once: without a pause it would do nothing else until there are records.
            pause = min(request.max_wait_ms, PAUSE_MS) / 1000 - (asyncio.get_running_loop().time() - begun)
            await asyncio.sleep(max(pause, 0))
        self._memory.settle(room if may_read else 0, held)
        mute_ms = self._quotas.take(client, served)
        if mute_ms:
            set_throttle_time(frame, request.version, max(layout.throttle_ms, mute_ms))
            self._metrics.throttled(mute_ms)
        return Filled(spliced(frame, [*replacements, *more]), held, mute_ms)

    async def _positions(self, request: FetchRequest, layout: FetchLayout) -> list[_Position]:
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
                found.append(_Position(entry, request.partitions[key], None, topic))
            else:
                found.append(_Position(entry, request.partitions[key], named[key], offsets[named[key]]))
        return found

    async def _find_within(
        self,
        end: float | None,
        seconds: float,
        position: _Position,
        request: FetchRequest,
        wanted: int,
        client: ClientName,
    ) -> _Found:
        """Find a position's records, about `wanted` bytes, within `seconds`; begin before `end`, None: at any time.
        Return None if the time is up: store or metadata hang, or too many other reads wait. Local records wait too.
        """
        begun = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout_at(end):
                await self._partitions.turns.next()
            async with asyncio.timeout(seconds):
                return await self._find(position, request, wanted)
        except TimeoutError:
            self._had_remote = True
            return _Found()
        finally:
            if position.partition is not None:
                taken = asyncio.get_running_loop().time() - begun
                self._metrics.waited(position.partition.topic.name, client, taken)

    async def _find(self, position: _Position, request: FetchRequest, wanted: int) -> _Found:
        """Look for a position in the remote log, and wait for its first records. Never raises our own errors."""
        known, partition = position.offsets, position.partition
        if partition is None or isinstance(known, int):
            return _Found(code_in_fetch(known if isinstance(known, int) else UNKNOWN_TOPIC_OR_PARTITION))
        if position.asked.offset > known.high_watermark:
            return _Found(OFFSET_OUT_OF_RANGE)
        if position.asked.offset >= known.start:
            # The broker has it now, or again.
            return _Found(NONE, known.start)
        try:
            return await self._look(partition, known, position.asked.offset, request, wanted)
        except TieredStorageError as error:
            code = kafka_code(error)
            self._fails(partition, code, f"offset {position.asked.offset} is not read: {error}")
            return _Found(code)

    async def _look(
        self, named: NamedPartition, known: PartitionOffsets, offset: int, request: FetchRequest, wanted: int
    ) -> _Found:
        partition = self._partitions.partition(named.topic.name, named.topic.topic_id, named.number)
        snapshot = await self._partitions.snapshot(partition, offset)
        if not (snapshot.coverage.ranges or snapshot.is_log_start_known) or offset < snapshot.log_start_offset:
            return _Found(OFFSET_OUT_OF_RANGE)
        self._had_remote = True
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
            outcomes = _Outcomes() if is_decided else await self._outcomes(named, partition, snapshot)
        except BaseException:
            self._partitions.end(read)
            raise
        if not is_ready or isinstance(outcomes, int):
            self._partitions.end(read)
            return _Found(NONE if isinstance(outcomes, _Outcomes) else outcomes, snapshot.log_start_offset)
        return _Found(NONE, snapshot.log_start_offset, read, key, outcomes)

    async def _outcomes(
        self, named: NamedPartition, partition: TopicIdPartition, snapshot: PartitionSnapshot
    ) -> _Outcomes | int:
        """Return how the transactions ended that are open at the end of the remote log, or what a consumer gets."""
        aborted = await self._questions.aborted_across(named, snapshot.remote_end)
        if isinstance(aborted, int):
            return code_in_fetch(aborted)
        if aborted is not None:
            return _Outcomes(aborted)
        known = (await self._questions.offsets([named]))[named]
        is_lost = isinstance(known, PartitionOffsets) and known.start > snapshot.remote_end
        if isinstance(known, PartitionOffsets) and is_lost:
            latest = await self._partitions.snapshot(partition, known.start - 1)
            if latest.remote_end != snapshot.remote_end:
                # Copied and trimmed since the look: a consumer that asks again is answered by the new one.
                return NONE
        decided_end = await self._partitions.decided_end(snapshot)
        if isinstance(known, PartitionOffsets) and is_lost:
            return _Outcomes((), decided_end, KAFKA_STORAGE_ERROR, known.start)
        return _Outcomes((), decided_end)

    def _take(
        self, position: _Position, found: _Found, most_bytes: int, client: ClientName, *, whole: bool
    ) -> RemoteRecords | None:
        read, key, named = found.read, found.key, position.partition
        if read is None or key is None or named is None:
            return found.skipped
        if read.reaches(found.outcomes.decided_end) and found.outcomes.code != NONE:
            self._partitions.end(read)
            reason = (
                f"offset {read.offset} cannot be read at read_committed: the outcome of a transaction that is open "
                "there lies in the gap between the end of the remote log and the broker's log start, which "
                "'tiered-storage audit' reports"
            )
            # To continue after the gap would leave out what other producers committed before it.
            found.code = found.outcomes.code
            self._fails(named, found.code, reason)
            return None
        records = read.take(most_bytes, end_offset=found.outcomes.decided_end, whole=whole)
        self._partitions.keep(key, read)
        if records is not None:
            self._metrics.served(named.topic.name, client, records.size)
        return records

    async def _missing(
        self, named: NamedPartition, partition: TopicIdPartition, start: int, end: int, reason: str
    ) -> _Found:
        """Let a consumer skip the offsets from `start` to `end` (exclusive), or give it an error."""
        if not self._skips_missing:
            self._fails(named, KAFKA_STORAGE_ERROR, reason)
            return _Found(KAFKA_STORAGE_ERROR)
        # A copy that was slower than the brokers' retention may still succeed.
        snapshot = await self._partitions.latest(partition)
        if snapshot.remote_range(start) is not None:
            return _Found(NONE, snapshot.log_start_offset)
        if snapshot.may_become_remote(start, end):
            self._fails(
                named,
                KAFKA_STORAGE_ERROR,
                f"{reason}. A copy under way may still fill the gap, so consumers do not skip it yet",
            )
            return _Found(KAFKA_STORAGE_ERROR)
        skipped = skipped_offsets(start, end)
        self._failures.skipped(named.topic.name, named.number, skipped.end_offset - start, reason)
        return _Found(NONE, snapshot.log_start_offset, skipped=skipped)

    def _fails(self, partition: NamedPartition, code: int, reason: str) -> None:
        self._failures.failed(partition.topic.name, partition.number, code, reason)


def _is_below(asked: AskedPartition, known: PartitionOffsets | int) -> bool:
    """Return whether the broker's log begins after the requested offset; its start never moves back."""
    return isinstance(known, PartitionOffsets) and asked.offset < known.start


def _entry(request: FetchRequest, position: _Position, found: _Found, records: RemoteRecords | None) -> Replacement:
    """Return what comes instead of the broker's answer for a partition."""
    entry, known = position.entry, position.offsets
    buffers: tuple[Buffer, ...] = () if records is None else records.buffers
    aborted = _aborted(found, records) if request.is_committed else None
    offsets = (NO_OFFSET, NO_OFFSET, NO_OFFSET)
    if found.code == NONE and isinstance(known, PartitionOffsets):
        offsets = (known.high_watermark, known.stable, found.log_start)
    head = encode_entry(request.version, entry.partition, found.code, offsets, aborted, sum(map(len, buffers)))
    end = encoded_end(request.version)
    return Replacement(SIZE_BYTES + entry.start, SIZE_BYTES + entry.end, [head, *buffers, end])


def _aborted(found: _Found, records: RemoteRecords | None) -> list[AbortedTransaction]:
    if records is None:
        return []
    across = [each for each in found.outcomes.aborted if each.first_offset < records.end_offset]
    return sorted({*records.aborted, *across}, key=lambda each: (each.first_offset, each.producer_id))
