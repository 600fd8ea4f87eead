"""Readers beside three brokers under load, while the store or the metadata's database hangs."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_END, Consumer, TopicPartition

from integration.gateway_readers import GatewayReader
from integration.remote_servers import Outage, RemoteServers, database_hangs, store_hangs
from support.gateways import running_gateway
from support.live_cluster import RATE, SMALL_SEGMENTS, CopyLoop, producer
from support.waiting import wait_for
from tiered_storage.errors import ReadTimedOutError
from tiered_storage.remote_log.read.blocking_reader import BlockingLogReader
from tiered_storage_airflow.demo_cluster.brokers import NODES, free_first_port
from tiered_storage_airflow.demo_cluster.ledger import Ledger

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1500)]

TRIMMED = {"remote.storage.enable": True, "local.deletion.allowed": True, "local.retention.ms": 1}
REMOTE, LOCAL = 0, (1, 2)
"""The partition read from its first offset, and the partitions read from their end."""


class PlacedReader(GatewayReader):
    """A consumer without a group that reads the partitions of `topic` from the offsets `begins` on."""

    def __init__(self, bootstrap_servers: str, topic: str, begins: Mapping[int, int]) -> None:
        """Start nothing yet."""
        super().__init__(f"reader of {topic}")
        self._properties = {"bootstrap.servers": bootstrap_servers, "group.id": "placed", "log_level": 0}
        self._begins = [TopicPartition(topic, number, offset) for number, offset in begins.items()]

    def _run(self) -> None:
        with closing(Consumer({**self._properties, "enable.auto.commit": False})) as consumer:
            consumer.assign(self._begins)
            while not self._stopped.is_set():
                for message in consumer.consume(1000, timeout=0.5):
                    self.take_message(message)


@pytest.mark.parametrize("outage", [store_hangs, database_hangs], ids=["store", "database"])
def test_local_records_come_while_remote_ones_wait_for_what_hangs(
    remote_servers: RemoteServers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outage: Outage
) -> None:
    topic, ledger = outage.__name__.replace("_", "-"), Ledger(tmp_path / "ledger.csv")
    port = free_first_port(NODES)
    # One broker answers for all of them: remote and local records are asked for together.
    remote_servers.brokers.create_topic(topic, 3, SMALL_SEGMENTS, [[1, 2, 3]] * 3)
    site = remote_servers.site(tmp_path, topic, {"topics": {topic: TRIMMED}, "gateway.port": port})
    for name, value in site.environment.items():
        monkeypatch.setenv(name, value)
    with ExitStack() as running:
        load = running.enter_context(producer(site, topic, ledger))
        with CopyLoop(site, "retain") as runs:
            runs.wait_for_trims(3)
        gateway = running.enter_context(running_gateway(site.config, port))
        remote_log = running.enter_context(site.open())
        reader = running.enter_context(BlockingLogReader(remote_log.open_log_reader()))
        [partition] = [each for each in remote_log.context.segments.list_partitions() if each.partition == REMOTE]
        begins = {REMOTE: 0, **dict.fromkeys(LOCAL, OFFSET_END)}
        with outage(remote_servers):
            client = running.enter_context(PlacedReader(gateway.bootstrap_servers, topic, begins))
            wait_for(
                lambda: all(len(client.offsets[topic, number]) > RATE for number in LOCAL),
                lambda: f"local records do not come: {client.offsets}",
            )
            assert client.offsets[topic, REMOTE] == []
            with pytest.raises(ReadTimedOutError) as timed_out:
                list(reader.batches(partition, 0, deadline_ms=2000))
        assert timed_out.value.retriable
        # Both continue by themselves.
        assert next(iter(reader.records(partition, 0))).offset == 0
        load.stop()
        wanted = {key: place for key, place in ledger.acknowledged().items() if place.partition == REMOTE}
        wait_for(
            lambda: not client.unread(wanted),
            lambda: f"{len(client.unread(wanted))} unread: {client.offsets[topic, REMOTE]}",
        )
    assert client.out_of_order() == {}

    site.catch_up()

    site.ensure_exactly_once(ledger, topic)
