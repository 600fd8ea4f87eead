"""What was copied from a running broker, by Fetch or from its files, starts a real broker once it is restored.

The broker then serves all records, and producers continue: also those that were open when its disk was lost.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Producer

from integration.lost_topics import MANY, PARTITIONS, ROUNDS, TRANSACTIONS, ServedTopic, write_rest, write_round
from integration.stored_segments import ensure_as_stored
from servers.kafka_programs import KafkaPrograms
from servers.real_kafka import RealKafka
from support.command_line import mentions
from support.kafka_clients import send
from support.live_sites import LONG, SMALL_SEGMENTS, LiveSite, finished
from tiered_storage.clock import wall_clock
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import (
    LEADER_EPOCH_CHECKPOINT,
    EpochEntry,
    read_leader_epochs,
)
from tiered_storage.kafka_log.records.record import Record
from tiered_storage.remote_log.storage.listable_storage import ListableStorage
from tiered_storage.remote_log.storage.remote_storage_manager import IndexKind

FETCHED, FROM_FILES = "fetched", "from-files"
LATE = "late"
"""By Fetch, of a topic whose first records were deleted before it was tiered: nobody knows the producers of then."""


@dataclass(frozen=True, slots=True)
class Copied:
    """A topic of a running broker with its remote log, and what the broker served of it before the loss.

    `survivor` is an idempotent producer that wrote `sent` to partition TRANSACTIONS, in all ROUNDS, and is still open.
    """

    site: LiveSite
    served: ServedTopic
    survivor: Producer
    sent: tuple[Record, ...]

    @property
    def topic(self) -> str:
        return self.served.topic

    def restore(self, log_dir: Path) -> str:
        """Restore it into a log directory; return what was said."""
        result = self.site.run("restore", self.topic, "--to-directory", log_dir, "--validation", "records")
        assert result.exit_code == 0, result.out + result.err
        return " ".join((result.out + result.err).split())

    def epochs(self, log_dir: Path) -> tuple[EpochEntry, ...]:
        return read_leader_epochs(log_dir / f"{self.topic}-{MANY}" / LEADER_EPOCH_CHECKPOINT)

    def ensure_survivor_continues(self, kafka: RealKafka) -> None:
        """See that it continues where it was, and that the log has its records once."""
        more = send(self.survivor, self.topic, TRANSACTIONS, some_records(50))
        found = kafka.client.consume_all(self.topic, TRANSACTIONS, start=OFFSET_BEGINNING)
        assert [one for one in found if one.key == b"survivor"] == [*self.sent, *more]


def some_records(count: int) -> list[Record]:
    """Records of now: a broker that starts has forgotten producers that wrote none for a day."""
    return [Record(0, wall_clock(), b"survivor", f"value {number}".encode()) for number in range(count)]


def producers_of(kafka: RealKafka, topic: str) -> str:
    """What the broker knows of the producers: epochs, last sequences and timestamps, and open transactions."""
    servers = ("--bootstrap-server", kafka.bootstrap_servers)
    return kafka.tool(
        "org.apache.kafka.tools.TransactionsCommand", *servers, "describe-producers",
        "--topic", topic, "--partition", str(TRANSACTIONS),
    )  # fmt: skip


def copied(site: LiveSite, survivor: Producer, sent: list[Record]) -> Copied:
    """Copy all of a site's topic, and read it from its broker."""
    [topic], kafka = site.topics, site.kafka
    while site.copied():
        pass
    for number in range(PARTITIONS):
        if topic == LATE:
            assert not has_snapshots(site, number)
        else:
            # Of the segment that the broker was restarted in, it has other index entries.
            assert ensure_as_stored(site, number, indexes=False) > 3
    site.audited()
    with site.open() as remote_log:
        ends = {number: finished(remote_log, number)[-1].end_offset + 1 for number in range(PARTITIONS)}
    assert sent[-1].offset < ends[TRANSACTIONS]
    return Copied(site, ServedTopic.by(kafka.client, topic, ends), survivor, tuple(sent))


def has_snapshots(site: LiveSite, partition: int) -> bool:
    """Return whether any remote segment of a partition has a producer snapshot."""
    with site.open() as remote_log:
        storage, segments = remote_log.context.storage, finished(remote_log, partition)
        assert isinstance(storage, ListableStorage)
        assert len(segments) > 3
        return any(IndexKind.PRODUCER_SNAPSHOT in storage.fetch_bundle(segment) for segment in segments)


def delete_first_round(kafka: RealKafka, topic: str, survivors: list[Record]) -> list[Record]:
    """Let the log begin in the middle of batches, and of a transaction; return which of `survivors` it still has."""
    starts = {MANY: 105, TRANSACTIONS: survivors[len(survivors) // ROUNDS - 1].offset + 8}
    kafka.client.delete_records_of(topic, starts)
    return [one for one in survivors if one.offset >= starts[TRANSACTIONS]]


@pytest.fixture(scope="module")
def topics(
    request: pytest.FixtureRequest, kafka_programs: KafkaPrograms, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Copied]]:
    """A topic for each way that a test names, of one running broker, written under several leader epochs."""
    ways: tuple[str, ...] = request.param
    root = tmp_path_factory.mktemp("copied-live")
    with RealKafka(kafka_programs, root / "broker") as kafka:
        survivors = {way: kafka.client.producer(enable_idempotence="true") for way in ways}
        sent: dict[str, list[Record]] = {way: [] for way in ways}
        for way in ways:
            kafka.client.create_topic(way, PARTITIONS, SMALL_SEGMENTS | LONG)
        for round_ in range(ROUNDS):
            if round_:
                with kafka.stopped():
                    pass  # another leader epoch
            for way in ways:
                write_round(kafka.client, way, round_)
                sent[way] += send(survivors[way], way, TRANSACTIONS, some_records(50))
        properties = {FROM_FILES: {"broker.log.dirs": f"1={kafka.log_dir}"}}
        found = {}
        for way in ways:
            write_rest(kafka.client, way)
            if way == LATE:
                sent[way] = delete_first_round(kafka, way, sent[way])
            folder = root / way
            folder.mkdir()
            site = LiveSite(kafka, folder, (way,), properties.get(way, {}))
            found[way] = copied(site, survivors[way], sent[way])
        yield found


@pytest.mark.parametrize(
    "topics",
    [(FETCHED,), *(pytest.param((way,), marks=pytest.mark.nightly) for way in (FROM_FILES, LATE))],
    indirect=True,
    ids="".join,
)
def test_the_cluster_that_lost_it_gets_it_back_with_its_producers(topics: dict[str, Copied]) -> None:
    [lost] = topics.values()
    kafka = lost.site.kafka
    known = producers_of(kafka, lost.topic)
    with kafka.stopped() as log_dir:
        epochs = lost.epochs(log_dir)
        for number in range(PARTITIONS):
            shutil.rmtree(log_dir / f"{lost.topic}-{number}")
        said = lost.restore(log_dir)
        assert mentions(said, "Kafka itself tiers it", "brokers cannot be asked")
        assert lost.epochs(log_dir) == epochs[:ROUNDS]

    assert producers_of(kafka, lost.topic) == known
    lost.served.ensure_served(kafka.client)
    lost.served.ensure_continues(kafka.client)
    lost.ensure_survivor_continues(kafka)


@pytest.mark.nightly
@pytest.mark.parametrize("topics", [(FETCHED, FROM_FILES)], indirect=True, ids="+".join)
def test_a_fresh_cluster_gets_it_under_topics_of_its_own(
    topics: dict[str, Copied], kafka_programs: KafkaPrograms, tmp_path: Path
) -> None:
    with RealKafka(kafka_programs, tmp_path / "fresh") as kafka:
        for each in topics.values():
            kafka.client.create_topic(each.topic, PARTITIONS, SMALL_SEGMENTS)
        with kafka.stopped() as log_dir:
            for each in topics.values():
                each.restore(log_dir)
        for each in topics.values():
            each.served.ensure_served(kafka.client)
            each.served.ensure_continues(kafka.client)
