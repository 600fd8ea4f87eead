"""A thousand connections over two thousand partitions, 200 of them readers of what only the remote log has."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from statistics import median

import pytest

from integration.gateway.gateway_crowd import CONNECTIONS, LOCAL_READERS, READERS, Crowd, LocalReaders, p99
from integration.gateway.gateway_scale import (
    PARTITIONS,
    RECORDS,
    TOPIC,
    ScaleGateway,
    ScaleTopic,
    allowed_memory,
    filled_and_trimmed,
    key_of,
    scale_gateway,
    scale_site,
)
from integration.gateway_readers import LibrdkafkaReader
from servers.kafka_programs import KafkaPrograms
from servers.real_kafka import RealKafka
from support.live_sites import LiveSite
from support.waiting import wait_for

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1800)]

MEASURED_SECONDS = 5.0
OPEN = "remote_log_gateway_connections"
KEPT_FILES = 8
"""Descriptors that a process opens once and keeps: connections to the metadata's database, one for each thread."""
LIBRDKAFKA = (("classic", "read_uncommitted"), ("classic", "read_committed"), ("consumer", "read_uncommitted"))
ENOUGH = PARTITIONS * RECORDS // 20
"""Records of librdkafka's consumers, which each read all partitions."""


@pytest.fixture(scope="module")
def site(kafka_programs: KafkaPrograms, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveSite]:
    root = tmp_path_factory.mktemp("gateway-scale")
    with RealKafka(kafka_programs, root / "kafka") as kafka:
        yield scale_site(kafka, root)


@pytest.fixture(scope="module")
def topic(site: LiveSite) -> ScaleTopic:
    return filled_and_trimmed(site)


@pytest.fixture
def gateway(site: LiveSite, topic: ScaleTopic) -> Iterator[ScaleGateway]:
    with scale_gateway(site) as started:
        yield started


def test_a_thousand_connections_share_two_processes_and_every_reader_gets_all_its_records(
    gateway: ScaleGateway, topic: ScaleTopic, record_testsuite_property: Callable[[str, object], None]
) -> None:
    files, memory = gateway.open_files(), gateway.memory()
    librdkafka = [LibrdkafkaReader(gateway.running.bootstrap_servers, [TOPIC], *each) for each in LIBRDKAFKA]
    with ExitStack() as running:
        local = running.enter_context(LocalReaders(topic, gateway.broker_port))
        crowd = running.enter_context(Crowd(topic, gateway.broker_port))
        assert gateway.metric(OPEN) == CONNECTIONS
        without = local.latencies(MEASURED_SECONDS)

        crowd.start_reading()
        with_readers = local.latencies(MEASURED_SECONDS)
        at_once = wait_until_all_have_records(crowd)
        with ExitStack() as consuming:
            for each in librdkafka:
                consuming.enter_context(each)
            wait_for(
                lambda: all(len(each.keys) >= ENOUGH or each.failures for each in librdkafka),
                lambda: f"librdkafka's consumers have {[len(each.keys) for each in librdkafka]} records",
            )
        progress = crowd.stop_reading()
        most = gateway.most_memory()

    # Each reader has compared all bytes of its share with those that the broker stored.
    assert len(progress) == READERS
    assert all(each.passes for each in progress)
    assert min(at_once) >= median(at_once) / 4
    for each in librdkafka:
        assert not each.failures
        assert not each.out_of_order()
        assert {place: key for place, key in each.keys.items() if key != key_of(place.partition, place.offset)} == {}
    # Half of the connections for each, with what the kernel makes of that.
    allowed = allowed_memory(CONNECTIONS * 2 // 3)
    assert max(after - before for before, after in zip(memory, most, strict=True)) <= allowed
    wait_for(lambda: gateway.metric(OPEN) == 0)
    wait_for(lambda: all(now <= then + KEPT_FILES for then, now in zip(files, gateway.open_files(), strict=True)))
    assert "Traceback" not in gateway.running.log.read_text()
    # No test depends on times: benchmarks/bench_gateway_scale.py judges them.
    figures = {
        "local readers, p99 without remote readers (ms)": round(p99(without) * 1000, 2),
        "local readers, p99 with them (ms)": round(p99(with_readers) * 1000, 2),
        "remote readers, the slowest answer (s)": round(max(each.slowest for each in progress), 2),
        "remote readers, until the last one had records (s)": round(max(each.until_first for each in progress), 2),
        "most memory of a process (MB)": max(most) // 1_000_000,
    }
    for name, value in figures.items():
        record_testsuite_property(name, value)
    assert min(len(without), len(with_readers)) >= LOCAL_READERS


def wait_until_all_have_records(crowd: Crowd) -> list[int]:
    """Return what each reader has once the typical one has read its share twice."""
    share = RECORDS * PARTITIONS // READERS
    wait_for(
        lambda: median(each.records for each in crowd.progress()) >= 2 * share,
        lambda: f"the readers have {sorted(each.records for each in crowd.progress())} records",
    )
    return [each.records for each in crowd.progress()]
