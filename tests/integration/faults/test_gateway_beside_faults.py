"""Clients of all kinds read whole topics through a gateway, while all that it stands on fails, one after the other."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from servers.kafka_programs import KafkaPrograms
from support.broker_faults import add_partitions, pass_leadership_on, wait_for_replicas
from support.gateway_readers import GatewayReader, LibrdkafkaReader, all_readers
from support.gateways import running_gateway
from support.live_cluster import SMALL_SEGMENTS, CopyLoop, TransactionalProducer, producer, rows_of, wait_for
from support.remote_servers import RemoteServers, store_is_gone
from tiered_storage_airflow.demo_cluster.brokers import NODES, free_first_port
from tiered_storage_airflow.demo_cluster.ledger import Ledger

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(2400)]

TOPIC, DECIDED = "read-beside-faults", "decided-beside-faults"
TRIMMED = {
    "remote.storage.enable": True,
    "local.deletion.allowed": True,
    "local.retention.ms": 1,
    "remote.deletion.allowed": True,
}
STORE_SECONDS = 60
CATCH_UP_SECONDS = 900
MORE = 200
"""Records that a reader has to get after a fault."""


def wait_for_more(readers: Sequence[GatewayReader]) -> None:
    """Wait until each reader has got some more records."""
    wanted = {reader.name: len(reader.keys) + MORE for reader in readers}
    wait_for(
        lambda: all(len(reader.keys) >= wanted[reader.name] for reader in readers),
        lambda: f"wanted {wanted}: {[(reader.name, len(reader.keys), reader.failures) for reader in readers]}",
    )


def test_each_client_gets_each_record_once_whatever_fails(
    remote_servers: RemoteServers, kafka_programs: KafkaPrograms, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    brokers, port = remote_servers.brokers, free_first_port(NODES)
    for name in (TOPIC, DECIDED):
        brokers.create_topic(name, 3, SMALL_SEGMENTS)
    topics = {"topics": dict.fromkeys((TOPIC, DECIDED), TRIMMED)}
    site = remote_servers.site(tmp_path, TOPIC, {**topics, "gateway.port": port})
    for name, value in site.environment.items():
        monkeypatch.setenv(name, value)
    ledger, decisions = Ledger(tmp_path / "ledger.csv"), Ledger(tmp_path / "decisions.csv")

    # A gateway needs metadata, also before anything is copied.
    site.open().close()
    with ExitStack() as gateway_runs, ExitStack() as running:
        gateway = gateway_runs.enter_context(running_gateway(site.config, port))
        through = gateway.bootstrap_servers
        load = running.enter_context(producer(site, TOPIC, ledger, bootstrap_servers=through))
        transactions = running.enter_context(TransactionalProducer(site, DECIDED, decisions))
        runs = running.enter_context(CopyLoop(site, "retain", "expire"))
        runs.wait_for_trims(6)
        assert min(site.log_starts(TOPIC).values()) > 0
        readers = all_readers(kafka_programs, through, TOPIC, DECIDED)
        for reader in readers:
            running.enter_context(reader)
        wait_for_more(readers)

        killed = brokers.leader(TOPIC, 0)
        brokers.kill(killed)
        wait_for_more(readers)
        brokers.start(killed)
        wait_for_replicas(brokers, TOPIC)

        gateway.kill()
        gateway_runs.enter_context(running_gateway(site.config, port))
        wait_for_more(readers)

        pass_leadership_on(brokers, TOPIC)
        wait_for_more(readers)

        add_partitions(brokers, TOPIC, 4)
        with store_is_gone(remote_servers):
            # It needs the store at once: the others may read what the brokers have.
            late = LibrdkafkaReader(through, [TOPIC, DECIDED], "consumer", "read_uncommitted")
            readers.append(running.enter_context(late))
            time.sleep(STORE_SECONDS)
        wait_for_more(readers)
        runs.wait_for_trims(4)

        load.stop()
        transactions.stop()
        acknowledged = ledger.acknowledged() | decisions.acknowledged()
        wait_for(
            lambda: not any(reader.unread(acknowledged) for reader in readers),
            lambda: str([(reader.name, reader.unread(acknowledged)[:3], reader.failures) for reader in readers]),
            CATCH_UP_SECONDS,
        )

    assert {place.partition for place in ledger.acknowledged().values()} == {0, 1, 2, 3}
    for reader in readers:
        assert (reader.name, reader.failures, reader.out_of_order()) == (reader.name, [], {})
        aborted = transactions.aborted & set(reader.keys.values())
        assert bool(aborted) == reader.sees_aborted, reader.name
    assert [row for result in runs.others["retain"] for row in rows_of(result) if row["segments"]]
    site.catch_up()
    site.ensure_exactly_once(ledger, TOPIC)
    site.ensure_exactly_once(decisions, DECIDED)
