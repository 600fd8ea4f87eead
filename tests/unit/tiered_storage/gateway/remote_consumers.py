"""A consumer's Fetches through a gateway, where the broker and the remote log are scripts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import cast
from uuid import UUID

from kio.index import load_payload_module
from kio.schema.errors import ErrorCode
from kio.static.constants import EntityType

from support.served_clusters import gateway_limits, served_cluster
from support.transactions import data
from tiered_storage.errors import TieredStorageError
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
from tiered_storage.kafka_log.records.segment_scan import SegmentScanner
from tiered_storage.kafka_wire.connections.apis import FETCH
from tiered_storage.kafka_wire.connections.frames import Cursor, encode_answer, entity
from tiered_storage.kafka_wire.fetch_layout import PartitionEntry, read_fetch
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
from unit.tiered_storage.gateway.brokers import RAW_ID, ScriptedBroker
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
    opened: list[AsyncGenerator[FetchedBatches, None]] = field(default_factory=list)

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
        self.opened.append(self._batches(offset))
        return GivenStream(self.opened[-1], self.are_there)

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
