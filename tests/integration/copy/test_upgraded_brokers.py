"""Brokers under load are upgraded from 3.9 to 4.3, one after the other: copies continue, nothing is lost or doubled."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from integration.broker_faults import wait_for_replicas
from servers.kafka_programs import KafkaPrograms
from support.live_cluster import CopyLoop, LiveCluster, producer
from tiered_storage.kafka_log.files.meta_properties import META_PROPERTIES, MetaProperties
from tiered_storage_airflow.demo_cluster.brokers import NODES, BrokerCluster
from tiered_storage_airflow.demo_cluster.kafka_programs import KAFKA, BrokerProcess
from tiered_storage_airflow.demo_cluster.ledger import Ledger

EARLIER = "3.9.1"
SHORT_SEGMENTS = {"segment.ms": "10000"}
"""Neither version takes the other's setting for small segments."""


class UpgradedCluster(BrokerCluster):
    """Three brokers that can each continue with other programs, on the same directory."""

    def upgrade(self, node: int, programs: KafkaPrograms) -> None:
        """Stop a broker in order, and start it again from `programs`."""
        self.stop(node)
        self._processes[node] = BrokerProcess(programs, self.log_dir(node).parent, self.address(node))
        self.start(node)

    def versions(self, node: int) -> list[str]:
        """Return the versions of Kafka that a broker has logged since its first start, in order."""
        output = (self.log_dir(node).parent / "output.log").read_text(errors="replace")
        return list(dict.fromkeys(re.findall(r"Kafka version: (\S+)", output)))

    def identities(self) -> list[MetaProperties]:
        """Return the ids of the cluster, the broker and the directory that each directory has."""
        return [MetaProperties.read(self.log_dir(node) / META_PROPERTIES) for node in NODES]


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_a_cluster_that_is_upgraded_broker_by_broker_is_copied_on(
    kafka_programs: KafkaPrograms, state_directory: Path, tmp_path: Path
) -> None:
    topic, ledger = "upgraded", Ledger(tmp_path / "ledger.csv")
    with UpgradedCluster(kafka_programs.earlier(EARLIER, state_directory), tmp_path / "kafka") as brokers:
        brokers.create_topic(topic, 3, SHORT_SEGMENTS)
        identities = brokers.identities()
        site = LiveCluster(brokers, tmp_path, (topic,)).write()
        with CopyLoop(site) as copies, producer(site, topic, ledger):
            copies.wait_for_segments(3)
            for node in NODES:
                brokers.upgrade(node, kafka_programs)
                wait_for_replicas(brokers, topic)
                copies.wait_for_segments(3)
            # Brokers speak as the earlier version does until then.
            features = ("org.apache.kafka.tools.FeatureCommand", "--bootstrap-server", brokers.bootstrap_servers)
            kafka_programs.tool(*features, "upgrade", "--metadata", KAFKA.version.rpartition(".")[0])
            copies.wait_for_segments(3)

        site.catch_up()

        site.ensure_exactly_once(ledger, topic)
        assert [brokers.versions(node) for node in NODES] == [[EARLIER, KAFKA.version]] * len(NODES)
        assert brokers.identities() == identities
