"""Three brokers under load delete remote, consumed records, while they are killed and partitions and leaders move."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from threading import Event

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException

from integration.broker_faults import pass_leadership_on, reassign, wait_for_replicas
from servers.kafka_programs import KafkaPrograms
from support.live_cluster import RATE, SMALL_SEGMENTS, CopyLoop, LiveCluster, producer, rows_of
from support.waiting import wait_for
from tiered_storage_airflow.demo_cluster.brokers import NODES, BrokerCluster
from tiered_storage_airflow.demo_cluster.ledger import Ledger
from tiered_storage_airflow.demo_cluster.load import Background

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1800)]

TRIMMED = {"remote.storage.enable": True, "local.deletion.allowed": True, "local.retention.ms": 1}
PROTOCOLS = ("classic", "consumer")
"""Those of consumer groups: the second one is that of KIP-848."""
STEP = 50
"""Records that a group reads at once."""


@pytest.fixture
def brokers(kafka_programs: KafkaPrograms, tmp_path: Path) -> Iterator[BrokerCluster]:
    with BrokerCluster(kafka_programs, tmp_path / "kafka") as started:
        yield started


class SlowReader(Background):
    """A consumer group that reads `topic` at two thirds of RATE, until it may hurry.

    It commits what it has read after each step. What brokers delete before that, it never gets.
    """

    def __init__(self, site: LiveCluster, topic: str, protocol: str) -> None:
        """Start nothing yet."""
        self.group = f"reads-on-{protocol}"
        super().__init__(self.group)
        self._topic = topic
        self._properties = {
            "bootstrap.servers": site.kafka.bootstrap_servers,
            "group.id": self.group,
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "topic.metadata.refresh.interval.ms": 2000,
            "log_level": 0,
        }
        self._hurries = Event()
        self.keys: set[bytes] = set()
        """The keys of all records that came."""
        self.reached: dict[int, int] = {}
        """Where it has read each partition to: no offset that it has committed is larger."""
        self.committed: dict[int, int] = {}
        """What it had reached when the brokers last acknowledged a commit."""

    def hurry(self) -> None:
        """Read without a pause from now on."""
        self._hurries.set()

    def has_read(self, ledger: Ledger) -> bool:
        """Whether it has read all of `ledger`, and committed that."""
        return ledger.acknowledged().keys() <= self.keys and self.committed == self.reached

    def _run(self) -> None:
        with closing(Consumer(self._properties)) as consumer:
            consumer.subscribe([self._topic])
            while not self._stopped.is_set():
                for message in consumer.consume(STEP, timeout=0.5):
                    if message.error() is None:
                        self.keys.add(bytes(message.key() or b""))
                        number, end = int(message.partition() or 0), int(message.offset() or 0) + 1
                        self.reached[number] = max(end, self.reached.get(number, 0))
                self._commit(consumer)
                if not self._hurries.is_set():
                    self._stopped.wait(STEP * 1.5 / RATE)

    def _commit(self, consumer: Consumer) -> None:
        # What the coordinator does not take is committed after the next step, or read again.
        try:
            if any(each.error for each in consumer.commit(asynchronous=False)):
                return
        except KafkaException as error:
            if error.args[0].code() != KafkaError._NO_OFFSET:
                return
        self.committed = dict(self.reached)


def ensure_the_rest_is_there(site: LiveCluster, topic: str, readers: Sequence[SlowReader]) -> None:
    """Check that no broker deleted a record that is not remote, or that a group has not read."""
    starts = site.log_starts(topic)
    # All only grow: a log start that was right stays below them.
    limits = [site.remote_ends(), *(dict(each.reached) for each in readers)]
    assert starts
    assert all(start <= min(each[number] for each in limits) for number, start in starts.items()), (starts, limits)


def test_brokers_that_are_killed_or_get_other_partitions_delete_only_what_is_remote_and_read(
    brokers: BrokerCluster, tmp_path: Path
) -> None:
    topic, ledger = "trimmed-under-faults", Ledger(tmp_path / "ledger.csv")
    brokers.create_topic(topic, 3, SMALL_SEGMENTS)
    site = LiveCluster(brokers, tmp_path, (topic,), {"topics": {topic: TRIMMED}}).write()
    with ExitStack() as reading:
        readers = [reading.enter_context(SlowReader(site, topic, protocol)) for protocol in PROTOCOLS]
        with producer(site, topic, ledger):
            # Before a group has committed anything, only its limits keep a partition.
            wait_for(
                lambda: all(len(each.committed) == 3 for each in readers),
                lambda: f"the groups committed {[each.committed for each in readers]}",
            )
            with CopyLoop(site, "retain", "expire") as runs:
                runs.wait_for_trims(3)
                for node in NODES:
                    brokers.kill(node)
                    runs.wait_for_trims()
                    ensure_the_rest_is_there(site, topic, readers)
                    brokers.start(node)
                    wait_for_replicas(brokers, topic)
                for _ in range(2):
                    pass_leadership_on(brokers, topic)
                    runs.wait_for_trims(3)
                    ensure_the_rest_is_there(site, topic, readers)
                reassign(brokers, topic, runs)
                runs.wait_for_trims(3)
                ensure_the_rest_is_there(site, topic, readers)
        for each in readers:
            each.hurry()
        wait_for(
            lambda: all(each.has_read(ledger) for each in readers),
            lambda: f"unread: {[len(ledger.acknowledged().keys() - each.keys) for each in readers]}",
        )

    held_back = [row["held_back"] or "" for result in runs.others["retain"] for row in rows_of(result)]
    for each in readers:
        assert any(f"{each.group} at offset" in why for why in held_back), (each.group, held_back)
    everything = [*runs.results, *runs.others["retain"], *runs.others["expire"]]
    assert [result.err for result in everything if "Traceback" in result.err] == []
    site.catch_up()
    retained = site.run("retain")
    assert retained.exit_code == 0, retained.err
    # Trimming catches up by itself too: everything remote was read, and is gone from the brokers.
    assert site.log_starts(topic) == site.remote_ends()
    counts = site.ensure_exactly_once(ledger, topic)
    assert counts.remote > counts.local
