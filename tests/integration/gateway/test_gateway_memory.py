"""Many slow readers of a gateway with little memory: all are served, one after the other; none waits for ever."""

from __future__ import annotations

import asyncio
import hashlib
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace

import pytest

from integration.gateway.raw_readers import RawReader, raw_reader
from servers.real_kafka import RealKafka
from support.gateways import RunningGateway, copied_and_trimmed, running_gateway
from support.live_sites import LONG, LiveSite
from support.scraping import Scrape
from tiered_storage.kafka_log.records.record import Record
from tiered_storage.kafka_wire.fetch import FetchLimits, FetchPosition
from tiered_storage_airflow.demo_cluster.brokers import free_first_port

TOPIC = "gateway-memory"
LIMIT = 16 << 20
READERS = 10
BATCH = 7
VALUE_BYTES = 900_000
BATCHES = 4
SECONDS = 150
USED, MOST_USED, WAITS, CONNECTIONS = (
    f"remote_log_gateway_{name}"
    for name in ("memory_used_bytes", "memory_most_used_bytes", "memory_waits_total", "connections")
)


@dataclass(frozen=True)
class Sent:
    """The topic as the broker stored it: `digest` is the hash of its batches."""

    topic_id: str
    digest: str


@pytest.fixture(scope="module")
def site(real_kafka: RealKafka, tmp_path_factory: pytest.TempPathFactory) -> LiveSite:
    settings = {
        "gateway.port": free_first_port([1]),
        "gateway.metrics.port": free_first_port([0]),
        "gateway.memory.max.bytes": LIMIT,
    }
    return LiveSite(real_kafka, tmp_path_factory.mktemp("gateway-memory"), (TOPIC,), settings)


@pytest.fixture(scope="module")
def sent(site: LiveSite) -> Sent:
    """Batches that are larger than a reader's share of the memory, the first half of them remote."""
    client = site.kafka.client
    topic_id = client.create_topic(TOPIC, 1, LONG | {"max.message.bytes": "10000000", "segment.bytes": "8388608"})
    records = [Record(number, 1_700_000_000_000, None, bytes(VALUE_BYTES)) for number in range(BATCH * BATCHES)]
    client.produce(
        TOPIC, records, message_max_bytes=10_000_000, batch_size=10_000_000, batch_num_messages=BATCH, linger_ms=2000
    )
    stored = hashlib.sha256(b"".join(each.log_path.read_bytes() for each in site.local()))
    copied_and_trimmed(site, TOPIC)
    return Sent(topic_id, stored.hexdigest())


def elsewhere(site: LiveSite, settings: dict[str, int]) -> LiveSite:
    """The same remote log, for another gateway."""
    ports = {"gateway.port": free_first_port([1]), "gateway.metrics.port": free_first_port([0])}
    return replace(site, settings={**site.settings, **ports, **settings})


def metric(site: LiveSite, name: str) -> float:
    return Scrape.get(site.settings["gateway.metrics.port"]).value(name) or 0.0


async def wait_until(site: LiveSite, name: str, least: float, most: float = float("inf")) -> None:
    async with asyncio.timeout(SECONDS):
        while not least <= await asyncio.to_thread(metric, site, name) <= most:
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("is_remote", [True, False], ids=["remote", "local"])
def test_slow_readers_share_little_memory_and_all_finish(
    site: LiveSite, gateway: RunningGateway, sent: Sent, is_remote: bool
) -> None:
    end = BATCH * BATCHES
    first = [FetchPosition(TOPIC, 0, 0 if is_remote else end - BATCH, topic_id=sent.topic_id)]

    async def work() -> list[str]:
        async with AsyncExitStack() as opened:
            # Then the gateway knows how large chunks are.
            alone = await opened.enter_async_context(raw_reader(gateway.port, "alone"))
            assert await _read(alone, sent, end) == sent.digest
            readers = [
                await opened.enter_async_context(raw_reader(gateway.port, f"slow-{number}"))
                for number in range(READERS)
            ]
            waits = metric(site, WAITS)
            for each in readers:
                await each.ask(first, FetchLimits())
            # Nobody reads: there is memory for some answers, and the others wait.
            await wait_until(site, WAITS, waits + 1)
            assert metric(site, USED) > 0
            answers = await asyncio.gather(*(each.answer(first) for each in readers))
            assert {each.partitions[0].error_code for each in answers} == {0}
            return list(await asyncio.gather(*(_read(each, sent, end) for each in readers)))

    digests = asyncio.run(asyncio.wait_for(work(), SECONDS))

    assert digests == READERS * [sent.digest]
    one_batch = BATCH * VALUE_BYTES
    assert LIMIT < metric(site, MOST_USED) < LIMIT + 3 * one_batch < READERS * one_batch
    asyncio.run(wait_until(site, USED, 0, LIMIT))


async def _read(reader: RawReader, sent: Sent, end: int) -> str:
    return await reader.read_all(TOPIC, sent.topic_id, end, FetchLimits())


def test_a_client_over_its_quota_is_throttled_and_reads_everything(site: LiveSite, sent: Sent) -> None:
    rate = 4 << 20
    limited = elsewhere(site, {"gateway.remote.fetch.max.bytes.per.second.per.client": rate})
    throttle_times: list[float] = []

    async def work() -> str:
        async with raw_reader(limited.settings["gateway.port"], "greedy") as reader:
            reader.on_answer = lambda answer: throttle_times.append(answer.throttle_seconds)
            return await _read(reader, sent, BATCH * BATCHES)

    with running_gateway(limited.config, limited.settings["gateway.port"]):
        assert asyncio.run(asyncio.wait_for(work(), SECONDS)) == sent.digest
        scrape = Scrape.get(limited.settings["gateway.metrics.port"])

    remote = (BATCHES - 1) * BATCH * VALUE_BYTES
    named = {"user": "", "client_id": "greedy"}
    assert (scrape.value("remote_log_gateway_client_remote_bytes_total", **named, topic=TOPIC) or 0) >= remote
    assert scrape.value("remote_log_gateway_client_remote_fetch_seconds_count", **named)
    # A batch is more than the bucket ever holds.
    throttled = [each for each in throttle_times if each]
    assert len(throttled) >= BATCHES - 1
    assert scrape.value("remote_log_gateway_throttled_seconds_total") == pytest.approx(sum(throttled), abs=0.1)
    assert sum(throttled) >= (BATCHES - 1) * (BATCH * VALUE_BYTES - rate) / rate


def test_a_client_that_closes_its_half_and_reads_nothing_is_cut_off(site: LiveSite, sent: Sent) -> None:
    """Its answers fill all sockets' buffers: the gateway stops reading, and cannot see that the client left."""
    impatient = elsewhere(site, {"gateway.connections.max.idle.ms": 1000})
    position = [FetchPosition(TOPIC, 0, 0, topic_id=sent.topic_id)]

    async def work() -> None:
        async with raw_reader(impatient.settings["gateway.port"], "half-closed") as half_closed:
            for _ in range(3):
                await half_closed.ask(position, FetchLimits())
            await wait_until(impatient, CONNECTIONS, 1)
            half_closed.writer.write_eof()
            await wait_until(impatient, CONNECTIONS, 0, 0)

    with running_gateway(impatient.config, impatient.settings["gateway.port"]) as gateway:
        asyncio.run(asyncio.wait_for(work(), SECONDS))
        assert "Traceback" not in gateway.log.read_text()
