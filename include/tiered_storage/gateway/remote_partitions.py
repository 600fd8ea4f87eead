"""Remote records of partitions, in portions as large as a Fetch allows.

A read stays open between two Fetches of one client, so that the next records are fetched ahead, over the ends of
segments. Reads that stay open hold a bounded amount of memory, and give it back if connections need it: the one that
was idle longest is closed first.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, Callable, Collection
from dataclasses import dataclass
from typing import Final, NamedTuple

from tiered_storage.errors import TieredStorageError
from tiered_storage.gateway.limits.memory_budget import MemoryBudget
from tiered_storage.gateway.limits.remote_share import RemoteShare
from tiered_storage.gateway.limits.remote_turns import RemoteTurns
from tiered_storage.kafka_log.log.log_config import INT64_MAX
from tiered_storage.kafka_log.records.batch_table import BatchTable
from tiered_storage.kafka_log.records.record import Record
from tiered_storage.kafka_log.records.record_batch import NO_TIMESTAMP, encode_batch, encode_empty_batch
from tiered_storage.kafka_wire.fetch_layout import AbortedTransaction
from tiered_storage.kafka_wire.server.fetch_request import AskedPartition, FetchRequest
from tiered_storage.remote_log.model import LEADER_EPOCH_UNKNOWN, TopicIdPartition
from tiered_storage.remote_log.read.log_reader import RemoteLogReader
from tiered_storage.remote_log.read.partition_snapshot import PartitionSnapshot
from tiered_storage.remote_log.read.read_values import FetchedBatches, FoundOffset, Isolation, OffsetSpec, Tier

AT_ONCE: Final = 8
"""Partitions of one Fetch that are read at the same time: each may hold a chunk."""
MEMORY_SECONDS: Final = 10.0
"""How long a Fetch waits for memory for remote records, before it is answered without them."""
_LEAST_WAIT_MS: Final = 500
"""How long a read may take even if the client would not wait so long: KIP-1018's default."""
_MOST_OPEN: Final = 2_000
"""Reads that may stay open at once, whatever they hold."""
_MORE_SECONDS: Final = 0.05
"""How long an answer that has records waits for more: their bytes are there, their transactions may not be."""
_MOST_OFFSETS_OF_A_BATCH: Final = 1 << 31


class ReadKey(NamedTuple):
    """Who reads what: one client's connection, and the isolation level."""

    client: int
    partition: TopicIdPartition
    isolation: Isolation


@dataclass(frozen=True, slots=True)
class RemoteRecords:
    """Whole batches, up to `end_offset` (exclusive); `aborted` are those whose ends are remote too."""

    buffers: tuple[memoryview, ...]
    """Their bytes, in order: a part of a chunk each."""
    size: int
    start_offset: int
    end_offset: int
    aborted: tuple[AbortedTransaction, ...]
    memory: int
    """The bytes that `buffers` keep in memory: at least `size`."""


def skipped_offsets(start_offset: int, end_offset: int) -> RemoteRecords:
    """Return an empty batch over offsets (`end_offset` exclusive), or over as many as one can have: no records.

    Consumers continue after it, as after a batch whose records a broker compacted away.
    """
    last = min(end_offset - 1, start_offset + _MOST_OFFSETS_OF_A_BATCH - 1)
    ends = [Record(each, NO_TIMESTAMP, None, None) for each in dict.fromkeys((start_offset, last))]
    content = encode_empty_batch(encode_batch(ends, partition_leader_epoch=LEADER_EPOCH_UNKNOWN))
    return RemoteRecords((memoryview(content),), len(content), start_offset, last + 1, (), len(content))


def _nothing_is_there() -> bool:
    return False


class RemoteRead:
    """One read of a partition, from `offset` on. For one Fetch at a time."""

    def __init__(
        self,
        batches: AsyncGenerator[FetchedBatches, None],
        offset: int,
        remote_end: int,
        is_next_there: Callable[[], bool] = _nothing_is_there,
    ) -> None:
        """Take over `batches`, which begins at `offset`; `remote_end` is the end of the remote log then, or earlier.

        `is_next_there` returns whether the next step of `batches` has its bytes in memory.
        """
        self._batches = batches
        self._is_next_there = is_next_there
        self.remote_end = remote_end
        self._fetched: deque[FetchedBatches] = deque()
        self._row = 0
        self.offset = offset
        self.largest_chunk = 0
        """The bytes of the largest chunk that it read so far."""
        self.has_failed = False
        """Whether it cannot continue after what it holds; another read from there on shows why."""

    @property
    def is_remote(self) -> bool:
        """Whether the next batch comes from the remote tier. Call it after `is_ready`."""
        return not self._is_used_up and self._fetched[0].tier is Tier.REMOTE

    @property
    def held_bytes(self) -> int:
        """The memory that it holds, without what is fetched ahead."""
        return sum(len(each.content) for each in self._fetched)

    async def is_ready(self, wanted_bytes: int = 0) -> bool:
        """Wait until there are records at `offset`; False: the remote log ends there. Raises as RemoteLogReader.

        If these have less than `wanted_bytes`, add those after them that are in memory already, up to `remote_end`:
        the caller that opened this does not know the aborted transactions after that end.
        """
        while self._is_used_up and await self._step():
            pass
        if self._is_used_up:
            return False
        try:
            async with asyncio.timeout(_MORE_SECONDS):
                while self._left() < wanted_bytes and self._has_more() and await self._step():
                    pass
        except (TieredStorageError, TimeoutError):
            self.has_failed = True
        return True

    def _has_more(self) -> bool:
        return self._fetched[-1].end_offset < self.remote_end and self._is_next_there()

    async def _step(self) -> bool:
        fetched = await anext(self._batches, None)
        if fetched is None:
            return False
        if self._is_used_up:
            self._fetched.clear()
            self._row = 0
            self.offset = max(self.offset, fetched.start_offset) if len(fetched.table) else fetched.end_offset
        if len(fetched.table):
            self._fetched.append(fetched)
            self.largest_chunk = max(self.largest_chunk, len(fetched.content))
        return True

    @property
    def _is_used_up(self) -> bool:
        """Whether all that was fetched is taken.

        The last chunk stays held until the next step, so that idle reads, which also fetch ahead, are bounded.
        """
        return not self._fetched or self._row == len(self._fetched[0].table)

    def _left(self) -> int:
        """Return how many bytes were not taken yet."""
        table = self._fetched[0].table
        return self.held_bytes - int(table.position[self._row] - table.position[0])

    def reaches(self, offset: int) -> bool:
        """Return whether the next batch has `offset` or a later one. Call it after `is_ready`."""
        return not self._is_used_up and int(self._fetched[0].table.last_offset[self._row]) >= offset

    def take(self, most_bytes: int, *, end_offset: int = INT64_MAX, whole: bool) -> RemoteRecords | None:
        """Return the next whole batches, `most_bytes` at most; with `whole`, the first one whatever its size.

        They end before `end_offset`. None if that is too little. Call it after `is_ready`.
        """
        start, size, memory = self.offset, 0, 0
        buffers: list[memoryview] = []
        aborted: set[AbortedTransaction] = set()
        while not (self._is_used_up or self.reaches(end_offset)):
            fetched, before = self._fetched[0], self.offset
            buffer = self._take_of_first(fetched, most_bytes - size, end_offset, whole=whole and not buffers)
            if buffer is None:
                break
            buffers.append(buffer)
            size += len(buffer)
            memory += len(fetched.content) if buffer.obj is fetched.content else len(buffer)
            aborted.update(
                AbortedTransaction(each.producer_id, each.first_offset)
                for each in fetched.aborted
                if each.first_offset < self.offset and each.last_offset >= before
            )
        if not buffers:
            return None
        by_offset = sorted(aborted, key=lambda each: (each.first_offset, each.producer_id))
        return RemoteRecords(tuple(buffers), size, start, self.offset, tuple(by_offset), memory)

    def _take_of_first(
        self, fetched: FetchedBatches, most_bytes: int, end_offset: int, *, whole: bool
    ) -> memoryview | None:
        """Return the next whole batches of `fetched`, the first of what it holds; None if that is too little."""
        table, row = fetched.table, self._row
        begin = int(table.position[row])
        # NumPy's search would let go of the GIL, and wait for it.
        end_row = bisect_right(range(len(table)), begin + most_bytes, row, key=lambda at: _end_of(table, at))
        if end_row == row and not whole:
            return None
        end_row = min(max(end_row, row + 1), bisect_left(table.last_offset, end_offset, row))
        origin = fetched.source_position
        content = memoryview(fetched.content)[begin - origin : _end_of(table, end_row - 1) - origin]
        if 2 * len(content) < len(fetched.content):
            # Copy a small portion: otherwise an answer over many partitions would keep each whole chunk in memory.
            content = memoryview(bytes(content))
        # The last batch of a segment that a later leader truncated reaches over its valid end.
        self.offset = min(int(table.last_offset[end_row - 1]) + 1, fetched.end_offset)
        self._row = end_row
        if end_row == len(table) and len(self._fetched) > 1:
            self._fetched.popleft()
            self._row = 0
        return content

    async def close(self) -> None:
        """End what it fetches ahead."""
        await self._batches.aclose()


def _end_of(table: BatchTable, row: int) -> int:
    return int(table.position[row]) + int(table.size[row])


def read_wait_ms(request: FetchRequest, most: int) -> int:
    """Return how long one read for a Fetch may take, `most` at most (ms)."""
    return min(max(request.max_wait_ms, _LEAST_WAIT_MS), most)


class RemotePartitions:
    """The remote log of one cluster. For one event loop."""

    def __init__(
        self,
        reader: RemoteLogReader,
        cluster_id: str,
        most_held_bytes: int,
        budget: MemoryBudget,
        share: RemoteShare | None = None,
    ) -> None:
        """Read through `reader`; idle reads hold `most_held_bytes` of `budget` at most.

        The reader has no local tier where brokers have that. Remote work keeps to its `share`; None: no limit.
        """
        self._reader = reader
        self._memory = budget.account()
        budget.spare = self._spare
        self._cluster_id = cluster_id
        self._most_held = most_held_bytes
        self._idle: OrderedDict[ReadKey, RemoteRead] = OrderedDict()
        self._closing: set[asyncio.Task[None]] = set()
        self.turns = RemoteTurns()
        self.share = RemoteShare() if share is None else share
        self.largest_chunk = 0
        """The bytes of the largest chunk that was read so far."""

    def partition(self, topic: str, topic_id: str, number: int) -> TopicIdPartition:
        """Return a partition by its topic's id; the name is for messages."""
        return TopicIdPartition(self._cluster_id, topic_id, number, topic)

    def room(self, most_bytes: int, asked: Collection[AskedPartition]) -> int:
        """Return how much memory `most_bytes` of records may take: chunks are read, twice as large as what is kept."""
        if not asked:
            return 0
        records = max(min(most_bytes, sum(each.max_bytes for each in asked)), 0)
        return max(2 * records, min(len(asked), AT_ONCE) * self.largest_chunk)

    async def snapshot(self, partition: TopicIdPartition, offset: int) -> PartitionSnapshot:
        """Return what is remote of a partition. If the last snapshot does not have `offset`, the reader looks again.

        Raises as RemoteLogReader.snapshot.
        """
        # To the reader, the end of its last snapshot counts as inside.
        snapshot = await self._reader.snapshot(partition, offset + 1)
        return snapshot if offset >= snapshot.log_start_offset else await self._reader.snapshot(partition, offset)

    async def latest(self, partition: TopicIdPartition) -> PartitionSnapshot:
        """Return what is remote of a partition, by a look that begins now. Raises as RemoteLogReader.snapshot."""
        return await self._reader.snapshot(partition, INT64_MAX)

    async def offsets(
        self, partition: TopicIdPartition, spec: OffsetSpec | int, isolation: Isolation = Isolation.READ_UNCOMMITTED
    ) -> FoundOffset | None:
        """Return an offset of the log; see RemoteLogReader.offsets."""
        return await self._reader.offsets(partition, spec, isolation)

    async def visible_end(self, snapshot: PartitionSnapshot, isolation: Isolation) -> int:
        """Return the offset after the last one that a reader gets of what can be read. Raises as `offsets`."""
        if isolation is Isolation.READ_UNCOMMITTED:
            return snapshot.end_offset(isolation)
        found = await self._reader.offsets(snapshot.partition, OffsetSpec.LATEST, isolation, visible_only=True)
        return snapshot.end_offset(isolation) if found is None else found.offset

    async def decided_end(self, snapshot: PartitionSnapshot) -> int:
        """Return up to which offset the remote log of `snapshot` shows how each transaction ended."""
        return await self._reader.decided_end(snapshot)

    def open(self, key: ReadKey, offset: int, remote_end: int, wait_ms: int) -> RemoteRead:
        """Return the client's read that stands at `offset`, or a new one whose steps take `wait_ms` at most.

        A read that began when the remote log had another end is not used: an abort whose marker was copied since is
        neither among its aborted transactions nor among those that a broker gives from `remote_end` on.
        """
        known = self._pop(key)
        if known is not None and (known.offset, known.remote_end) == (offset, remote_end):
            return known
        if known is not None:
            self.end(known)
        stream = self._reader.stream(key.partition, offset, isolation=key.isolation, deadline_ms=wait_ms)
        return RemoteRead(stream.fetch(), offset, remote_end, stream.is_next_there)

    def keep(self, key: ReadKey, read: RemoteRead) -> None:
        """Keep a read for the client's next Fetch, if there is memory for it."""
        earlier = self._pop(key)
        if earlier is not None:
            self.end(earlier)
        self.largest_chunk = max(self.largest_chunk, read.largest_chunk)
        if read.has_failed or not self._memory.take_if_free(read.held_bytes):
            self.end(read)
            return
        self._idle[key] = read
        while len(self._idle) > 1 and (self._memory.held > self._most_held or len(self._idle) > _MOST_OPEN):
            self._end_oldest()

    def forget(self, client: int) -> None:
        """End the reads of a client that has disconnected."""
        for key in [key for key in self._idle if key.client == client]:
            if (read := self._pop(key)) is not None:
                self.end(read)

    def _spare(self, size: int) -> None:
        """Give back `size` bytes if idle reads hold as many, or all of theirs."""
        least = max(self._memory.held - size, 0)
        while self._memory.held > least:
            self._end_oldest()

    def _end_oldest(self) -> None:
        if (read := self._pop(next(iter(self._idle)))) is not None:
            self.end(read)

    def _pop(self, key: ReadKey) -> RemoteRead | None:
        read = self._idle.pop(key, None)
        if read is not None:
            self._memory.give(read.held_bytes)
        return read

    def end(self, read: RemoteRead) -> None:
        """End an unused read."""
        task = asyncio.get_running_loop().create_task(read.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
