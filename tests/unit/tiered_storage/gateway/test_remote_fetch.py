"""What a consumer gets where the broker's log begins after its offset; the broker and the remote log are scripts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar, cast
from uuid import UUID

import pytest
from kio.index import load_payload_module
from kio.schema.errors import ErrorCode
from kio.static.constants import EntityType

from support.command_line import mentions
from support.served_clusters import gateway_limits, served_cluster
from support.transactions import data
from tiered_storage.errors import OffsetOutOfRangeError, ReaderBusyError, RemoteObjectNotFoundError, TieredStorageError
from tiered_storage.gateway.broker_questions import BrokerQuestions
from tiered_storage.gateway.deletions.remote_deletions import RemoteDeletions
from tiered_storage.gateway.limits.client_quotas import ClientName, ClientQuotas
from tiered_storage.gateway.limits.memory_budget import MemoryBudget
from tiered_storage.gateway.limits.remote_share import RemoteShare
from tiered_storage.gateway.limits.remote_turns import RemoteTurns
from tiered_storage.gateway.operation.metrics import GatewayMetrics
from tiered_storage.gateway.remote_fetch import RemoteFetch
from tiered_storage.gateway.remote_partitions import RemotePartitions
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.kafka_log.records.batch_header import read_batch_header
from tiered_storage.kafka_log.records.segment_scan import SegmentScanner
from tiered_storage.kafka_wire.connections.apis import FETCH
from tiered_storage.kafka_wire.connections.frames import Cursor, encode_answer, entity
from tiered_storage.kafka_wire.fetch_layout import AbortedTransaction, PartitionEntry, read_fetch
from tiered_storage.kafka_wire.partition_offsets import PartitionOffsets
from tiered_storage.kafka_wire.server.fetch_request import AskedPartition, FetchRequest
from tiered_storage.kafka_wire.server.request_header import RequestHeader
from tiered_storage.remote_log.coverage import Coverage
from tiered_storage.remote_log.model import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    SegmentState,
    TopicIdPartition,
)
from tiered_storage.remote_log.read.log_reader import RemoteLogReader
from tiered_storage.remote_log.read.partition_snapshot import PartitionSnapshot
from tiered_storage.remote_log.read.read_values import FetchedBatches, Tier
from unit.tiered_storage.gateway.brokers import RAW_ID, TOPIC, ScriptedBroker
from unit.tiered_storage.gateway.given_streams import GivenStream

OUT_OF_RANGE, STORAGE_ERROR = 1, 56
VERSION = 18
REMOTE_START, REMOTE_END = 20, 100
BATCH = 10
"""Records of each remote batch."""


@dataclass
class Remote:
    """A remote log with offsets REMOTE_START to REMOTE_END, transactions open from `decided_end` on."""

    failure: TieredStorageError | None = None
    decided: int = REMOTE_END
    ends: list[int] = field(default_factory=lambda: [REMOTE_END])
    """The end that each look finds; the last one again and again."""
    begun: list[int] = field(default_factory=list)
    """Where each read begins."""
    copying: tuple[tuple[int, int], ...] = ()
    """The offsets that a copy has begun."""
    hangs: bool = False
    are_there: bool = False
    """Whether all batches are in memory."""

    async def snapshot(self, partition: TopicIdPartition, offset: int) -> PartitionSnapshot:
        del offset
        if self.hangs:
            await asyncio.Event().wait()
        end = self.ends.pop(0) if len(self.ends) > 1 else self.ends[0]
        epochs = (EpochEntry(0, 0),)
        segment = RemoteLogSegmentMetadata(
            RemoteLogSegmentId(partition, f"{1:022}"), REMOTE_START, end - 1, 1, 1, 1, epochs,
            SegmentState.COPY_SEGMENT_FINISHED,
        )  # fmt: skip
        coverage = Coverage.of([segment], epochs)
        return PartitionSnapshot(partition, None, coverage, 0, epochs, copies_under_way=self.copying)

    async def decided_end(self, snapshot: PartitionSnapshot) -> int:
        return min(self.decided, snapshot.remote_end)

    def stream(self, partition: TopicIdPartition, offset: int, **more: object) -> GivenStream:
        del partition, more
        return GivenStream(self._batches(offset), self.are_there)

    async def _batches(self, offset: int) -> AsyncGenerator[FetchedBatches, None]:
        self.begun.append(offset)
        if self.failure is not None:
            raise self.failure
        for start in range(offset - offset % BATCH, self.ends[-1], BATCH):
            content = data(start, 7, 0, count=BATCH, transactional=True)
            table, _position = SegmentScanner("an object", 0).feed(memoryview(content))
            yield FetchedBatches(content, start, start + BATCH, Tier.REMOTE, "an object", 0, table, ())


@dataclass
class Consumer:
    """A consumer's Fetches to `broker`, which answers each partition with OFFSET_OUT_OF_RANGE."""

    broker: ScriptedBroker = field(default_factory=ScriptedBroker)
    remote: Remote = field(default_factory=Remote)
    metrics: GatewayMetrics = field(default_factory=GatewayMetrics)
    budget: MemoryBudget = field(default_factory=lambda: MemoryBudget(1 << 30))
    skips_missing: bool = False
    rate: int | None = None
    seconds: float = 0.0

    def new_fetch(self, turns: RemoteTurns | None = None, share: RemoteShare | None = None) -> RemoteFetch:
        partitions = RemotePartitions(cast(RemoteLogReader, self.remote), "a cluster", 1 << 20, self.budget, share)
        partitions.turns = turns or partitions.turns
        questions = BrokerQuestions(self.broker, lambda: 0.0)
        limits = gateway_limits(most_wait_ms=1000, skips_missing=self.skips_missing)
        quotas = ClientQuotas(self.rate, lambda: self.seconds)
        cluster = served_cluster(partitions, cast(RemoteDeletions, None), self.budget, limits, self.metrics, quotas)
        return RemoteFetch(1, cluster, questions, self.budget.account())

    def fetches(self, *offsets: int, committed: bool = False) -> list[PartitionEntry]:
        """Fetch from partition 0 at each of `offsets`, one Fetch after the other."""

        async def work() -> list[PartitionEntry]:
            fetch = self.new_fetch()
            return [await filled(fetch, offset, committed=committed) for offset in offsets]

        return asyncio.run(asyncio.wait_for(work(), 30))


async def filled(fetch: RemoteFetch, offset: int, *, committed: bool) -> PartitionEntry:
    return (await throttled(fetch, offset, committed=committed))[1]


async def throttled(fetch: RemoteFetch, offset: int, *, committed: bool = False) -> tuple[int, PartitionEntry]:
    """The throttle time in ms, which is that for which the connection is muted, and the answer."""
    throttle_ms, [found] = await filled_all(fetch, offset, partitions=1, committed=committed)
    return throttle_ms, found


async def filled_all(
    fetch: RemoteFetch, offset: int, *, partitions: int, committed: bool = False, local: bytes | None = None
) -> tuple[int, tuple[PartitionEntry, ...]]:
    """Fetch from several partitions at `offset`; return the throttle time (ms) and the answers.

    The broker has `local` records of one more partition, if given.
    """
    kio = load_payload_module(FETCH.key, VERSION, EntityType.response)
    codes = [ErrorCode(OUT_OF_RANGE)] * partitions + [ErrorCode.none] * (local is not None)
    answered = tuple(
        entity(
            kio.PartitionData,
            partition_index=number,
            error_code=code,
            high_watermark=-1,
            aborted_transactions=None,
            records=None if code is not ErrorCode.none else local,
        )
        for number, code in enumerate(codes)
    )
    topic = entity(kio.FetchableTopicResponse, topic_id=UUID(bytes=RAW_ID), partitions=answered)
    answer = entity(kio.FetchResponse, throttle_time=timedelta(), error_code=ErrorCode.none, responses=(topic,))
    frame = memoryview(bytearray(encode_answer(answer, 5)))
    asked: dict[tuple[str | bytes, int], AskedPartition] = {
        (RAW_ID, number): AskedPartition(offset, 1 << 20) for number in range(len(codes))
    }
    request = FetchRequest(VERSION, -1, 1, 1, 1 << 20, committed, asked)
    layout = fetch.layout(frame, RequestHeader(FETCH, VERSION, 5, "", 0))
    assert fetch.is_concerned(request, layout)
    result = await fetch.fill(frame, request, layout, [], ClientName("", "consumer"))
    content = memoryview(b"".join(result.buffers))
    read = read_fetch(Cursor(content[9:]), VERSION)
    assert read.throttle_ms == result.mute_ms
    return result.mute_ms, tuple(read.entries)


def test_remote_records_come_with_the_brokers_offsets() -> None:
    [found] = Consumer().fetches(55)

    assert (found.error_code, found.high_watermark, found.last_stable_offset) == (0, 200, 200)
    assert found.log_start_offset == REMOTE_START
    assert int.from_bytes(found.records[:8], "big") == 50


@pytest.mark.parametrize(("are_there", "last"), [(False, 59), (True, REMOTE_END - 1)])
def test_an_answer_has_all_remote_records_that_are_in_memory(are_there: bool, last: int) -> None:
    [found] = Consumer(remote=Remote(are_there=are_there)).fetches(55)

    table, size = SegmentScanner("an answer", 0).feed(found.records)
    assert (int(table.last_offset[-1]), size) == (last, len(found.records))


@pytest.mark.parametrize(
    ("answered", "code"), [(6, 6), (5, 6), (56, 56), (74, 74), (75, 75), (78, 78), (3, 3), (29, 29), (7, 56), (-1, 56)]
)
def test_a_broker_that_does_not_answer_for_the_partition_resets_no_consumer(answered: int, code: int) -> None:
    [found] = Consumer(ScriptedBroker(answered)).fetches(55)

    assert (found.error_code, bytes(found.records)) == (code, b"")


@pytest.mark.parametrize(("answered", "code"), [(3, 3), (29, 29), (100, 100), (5, 6), (-1, 56)])
def test_a_topic_that_the_broker_does_not_describe_resets_no_consumer(answered: int, code: int) -> None:
    [found] = Consumer(ScriptedBroker(topic_code=answered)).fetches(55)

    assert found.error_code == code


def test_an_offset_above_the_high_watermark_is_out_of_range() -> None:
    [found] = Consumer().fetches(201)

    assert found.error_code == OUT_OF_RANGE


def test_an_offset_below_the_remote_log_is_out_of_range() -> None:
    [found] = Consumer().fetches(REMOTE_START - 1)

    assert found.error_code == OUT_OF_RANGE


def test_the_end_of_a_second_ago_resets_no_consumer() -> None:
    consumer = Consumer(ScriptedBroker(PartitionOffsets(60, 70, 70)))

    async def work() -> tuple[PartitionEntry, PartitionEntry]:
        fetch = consumer.new_fetch()
        before = await filled(fetch, 55, committed=False)
        # Written and trimmed within the second that the first answer is used for.
        consumer.broker.offsets = PartitionOffsets(100, 200, 200)
        return before, await filled(fetch, 95, committed=False)

    before, after = asyncio.run(work())

    assert before.high_watermark == 70
    assert (after.error_code, int.from_bytes(after.records[:8], "big")) == (0, 90)


def test_a_remote_log_that_ends_earlier_than_it_was_seen_resets_no_consumer() -> None:
    [found] = Consumer(remote=Remote(OffsetOutOfRangeError(TOPIC, 55, REMOTE_START, 50))).fetches(55)

    assert found.error_code == STORAGE_ERROR


@pytest.mark.parametrize(
    ("failure", "code"), [(ReaderBusyError("busy"), 0), (RemoteObjectNotFoundError("lost"), STORAGE_ERROR)]
)
def test_what_cannot_be_read_has_the_code_of_the_table(failure: TieredStorageError, code: int) -> None:
    [found] = Consumer(remote=Remote(failure)).fetches(55)

    assert (found.error_code, bytes(found.records)) == (code, b"")


def test_a_hole_is_an_error_counted_each_time_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    consumer = Consumer(ScriptedBroker(PartitionOffsets(105, 200, 200)))

    found = consumer.fetches(102, 102, 103)

    assert [each.error_code for each in found] == [STORAGE_ERROR] * 3
    [record] = caplog.records
    assert mentions(record.getMessage(), "offset 102", "neither tier", "offset 100")
    labels = {"topic": TOPIC, "error": "KAFKA_STORAGE_ERROR"}
    assert consumer.metrics.registry.get_sample_value("remote_log_gateway_remote_errors_total", labels) == 3


def test_a_hole_is_skipped_and_counted_where_a_setting_says_so(caplog: pytest.LogCaptureFixture) -> None:
    consumer = Consumer(ScriptedBroker(PartitionOffsets(105, 200, 200)), skips_missing=True)

    [found] = consumer.fetches(102)

    header = read_batch_header(found.records)
    assert (found.error_code, header.base_offset, header.next_offset, header.record_count) == (0, 102, 105, 0)
    assert "offset 102 is in neither tier" in caplog.text
    sample = consumer.metrics.registry.get_sample_value
    assert sample("remote_log_gateway_skipped_offsets_total", {"topic": TOPIC}) == 3


@pytest.mark.parametrize(("copying", "code"), [((100, 101), 0), ((100, 102), 56), ((104, 110), 56), ((105, 110), 0)])
def test_what_a_copy_under_way_has_is_not_skipped(copying: tuple[int, int], code: int) -> None:
    remote = Remote(copying=(copying,))
    consumer = Consumer(ScriptedBroker(PartitionOffsets(105, 200, 200)), remote, skips_missing=True)

    assert [each.error_code for each in consumer.fetches(102)] == [code]


def test_what_was_copied_since_the_last_look_is_not_skipped() -> None:
    remote = Remote(ends=[REMOTE_END, 105])
    consumer = Consumer(ScriptedBroker(PartitionOffsets(105, 200, 200)), remote, skips_missing=True)

    first, second = consumer.fetches(102, 102)

    assert (first.error_code, bytes(first.records)) == (0, b"")
    assert read_batch_header(second.records).record_count == BATCH


def test_records_before_a_hole_with_their_transactions_end_are_not_skipped() -> None:
    consumer = Consumer(ScriptedBroker(PartitionOffsets(105, 200, 200)), Remote(decided=60), skips_missing=True)

    assert [each.error_code for each in consumer.fetches(60, committed=True)] == [STORAGE_ERROR]


def test_an_answer_does_not_wait_for_metadata_that_hang() -> None:
    [found] = Consumer(ScriptedBroker(PartitionOffsets(105, 200, 200)), Remote(hangs=True)).fetches(50)

    assert (found.error_code, bytes(found.records)) == (0, b"")


class BusyTurns(RemoteTurns):
    """Turns of a process with much remote work: a Fetch of 4 partitions waits until all but one are given up."""

    def __init__(self) -> None:
        super().__init__()
        self.count = self.given_up = 0
        self.is_free = asyncio.Event()

    async def next(self) -> None:
        self.count += 1
        if self.count in range(2, 6):
            try:
                await self.is_free.wait()
            except asyncio.CancelledError:
                self.given_up += 1
                if self.given_up == 3:
                    self.is_free.set()
                raise


def test_however_many_reads_wait_an_answer_has_the_records_of_one_partition() -> None:
    fetch = Consumer(ScriptedBroker(PartitionOffsets(105, 200, 200))).new_fetch(BusyTurns())

    _, found = asyncio.run(asyncio.wait_for(filled_all(fetch, 50, partitions=4), 30))

    assert [bool(each.records) for each in found] == [True, False, False, False]
    assert {each.error_code for each in found} == {0}
    assert fetch.needs_share()


Result = TypeVar("Result")


class FullShare(RemoteShare):
    """The share of a process that does all the remote work it may; `places` are those that Fetches wait for."""

    def __init__(self) -> None:
        super().__init__()
        self.places: list[asyncio.Future[None]] = []
        self.counted = 0

    async def timed(self, work: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
        self.counted += 1
        return await work()

    def queue(self) -> asyncio.Future[None]:
        self.places.append(asyncio.get_running_loop().create_future())
        return self.places[-1]


def test_a_fetch_with_local_records_does_not_wait_for_its_place_and_the_next_one_takes_it() -> None:
    share = FullShare()
    fetch = Consumer(ScriptedBroker(PartitionOffsets(105, 200, 200))).new_fetch(share=share)

    async def three_times() -> list[bool]:
        answers = [await filled_all(fetch, 50, partitions=1, local=b"local") for _ in range(2)]
        share.places[0].set_result(None)
        answers.append(await filled_all(fetch, 50, partitions=1, local=b"local"))
        assert {each.error_code for _, found in answers for each in found} == {0}
        assert {bytes(local.records) for _, (_, local) in answers} == {b"local"}
        return [bool(remote.records) for _, (remote, _) in answers]

    assert asyncio.run(asyncio.wait_for(three_times(), 30)) == [False, False, True]
    assert len(share.places) == 1
    # What may not begin is not counted: nothing would pace it, and it would take the time of what may.
    assert share.counted == 1


def test_a_client_that_is_gone_leaves_its_place() -> None:
    share = FullShare()
    fetch = Consumer(ScriptedBroker(PartitionOffsets(105, 200, 200))).new_fetch(share=share)

    async def goes() -> None:
        waiting = asyncio.create_task(filled_all(fetch, 50, partitions=1))
        while not share.places:
            await asyncio.sleep(0)
        fetch.close()
        await waiting

    asyncio.run(asyncio.wait_for(goes(), 30))
    assert share.places[0].cancelled()


ACROSS = AbortedTransaction(7, 40)


def test_transactions_aborted_in_the_brokers_log_are_reported() -> None:
    broker = ScriptedBroker(PartitionOffsets(80, 200, 180), aborted=(ACROSS,))

    [found] = Consumer(broker).fetches(55, committed=True)

    assert (bytes(found.records[:8]), found.aborted) == ((50).to_bytes(8, "big"), (ACROSS,))


def test_a_transaction_whose_end_was_copied_meanwhile_is_looked_for_again() -> None:
    """The read that began before has no abort of it, and the broker is asked from the new end on."""
    broker = ScriptedBroker(PartitionOffsets(100, 200, 180), aborted=())
    consumer = Consumer(broker, Remote(ends=[REMOTE_END, 120]))

    consumer.fetches(50, 60, 70, committed=True)

    assert consumer.remote.begun == [50, 60]
    assert broker.fetched == [100, 120]


def test_records_of_a_transaction_whose_end_is_in_a_hole_are_an_error(caplog: pytest.LogCaptureFixture) -> None:
    consumer = Consumer(ScriptedBroker(PartitionOffsets(105, 200, 200)), Remote(decided=60))

    decided, undecided = consumer.fetches(50, 60, committed=True)

    assert (decided.error_code, int.from_bytes(decided.records[:8], "big")) == (0, 50)
    assert (undecided.error_code, bytes(undecided.records)) == (STORAGE_ERROR, b"")
    assert mentions(caplog.text, "offset 60", "read_committed")


def test_records_of_a_transaction_whose_end_the_broker_cannot_tell_yet_wait() -> None:
    consumer = Consumer(ScriptedBroker(PartitionOffsets(100, 200, 100)), Remote(decided=60))

    decided, undecided = consumer.fetches(50, 60, committed=True)

    assert int.from_bytes(decided.records[:8], "big") == 50
    assert (undecided.error_code, bytes(undecided.records)) == (0, b"")


def test_a_log_that_was_copied_and_trimmed_since_the_look_has_no_hole(caplog: pytest.LogCaptureFixture) -> None:
    broker = ScriptedBroker(PartitionOffsets(120, 200, 200))
    consumer = Consumer(broker, Remote(ends=[REMOTE_END, 120], decided=60))

    before, after = consumer.fetches(60, 60, committed=True)

    assert (before.error_code, bytes(before.records)) == (0, b"")
    assert (after.error_code, int.from_bytes(after.records[:8], "big")) == (0, 60)
    assert not caplog.records


def test_a_broker_that_a_quota_holds_back_is_no_alarm(caplog: pytest.LogCaptureFixture) -> None:
    [found] = Consumer(ScriptedBroker(PartitionOffsets(80, 200, 180), aborted=None)).fetches(55, committed=True)

    assert (found.error_code, bytes(found.records)) == (0, b"")
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_after_remote_records_the_next_answer_needs_room_for_them() -> None:
    consumer = Consumer()

    async def work() -> None:
        fetch = consumer.new_fetch()
        assert not fetch.needs_share()
        await filled(fetch, 55, committed=False)
        assert fetch.needs_share()
        assert not fetch.needs_share()

    asyncio.run(work())


def test_a_client_over_its_quota_gets_no_remote_records_until_its_debt_is_paid() -> None:
    consumer = Consumer(rate=100)

    async def work() -> None:
        fetch = consumer.new_fetch()
        mute_ms, first = await throttled(fetch, 50)
        assert len(first.records) > 100
        assert mute_ms == (len(first.records) - 100) * 10

        again_ms, none = await throttled(fetch, 60)
        assert (again_ms, none.error_code, len(none.records)) == (mute_ms, 0, 0)

        consumer.seconds = mute_ms / 1000 + 1
        assert len((await throttled(fetch, 60))[1].records) == len(first.records)

    asyncio.run(asyncio.wait_for(work(), 30))


def test_a_client_within_its_quota_is_not_throttled() -> None:
    consumer = Consumer(rate=1 << 20)

    async def work() -> None:
        mute_ms, found = await throttled(consumer.new_fetch(), 50)
        assert (mute_ms, len(found.records) > 0) == (0, True)

    asyncio.run(asyncio.wait_for(work(), 30))
