"""Clients of all kinds read through a gateway, while everything it depends on fails, one after the other.

Beside those that follow the topics all the time, a reader begins in each fault at offset 0, which only the store has.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import pytest

from integration.broker_faults import add_partitions, pass_leadership_on, wait_for_replicas
from integration.gateway_readers import GatewayReader, LibrdkafkaReader, all_readers
from integration.remote_servers import RemoteServers, store_is_gone
from integration.transactional_load import TransactionalProducer
from servers.kafka_programs import KafkaPrograms
from support.gateways import running_gateway
from support.kafka_clients import CODECS
from support.live_cluster import RATE, SMALL_SEGMENTS, LiveCluster
from support.waiting import wait_for
from tiered_storage_airflow.demo_cluster.brokers import NODES, free_first_port
from tiered_storage_airflow.demo_cluster.ledger import Ledger, Place
from tiered_storage_airflow.demo_cluster.load import LoadProducer

TOPIC, DECIDED = "read-beside-faults", "decided-beside-faults"
TRIMMED = {
    "remote.storage.enable": True,
    "local.deletion.allowed": True,
    "local.retention.ms": 1,
    "remote.deletion.allowed": True,
}
STORE_SECONDS = 60
PAUSE_SECONDS = 0.005
"""After each record of a reader that begins in a fault: it still reads old records at the end."""
NO_CACHE = {"remote.log.reader.cache.memory.bytes": 0, "remote.log.reader.read.ahead.bytes": 0}
"""What a gateway read before a fault does not help it in the fault."""
CATCH_UP_SECONDS = 900
TRIM_SECONDS = 900
"""A run of a DAG takes a minute or two beside all the rest, and one fails while the store does."""
MORE = 200
"""Records that a reader has to get after a fault."""


def wait_for_more(readers: Sequence[GatewayReader]) -> None:
    """Wait until each reader has got some more records."""
    wanted = {reader.name: len(reader.keys) + MORE for reader in readers}
    wait_for(
        lambda: all(len(reader.keys) >= wanted[reader.name] for reader in readers),
        lambda: f"wanted {wanted}: {[(reader.name, len(reader.keys), reader.failures) for reader in readers]}",
    )


def ensure_none_twice(reader: GatewayReader, acknowledged: dict[bytes, Place], aborted: dict[bytes, Place]) -> None:
    """See that it got no record twice or at another place, and none of an aborted transaction that it did not want."""
    assert (reader.name, reader.failures, reader.out_of_order()) == (reader.name, [], {})
    assert (reader.name, reader.elsewhere(acknowledged | aborted)) == (reader.name, [])
    if not reader.sees_aborted:
        assert not aborted.keys() & set(reader.keys.values()), reader.name


def producers(site: LiveCluster, ledger: Ledger, through: str) -> list[LoadProducer]:
    """A producer in each codec; they share the usual rate."""
    properties = {"bootstrap.servers": through}
    return [
        LoadProducer(codec, TOPIC, {**properties, "compression.type": codec}, ledger, RATE // len(CODECS))
        for codec in CODECS
    ]


def wait_for_trims(site: LiveCluster, partitions: Mapping[str, int]) -> None:
    """Wait until the brokers have deleted records of so many partitions of each topic."""

    def starts() -> dict[str, dict[int, int]]:
        return {topic: site.log_starts(topic, count) for topic, count in partitions.items()}

    def are_trimmed() -> bool:
        found = starts()
        return all(len(found[topic]) == count and min(found[topic].values()) > 0 for topic, count in partitions.items())

    wait_for(are_trimmed, lambda: f"never trimmed: {starts()}", TRIM_SECONDS)


def site_of_readers(
    servers: RemoteServers, folder: Path, patched: pytest.MonkeyPatch, settings: Mapping[str, object] | None = None
) -> LiveCluster:
    """Make both topics, and return a remote log of them, with `settings`; `patched` gets its environment."""
    for name in (TOPIC, DECIDED):
        servers.brokers.create_topic(name, 3, SMALL_SEGMENTS)
    topics = {"topics": dict.fromkeys((TOPIC, DECIDED), TRIMMED)}
    own = {**topics, **NO_CACHE, "gateway.port": free_first_port(NODES), **(settings or {})}
    site = servers.site(folder, TOPIC, own)
    for name, value in site.environment.items():
        patched.setenv(name, value)
    # A gateway needs metadata, also before anything is copied.
    site.open().close()
    return site


def read_beside_faults(
    servers: RemoteServers, programs: KafkaPrograms, site: LiveCluster, runs: AbstractContextManager[object]
) -> None:
    """See that each client gets each record once, whatever fails, while `runs` copy, trim and expire."""
    brokers, port = servers.brokers, site.settings["gateway.port"]
    ledger, decisions = Ledger(site.root / "ledger.csv"), Ledger(site.root / "decisions.csv")
    with ExitStack() as gateway_runs, ExitStack() as running:
        gateway = gateway_runs.enter_context(running_gateway(site.config, port))
        through = gateway.bootstrap_servers
        loads = [running.enter_context(each) for each in producers(site, ledger, through)]
        transactions = running.enter_context(TransactionalProducer(site, DECIDED, decisions))
        running.enter_context(runs)
        wait_for_trims(site, {TOPIC: 3, DECIDED: 3})
        readers = all_readers(programs, through, TOPIC, DECIDED)
        for reader in readers:
            running.enter_context(reader)
        wait_for_more(readers)

        @contextmanager
        def fault(name: str, protocol: str, isolation: str, pause_seconds: float = PAUSE_SECONDS) -> Iterator[None]:
            """Begin a reader at offset 0; at the end of the fault, it has not come to what the brokers have."""
            reader = LibrdkafkaReader(through, [TOPIC, DECIDED], protocol, isolation, name, pause_seconds)
            readers.append(running.enter_context(reader))
            yield
            assert reader.lags(TOPIC, site.log_starts(TOPIC)), name
            reader.pause_seconds = 0
            wait_for_more(readers)

        killed = brokers.leader(TOPIC, 0)
        with fault("killed-broker", "classic", "read_committed"):
            brokers.kill(killed)
            wait_for_more(readers)
        brokers.start(killed)
        wait_for_replicas(brokers, TOPIC)

        with fault("killed-gateway", "consumer", "read_uncommitted"):
            wait_for_more(readers)
            gateway.kill()
            gateway_runs.enter_context(running_gateway(site.config, port))

        with fault("moved-leader", "consumer", "read_committed"):
            pass_leadership_on(brokers, TOPIC)
            add_partitions(brokers, TOPIC, 4)

        # Without a pause: nothing but the store holds this reader up.
        with fault("lost-store", "classic", "read_uncommitted", 0), store_is_gone(servers):
            time.sleep(STORE_SECONDS)
        wait_for_trims(site, {TOPIC: 4})

        for each in loads:
            each.stop()
        transactions.stop()
        acknowledged = ledger.acknowledged() | decisions.acknowledged()

        def unread() -> dict[str, list[str]]:
            """The records each reader still has to read, with aborted ones if it gets them."""
            wanted = {True: acknowledged | transactions.aborted, False: acknowledged}
            return {reader.name: left for reader in readers if (left := reader.unread(wanted[reader.sees_aborted]))}

        wait_for(
            lambda: not unread(), lambda: str({name: left[:3] for name, left in unread().items()}), CATCH_UP_SECONDS
        )

    assert {place.partition for place in ledger.acknowledged().values()} == {0, 1, 2, 3}
    for reader in readers:
        ensure_none_twice(reader, acknowledged, transactions.aborted)
    site.catch_up()
    site.ensure_exactly_once(ledger, TOPIC)
    site.ensure_exactly_once(decisions, DECIDED)
