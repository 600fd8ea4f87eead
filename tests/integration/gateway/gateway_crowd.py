"""Very many clients of a gateway in processes of their own: idle ones, and readers from offset 0 and at the tail."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from itertools import count
from multiprocessing import get_context
from multiprocessing.connection import Connection
from time import perf_counter
from types import TracebackType
from typing import Any, Self

from integration.gateway.gateway_scale import BATCH_RECORDS, RECORD_BYTES, RECORDS, TOPIC, ScaleTopic
from integration.gateway.raw_readers import RawReader, raw_reader
from tiered_storage.gateway.allowed_apis import METADATA
from tiered_storage.kafka_wire.connections.frames import decode_answer
from tiered_storage.kafka_wire.fetch import FetchLimits, FetchPosition
from tiered_storage.kafka_wire.metadata import read_metadata

READERS = 200
AT_THE_TAIL = 400
ASLEEP = 380
CONNECTIONS = 1_000
"""All of the above, and LOCAL_READERS."""
LOCAL_READERS = 20
PERIOD_SECONDS = 0.1
"""How often a local reader asks."""
_SECONDS = 300
_READ_BYTES = 16 << 10
"""Of a partition in one Fetch of a reader: it needs several."""
_TAIL_PARTITIONS = 5
_AT_THE_END = FetchLimits(max_wait_seconds=5)


@dataclass(slots=True)
class Progress:
    """What one reader has read: records so far, whole passes over its share, and the slowest answer (seconds)."""

    records: int = 0
    passes: int = 0
    slowest: float = 0.0
    until_first: float = 0.0
    """Seconds from its start to its first records."""


class _Clients:
    """A process of clients that does what it is asked over a pipe."""

    def __init__(self, work: Callable[[_Called], Awaitable[None]], topic: ScaleTopic, port: int, nice: int = 0) -> None:
        self._pipe, theirs = get_context("spawn").Pipe()
        self._process = get_context("spawn").Process(target=_run, args=(work, theirs, topic, port, nice))

    def __enter__(self) -> Self:
        """Start it, and wait until all clients are connected."""
        self._process.start()
        try:
            assert self._answer() == "connected"
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if error is None:
            self._pipe.send(None)
            self._process.join(_SECONDS)
            assert self._process.exitcode == 0
        self._end()

    def _ask(self, question: Any) -> Any:
        self._pipe.send(question)
        return self._answer()

    def _answer(self) -> Any:
        assert self._pipe.poll(_SECONDS), "the clients do not answer"
        return self._pipe.recv()

    def _end(self) -> None:
        if self._process.is_alive():
            self._process.kill()
        self._process.join()


class Crowd(_Clients):
    """READERS clients that read from offset 0 when asked, AT_THE_TAIL that wait for records, ASLEEP that do nothing.

    Each has asked for the metadata of all partitions. The readers share the partitions.
    """

    def __init__(self, topic: ScaleTopic, port: int, nice: int = 0) -> None:
        """Connect nothing yet; `nice` lets others have the processor first, as if these were on another machine."""
        super().__init__(_crowd, topic, port, nice)

    def start_reading(self) -> None:
        """Let the readers read their shares, again and again."""
        assert self._ask("start") == "started"

    def progress(self) -> list[Progress]:
        """Return what each reader has read so far."""
        found: list[Progress] = self._ask("progress")
        return found

    def stop_reading(self) -> list[Progress]:
        """Let each reader complete its pass, and return what it has read in all."""
        found: list[Progress] = self._ask("stop")
        return found


class LocalReaders(_Clients):
    """LOCAL_READERS clients that ask for the last batch of a partition every PERIOD_SECONDS, when asked."""

    def __init__(self, topic: ScaleTopic, port: int) -> None:
        """Connect nothing yet."""
        super().__init__(_local_readers, topic, port)

    def latencies(self, seconds: float) -> list[float]:
        """Measure for so long; return what each Fetch took (seconds), in ascending order."""
        found: list[float] = self._ask(seconds)
        return found


def p99(latencies: Sequence[float]) -> float:
    """Return what 99 of 100 stay below; `latencies` ascend."""
    return latencies[len(latencies) * 99 // 100]


@dataclass(frozen=True, slots=True)
class _Called:
    """The clients' side of the pipe, in their process."""

    pipe: Connection
    topic: ScaleTopic
    port: int
    opened: AsyncExitStack

    async def asked(self) -> Any:
        """Wait for the next question."""
        return await asyncio.to_thread(self.pipe.recv)

    def answer(self, found: Any) -> None:
        """Answer the last question."""
        self.pipe.send(found)

    async def connected(self, name: str, number: int) -> list[RawReader]:
        """Connect so many clients at once."""
        entered = (self.opened.enter_async_context(raw_reader(self.port, f"{name}-{each}")) for each in range(number))
        return list(await asyncio.gather(*entered))


def _run(work: Callable[[_Called], Awaitable[None]], pipe: Connection, topic: ScaleTopic, port: int, nice: int) -> None:
    os.nice(nice)

    async def connected() -> None:
        async with AsyncExitStack() as opened:
            await work(_Called(pipe, topic, port, opened))

    asyncio.run(connected())


async def _crowd(called: _Called) -> None:
    topic = called.topic
    kinds = {"reader": READERS, "tail": AT_THE_TAIL, "asleep": ASLEEP}
    # All at once, as after an outage.
    readers, at_tail, asleep = await asyncio.gather(*(called.connected(*each) for each in kinds.items()))
    described = {await each.describe(TOPIC) for each in (*readers, *at_tail, *asleep)}
    assert {_partitions_in(each) for each in described} == {frozenset(topic.digests)}
    async with asyncio.TaskGroup() as waiting:
        tails = [waiting.create_task(_wait_at_the_tail(topic, number, each)) for number, each in enumerate(at_tail)]
        called.answer("connected")
        progress = [Progress() for _ in readers]
        is_stopped = asyncio.Event()
        reading: list[asyncio.Task[None]] = []
        while (question := await called.asked()) is not None:
            if question == "start":
                progress[:] = [Progress() for _ in readers]
                is_stopped.clear()
                reading = [
                    waiting.create_task(_read(topic, _share(topic, number), each, progress[number], is_stopped))
                    for number, each in enumerate(readers)
                ]
                called.answer("started")
                continue
            if question == "stop":
                is_stopped.set()
                await asyncio.gather(*reading)
            called.answer(progress)
        for each in tails:
            each.cancel()


def _partitions_in(answer: bytes) -> frozenset[int]:
    """Return the partitions of TOPIC in an answer to Metadata, which has lost its correlation id."""
    found = decode_answer(memoryview(bytes(4) + answer), METADATA, METADATA.latest, 0)
    return frozenset(read_metadata(found).topics[TOPIC].partitions)


def _share(topic: ScaleTopic, reader: int) -> list[int]:
    return [number for number in topic.digests if number % READERS == reader]


async def _wait_at_the_tail(topic: ScaleTopic, number: int, reader: RawReader) -> None:
    """Fetch from the end of the last records on, as a consumer does."""
    numbers = [(number * _TAIL_PARTITIONS + each) % len(topic.digests) for each in range(_TAIL_PARTITIONS)]
    asked = [FetchPosition(TOPIC, each, RECORDS, topic_id=topic.topic_id) for each in numbers]
    # Otherwise all of them would ask in the same moment.
    await asyncio.sleep(_AT_THE_END.max_wait_seconds * number / AT_THE_TAIL)
    for _ in count():
        answer = await reader.fetch(asked, _AT_THE_END)
        assert not any(each.error_code or each.records for each in answer.partitions)


async def _read(
    topic: ScaleTopic, share: Sequence[int], reader: RawReader, progress: Progress, is_stopped: asyncio.Event
) -> None:
    begun = last = perf_counter()

    def note(answer: Any) -> None:
        nonlocal last
        now = perf_counter()
        size = sum(len(each.records) for each in answer.partitions)
        progress.records += size // RECORD_BYTES
        progress.slowest, last = max(progress.slowest, now - last), now
        if size and not progress.until_first:
            progress.until_first = now - begun

    reader.on_answer = note
    wanted = {number: topic.digests[number] for number in share}
    ends: Mapping[int, int] = dict.fromkeys(share, RECORDS)
    while not is_stopped.is_set():
        assert await reader.read_share(TOPIC, topic.topic_id, ends, FetchLimits(), _READ_BYTES) == wanted
        progress.passes += 1


async def _local_readers(called: _Called) -> None:
    readers = await called.connected("local", LOCAL_READERS)
    called.answer("connected")
    while (seconds := await called.asked()) is not None:
        measured = (_measure(called.topic, number, each, seconds) for number, each in enumerate(readers))
        found = await asyncio.gather(*measured)
        called.answer(sorted(taken for each in found for taken in each))


async def _measure(topic: ScaleTopic, number: int, reader: RawReader, seconds: float) -> list[float]:
    last_batch = [FetchPosition(TOPIC, number, RECORDS - BATCH_RECORDS, topic_id=topic.topic_id)]
    taken = []
    due = perf_counter() + PERIOD_SECONDS * number / LOCAL_READERS
    end = due + seconds
    while due < end:
        await asyncio.sleep(due - perf_counter())
        # From when it was due on: a late answer delays the next question.
        answer = await reader.fetch(last_batch, FetchLimits())
        taken.append(perf_counter() - due)
        due = max(due + PERIOD_SECONDS, perf_counter())
        assert [len(each.records) > BATCH_RECORDS for each in answer.partitions] == [True]
    return taken
