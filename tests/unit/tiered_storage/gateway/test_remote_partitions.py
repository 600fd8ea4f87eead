from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.transactions import data
from tiered_storage.errors import RemoteObjectNotFoundError
from tiered_storage.gateway.limits.memory_budget import MemoryBudget
from tiered_storage.gateway.remote_partitions import ReadKey, RemotePartitions, RemoteRead, skipped_offsets
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.kafka_log.indexes.transaction_index import AbortedTxn
from tiered_storage.kafka_log.records.batch_header import check_crc, read_batch_header
from tiered_storage.kafka_log.records.record_batch import read_records
from tiered_storage.kafka_log.records.segment_scan import SegmentScanner
from tiered_storage.kafka_wire.fetch_layout import AbortedTransaction
from tiered_storage.remote_log.coverage import Coverage
from tiered_storage.remote_log.model import TopicIdPartition
from tiered_storage.remote_log.read.log_reader import RemoteLogReader
from tiered_storage.remote_log.read.partition_snapshot import PartitionSnapshot
from tiered_storage.remote_log.read.read_values import FetchedBatches, Isolation, Tier
from unit.tiered_storage.gateway.given_streams import GivenStream

PARTITION = TopicIdPartition("a cluster", "AAAAAAAAAAAAAAAAAAAABw", 0, "orders")
KEY = ReadKey(1, PARTITION, Isolation.READ_UNCOMMITTED)


def fetched(batches: list[bytes], start: int, end: int, aborted: tuple[AbortedTxn, ...] = ()) -> FetchedBatches:
    """Batches as a reader gives them, somewhere in an object."""
    content = b"".join(batches)
    table, _ = SegmentScanner("an object", 0, start_position=5000).feed(memoryview(content))
    return FetchedBatches(content, start, end, Tier.REMOTE, "an object", 5000, table, aborted)


async def given_batches(*fetches: FetchedBatches) -> AsyncGenerator[FetchedBatches, None]:
    for fetch in fetches:
        yield fetch


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(work(), 30))


@given(
    counts=st.lists(st.integers(1, 5), min_size=1, max_size=6),
    most=st.integers(1, 2000),
    cut=st.integers(1, 6),
    are_there=st.booleans(),
)
def test_whole_batches_come_once_each_within_the_limit(counts: list[int], most: int, cut: int, are_there: bool) -> None:
    batches, offset = [], 0
    for count in counts:
        batches.append(data(offset, count=count))
        offset += count
    cut = min(cut, len(batches))
    middle = sum(counts[:cut])
    fetches = [fetched(batches[:cut], 0, middle)]
    if batches[cut:]:
        fetches.append(fetched(batches[cut:], middle, offset))

    async def work() -> None:
        read, found = RemoteRead(given_batches(*fetches), 0, offset, lambda: are_there), []
        while await read.is_ready(most):
            before = read.offset
            taken = read.take(most, whole=True)
            assert taken is not None
            assert (taken.start_offset, taken.end_offset) == (before, read.offset)
            content = b"".join(taken.buffers)
            assert taken.size == len(content) <= taken.memory
            assert len(content) <= most or content in batches
            found.append(content)
        assert b"".join(found) == b"".join(batches)
        assert read.offset == offset

    run(work)


def test_a_small_portion_does_not_keep_its_chunk_in_memory() -> None:
    batches = [data(at) for at in range(10)]

    async def work() -> None:
        read = RemoteRead(given_batches(fetched(batches, 0, 10)), 0, 10)
        assert await read.is_ready()
        small = read.take(len(batches[0]), whole=True)
        large = read.take(1 << 20, whole=True)
        assert small is not None
        assert large is not None
        assert (small.size, small.memory) == (len(batches[0]), len(batches[0]))
        assert large.memory == sum(map(len, batches))
        assert [bytes(each.obj) for each in (*small.buffers, *large.buffers)] == [batches[0], b"".join(batches)]

    run(work)


def test_a_batch_that_is_too_large_waits_unless_it_must_come_whole() -> None:
    async def work() -> None:
        read = RemoteRead(given_batches(fetched([data(0, count=3)], 0, 3)), 0, 3)
        assert await read.is_ready()
        assert read.take(10, whole=False) is None
        assert read.offset == 0
        assert read.take(10, whole=True) is not None
        assert read.offset == 3

    run(work)


def test_aborted_transactions_are_those_of_the_taken_batches() -> None:
    batches = [data(0, 7, 0, transactional=True), data(1, 8, 0, transactional=True), data(2)]
    aborted = (AbortedTxn(7, 0, 5, 6), AbortedTxn(8, 1, 4, 6))

    async def work() -> None:
        read = RemoteRead(given_batches(fetched(batches, 0, 3, aborted)), 0, 3)
        assert await read.is_ready()
        first = read.take(len(batches[0]), whole=True)
        rest = read.take(1 << 20, whole=True)
        assert first is not None
        assert rest is not None
        assert first.aborted == (AbortedTransaction(7, 0),)
        assert rest.aborted == (AbortedTransaction(7, 0), AbortedTransaction(8, 1))

    run(work)


def chunks_of_one_batch(count: int) -> list[FetchedBatches]:
    return [fetched([data(at)], at, at + 1) for at in range(count)]


@pytest.mark.parametrize(("there", "batches"), [(0, 1), (1, 2), (9, 4)], ids=["nothing", "one", "more-than-wanted"])
def test_one_answer_has_the_chunks_that_are_in_memory_up_to_what_is_wanted(there: int, batches: int) -> None:
    left, chunks = [True] * there, chunks_of_one_batch(10)
    size = len(chunks[0].content)

    async def work() -> None:
        read = RemoteRead(given_batches(*chunks), 0, 10, lambda: bool(left and left.pop()))
        assert await read.is_ready(4 * size)
        taken = read.take(100 * size, whole=True)
        assert taken is not None
        assert (taken.size, taken.end_offset, len(taken.buffers)) == (batches * size, batches, batches)
        assert (read.held_bytes, read.largest_chunk) == (size, size)

    run(work)


def test_one_answer_ends_where_the_remote_log_ended_when_it_was_opened() -> None:
    chunks = chunks_of_one_batch(10)
    size = len(chunks[0].content)

    async def work() -> None:
        read = RemoteRead(given_batches(*chunks), 0, 2, lambda: True)
        assert await read.is_ready(4 * size)
        taken = read.take(100 * size, whole=True)
        assert taken is not None
        assert taken.end_offset == 2

    run(work)


def test_records_do_not_wait_for_more_that_hang() -> None:
    [chunk, _] = chunks_of_one_batch(2)

    async def work() -> None:
        async def hanging() -> AsyncGenerator[FetchedBatches, None]:
            yield chunk
            await asyncio.Event().wait()

        read = RemoteRead(hanging(), 0, 2, lambda: True)
        assert await read.is_ready(10 * len(chunk.content))
        taken = read.take(100 * len(chunk.content), whole=True)
        assert taken is not None
        assert taken.end_offset == 1
        assert read.has_failed

    run(work)


def test_what_is_left_of_a_chunk_comes_with_the_next_ones() -> None:
    chunks = [fetched([data(at), data(at + 1)], at, at + 2) for at in (0, 2, 4)]
    size = len(chunks[0].content) // 2

    async def work() -> None:
        read = RemoteRead(given_batches(*chunks), 0, 6, lambda: True)
        ends = []
        while await read.is_ready(3 * size):
            taken = read.take(3 * size, whole=True)
            assert taken is not None
            ends.append(taken.end_offset)
        assert ends == [3, 6]

    run(work)


def test_batches_of_several_chunks_end_before_an_offset() -> None:
    async def work() -> None:
        read = RemoteRead(given_batches(*chunks_of_one_batch(5)), 0, 5, lambda: True)
        assert await read.is_ready(1 << 20)
        taken = read.take(1 << 20, end_offset=3, whole=True)
        assert taken is not None
        assert (taken.end_offset, read.reaches(3)) == (3, True)

    run(work)


def test_aborted_transactions_of_several_chunks_come_once_in_order() -> None:
    early, late = AbortedTxn(8, 0, 9, 9), AbortedTxn(7, 2, 9, 9)
    chunks = [
        fetched([data(at)], at, at + 1, aborted) for at, aborted in enumerate([(early,), (early,), (late, early)])
    ]

    async def work() -> None:
        read = RemoteRead(given_batches(*chunks), 0, 3, lambda: True)
        assert await read.is_ready(1 << 20)
        taken = read.take(1 << 20, whole=True)
        assert taken is not None
        assert taken.aborted == (AbortedTransaction(8, 0), AbortedTransaction(7, 2))

    run(work)


async def then_fails(*fetches: FetchedBatches) -> AsyncGenerator[FetchedBatches, None]:
    for fetch in fetches:
        yield fetch
    raise RemoteObjectNotFoundError("lost")


def test_records_in_hand_are_answered_although_later_ones_cannot_be_read() -> None:
    async def work() -> None:
        found, _ = partitions()
        read = RemoteRead(then_fails(*chunks_of_one_batch(2)), 0, 100, lambda: True)
        assert await read.is_ready(1 << 20)
        taken = read.take(1 << 20, whole=True)
        assert taken is not None
        assert taken.end_offset == 2
        found.keep(KEY, read)
        # The next Fetch begins another read, which raises the error.
        assert found.open(KEY, 2, 100, 1000) is not read

    run(work)


def test_an_error_before_the_first_records_is_raised() -> None:
    async def work() -> None:
        with pytest.raises(RemoteObjectNotFoundError):
            await RemoteRead(then_fails(), 0, 100, lambda: True).is_ready(1 << 20)

    run(work)


@dataclass
class Reader:
    """A reader that gives ten batches from every offset on, and counts its reads and their ends."""

    begun: list[int] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)

    def stream(self, _: TopicIdPartition, offset: int, **__: object) -> GivenStream:
        self.begun.append(offset)
        return GivenStream(self._read(offset))

    async def _read(self, offset: int) -> AsyncGenerator[FetchedBatches, None]:
        try:
            for at in range(offset, offset + 10):
                yield fetched([data(at)], at, at + 1)
        finally:
            self.ended.append(offset)


def partitions(most_held: int = 1 << 20) -> tuple[RemotePartitions, Reader]:
    reader = Reader()
    return RemotePartitions(cast(RemoteLogReader, reader), "a cluster", most_held, MemoryBudget(1 << 30)), reader


async def step(found: RemotePartitions, key: ReadKey, offset: int, remote_end: int = 100) -> int:
    """Take one batch as a Fetch does; return where the next one begins."""
    read = found.open(key, offset, remote_end, 1000)
    assert await read.is_ready()
    assert read.take(1, whole=True) is not None
    found.keep(key, read)
    return read.offset


def test_a_client_that_reads_on_has_one_read() -> None:
    async def work() -> None:
        found, reader = partitions()
        offset = 0
        for _ in range(5):
            offset = await step(found, KEY, offset)
        assert (offset, reader.begun) == (5, [0])

    run(work)


def test_a_client_reads_again_once_the_remote_log_has_another_end() -> None:
    async def work() -> None:
        found, reader = partitions()
        offset = await step(found, KEY, 0)
        offset = await step(found, KEY, offset, remote_end=150)
        assert (await step(found, KEY, offset, remote_end=150), reader.begun) == (3, [0, 1])

    run(work)


def test_batches_end_before_an_offset() -> None:
    batches = [data(0, count=2), data(2, count=2), data(4, count=2)]

    async def work() -> None:
        read = RemoteRead(given_batches(fetched(batches, 0, 6)), 0, 6)
        assert await read.is_ready()
        assert not read.reaches(5)
        taken = read.take(1 << 20, end_offset=5, whole=True)
        assert taken is not None
        assert b"".join(taken.buffers) == b"".join(batches[:2])
        assert read.reaches(5)
        assert read.take(1 << 20, end_offset=5, whole=True) is None
        assert (read.offset, read.reaches(6)) == (4, False)

    run(work)


@pytest.mark.parametrize(
    ("end", "reached"),
    [(11, 11), (12, 12), (5000, 5000), (1 << 40, 10 + (1 << 31))],
    ids=["1", "2", "many", "too many"],
)
def test_skipped_offsets_are_a_batch_without_records(end: int, reached: int) -> None:
    found = skipped_offsets(10, end)

    [content] = found.buffers
    header = read_batch_header(content)
    check_crc(content)
    assert len(content) == found.size == 61
    assert (header.base_offset, header.next_offset, found.end_offset) == (10, reached, reached)
    assert read_records(content) == []


def test_a_client_that_seeks_begins_another_read() -> None:
    async def work() -> None:
        found, reader = partitions()
        await step(found, KEY, 0)
        await step(found, KEY, 50)
        await asyncio.sleep(0.01)
        assert (reader.begun, reader.ended) == ([0, 50], [0])

    run(work)


@pytest.mark.parametrize("kept", [1, 3])
def test_reads_that_hold_too_much_are_ended_the_idlest_first(kept: int) -> None:
    async def work() -> None:
        found, reader = partitions(most_held=kept * 100)
        for client in range(4):
            await step(found, KEY._replace(client=client), 10 * client)
        await asyncio.sleep(0.01)
        assert reader.ended == [0, 10, 20, 30][: 4 - kept]

    run(work)


def test_a_disconnected_clients_reads_are_ended() -> None:
    async def work() -> None:
        found, reader = partitions()
        await step(found, KEY, 0)
        await step(found, KEY._replace(client=2), 50)
        found.forget(1)
        await asyncio.sleep(0.01)
        assert reader.ended == [0]

    run(work)


class Views:
    """A reader whose last snapshot begins at offset 100, and whose next one begins at 50, as after an undelete."""

    def __init__(self) -> None:
        self.starts = [100, 50]

    async def snapshot(self, _: TopicIdPartition, offset: int) -> PartitionSnapshot:
        if len(self.starts) > 1 and not self.starts[0] <= offset <= 200:
            self.starts.pop(0)
        epochs = (EpochEntry(0, 0),)
        return PartitionSnapshot(PARTITION, None, Coverage.of([], epochs), self.starts[0], epochs)


@pytest.mark.parametrize("offset", [98, 99, 150], ids=["far-below-the-start", "just-below-the-start", "inside"])
def test_an_offset_below_the_start_of_the_last_view_is_judged_by_a_new_one(offset: int) -> None:
    partitions = RemotePartitions(cast(RemoteLogReader, Views()), "a cluster", 1 << 20, MemoryBudget(1 << 30))

    snapshot = asyncio.run(partitions.snapshot(PARTITION, offset))

    assert snapshot.log_start_offset == (100 if offset >= 100 else 50)
