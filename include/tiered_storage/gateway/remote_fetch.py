"""Fill what a broker answers to a Fetch with remote records, where its own log begins after the offset asked for.

The broker answers first, so its rights, quotas and epochs decide. Only a partition that it answers with
OFFSET_OUT_OF_RANGE is looked for in the remote log:

    above the high watermark                                            OFFSET_OUT_OF_RANGE stays
    below the global log start, or the topic id has no remote log       OFFSET_OUT_OF_RANGE stays
    remote                                                              whole batches, within the limits of the Fetch
    between the remote log's end and the broker's log start (a gap)     KAFKA_STORAGE_ERROR, or a batch without records
                                                                        where gateway.skip.missing.offsets says so
    the broker no longer answers for the partition                      its error: the leader has moved, for example

A consumer resets its offset after OFFSET_OUT_OF_RANGE, so that stays only where both ends of the log are known.

Source: KIP-74 (limits), KIP-98 (aborted transactions), KIP-405 (remote fetch).
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from functools import partial
from typing import Any, Final

from tiered_storage.gateway.broker_questions import BrokerQuestions
from tiered_storage.gateway.connections.owed_answers import Filled
from tiered_storage.gateway.limits.client_quotas import ClientName
from tiered_storage.gateway.limits.memory_budget import MemoryAccount
from tiered_storage.gateway.remote_partitions import (
    AT_ONCE,
    MEMORY_SECONDS,
    RemoteRecords,
    read_wait_ms,
)
from tiered_storage.gateway.remote_search import Found, Position, RemoteSearch
from tiered_storage.gateway.served_cluster import ServedCluster
from tiered_storage.kafka_wire.connections.error_codes import (
    NONE,
    OFFSET_OUT_OF_RANGE,
)
from tiered_storage.kafka_wire.connections.frames import SIZE_BYTES, body_of
from tiered_storage.kafka_wire.fetch_layout import (
    NO_OFFSET,
    AbortedTransaction,
    FetchLayout,
    encode_entry,
    encoded_end,
    read_fetch,
    set_throttle_time,
)
from tiered_storage.kafka_wire.partition_offsets import PartitionOffsets
from tiered_storage.kafka_wire.server.fetch_request import FetchRequest
from tiered_storage.kafka_wire.server.request_header import RequestHeader
from tiered_storage.kafka_wire.server.send_queue import Buffer, Replacement, spliced

PAUSE_MS: Final = 100
"""How long an answer without records takes at least, if the client waits so long."""
QUEUED_SECONDS: Final = 5.0
"""How long a Fetch of remote records alone waits in the queue at least, and then again for its first piece; clients
time out after 30 s.
"""


class RemoteFetch:
    """Fills the answers to one client's Fetches. For one event loop."""

    def __init__(self, client: int, cluster: ServedCluster, questions: BrokerQuestions, memory: MemoryAccount) -> None:
        """Read as `client`, the number of its connection; `memory` is the connection's account."""
        self._client = client
        self._partitions = cluster.partitions
        self._metrics = cluster.metrics
        self._memory = memory
        self._quotas = cluster.quotas
        self._most_wait_ms = cluster.limits.most_wait_ms
        self._search = RemoteSearch(client, cluster, questions)
        self._place: int | None = None
        """In the queue of remote work: a Fetch that has no turn leaves its place to the next one."""
        self._fetches = 0

    def needs_share(self) -> bool:
        """Return whether the last Fetch had partitions with remote records: the next answer needs room for them.

        A broker that fills every answer with local records would leave none.
        """
        needs, self._search.had_remote = self._search.had_remote, False
        return needs

    def close(self) -> None:
        """End the client's reads."""
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
        share, wait_s = self._partitions.share, read_wait_ms(request, self._most_wait_ms) / 1000
        is_all_remote = all(each.error_code == OFFSET_OUT_OF_RANGE for each in layout.entries)
        place = await self._first_in_queue(max(wait_s, QUEUED_SECONDS) if is_all_remote else wait_s)
        filled = partial(self._filled, frame, request, layout, more, client, wait_s, place)
        if place is None:
            # Not counted: nothing paces such Fetches, and many of them would leave no time for those that may read.
            return await filled()
        try:
            return await share.timed(filled)
        finally:
            share.pass_on(place)

    async def _first_in_queue(self, seconds: float) -> int | None:
        """Wait until the client is first in the queue of remote work, and return its place.

        Return None if that takes longer; the client keeps its place.
        """
        share = self._partitions.share
        place = self._place = share.queue() if self._place is None else self._place
        if not await share.begin(place, seconds):
            return None
        self._place = None
        return place

    async def _filled(
        self,
        frame: memoryview,
        request: FetchRequest,
        layout: FetchLayout,
        more: Sequence[Replacement],
        client: ClientName,
        wait_s: float,
        place: int | None,
    ) -> Filled:
        await self._partitions.turns.next()
        positions = await self._search.positions(request, layout)
        left, is_first = request.max_bytes - layout.records_size, layout.records_size == 0
        allowed = self._quotas.room(client)
        left = min(left, allowed)
        room = self._partitions.room(left, [each.asked for each in positions]) if allowed else 0
        may_read = place is not None and allowed > 0 and (not room or await self._memory.wait(room, MEMORY_SECONDS))
        begun = asyncio.get_running_loop().time()
        patient, self._fetches = self._fetches, self._fetches + 1
        held = served = 0
        replacements: list[Replacement] = []
        may_wait = is_first
        for at in range(0, len(positions), AT_ONCE):
            some = positions[at : at + AT_ONCE]
            is_late = asyncio.get_running_loop().time() - begun >= wait_s
            if not may_read or is_late or (left <= 0 and not is_first):
                found = [Found() for _ in some]
                self._search.had_remote = True
            else:
                share = max(left, 0) // len(some)
                # In each Fetch, another position may take longer than the client's wait. Otherwise a client might never
                # get any records while many others wait.
                end = begun + wait_s
                late = begun + max(wait_s, QUEUED_SECONDS)
                ends = [
                    late if is_first and not at and each == patient % len(some) else end for each in range(len(some))
                ]
                pieces = [
                    self._find_within(end, 2 * wait_s, each, request, min(share, each.asked.max_bytes), client)
                    for end, each in zip(ends, some, strict=True)
                ]
                is_last = place is not None and at + AT_ONCE >= len(positions)
                found = await self._found(pieces, place if is_last else None)
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

    async def _found(self, pieces: Sequence[Coroutine[Any, Any, Found]], place: int | None) -> list[Found]:
        """Await the pieces of a Fetch; at a `place`, the last ones, let the next Fetch begin.

        If that is cancelled, end the reads that they opened.
        """
        tasks = [asyncio.ensure_future(each) for each in pieces]
        if place is not None:
            self._partitions.share.pass_on(place)
        try:
            found = await asyncio.gather(*tasks)
            await self._partitions.turns.next()
        except BaseException:
            for each in tasks:
                each.cancel()
                each.add_done_callback(self._end_unused)
            raise
        return found

    def _end_unused(self, piece: asyncio.Task[Found]) -> None:
        if not piece.cancelled() and piece.exception() is None and (read := piece.result().read) is not None:
            self._partitions.end(read)

    async def _find_within(
        self,
        end: float,
        seconds: float,
        position: Position,
        request: FetchRequest,
        wanted: int,
        client: ClientName,
    ) -> Found:
        """Find a position's records, about `wanted` bytes, within `seconds`; begin before `end` (the loop's time).

        Find none if the time is up: store or metadata hang, or too many other reads wait. Local records wait too.
        """
        begun = asyncio.get_running_loop().time()

        async def find() -> Found:
            async with asyncio.timeout_at(end):
                await self._partitions.turns.next()
            async with asyncio.timeout(seconds):
                return await self._search.find(position, request, wanted)

        try:
            return await self._partitions.share.piece(find, end)
        except TimeoutError:
            self._search.had_remote = True
            return Found()
        finally:
            if position.partition is not None:
                taken = asyncio.get_running_loop().time() - begun
                self._metrics.waited(position.partition.topic.name, client, taken)

    def _take(
        self, position: Position, found: Found, most_bytes: int, client: ClientName, *, whole: bool
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
            self._search.fails(named, found.code, reason)
            return None
        records = read.take(most_bytes, end_offset=found.outcomes.decided_end, whole=whole)
        self._partitions.keep(key, read)
        if records is not None:
            self._metrics.served(named.topic.name, client, records.size)
        return records


def _entry(request: FetchRequest, position: Position, found: Found, records: RemoteRecords | None) -> Replacement:
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


def _aborted(found: Found, records: RemoteRecords | None) -> list[AbortedTransaction]:
    if records is None:
        return []
    across = [each for each in found.outcomes.aborted if each.first_offset < records.end_offset]
    return sorted({*records.aborted, *across}, key=lambda each: (each.first_offset, each.producer_id))
