"""Answers that are cut or garbled on their way: an error names them, and nothing wrong reaches the store.

Nor do brokers delete what is not remote.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest

from servers.kafka_programs import KafkaPrograms
from servers.kafka_proxy import Fault, FetchedFrame, KafkaProxy, kafka_proxy
from servers.real_kafka import RealKafka
from support.bad_clusters import without_patience
from support.command_line import mentions
from support.live_sites import LONG, SMALL_SEGMENTS, LiveSite, ensure_as_stored
from support.records import varied_records
from tiered_storage.kafka_log.records.record import Record
from tiered_storage.kafka_wire.cluster import ClusterClient
from tiered_storage.kafka_wire.connections.apis import (
    DELETE_RECORDS,
    LIST_OFFSETS,
    METADATA,
    OFFSET_FOR_LEADER_EPOCH,
    Api,
)
from tiered_storage.kafka_wire.metadata import TopicPartition
from tiered_storage.kafka_wire.partition_requests import ListedOffset, OffsetSpec
from tiered_storage.remote_log.coverage import finished
from tiered_storage.remote_log.read.blocking_reader import BlockingLogReader

MOST_SEGMENTS = 8
SAMPLE_BYTES = 64 << 10
"""What a plan asks for: only the answers to workers are garbled."""


def flip_a_record(frame: FetchedFrame) -> None:
    """Change a byte in the middle of a batch: its checksum tells."""
    frame.records[100] ^= 1


def flip_a_size(frame: FetchedFrame) -> None:
    """Let the first batch claim to be larger than the answer."""
    frame.records[8] ^= 0x40


def shorten_a_batch(frame: FetchedFrame) -> None:
    """Let the first batch end in its middle."""
    size = struct.unpack_from(">i", frame.records, 8)[0]
    struct.pack_into(">i", frame.records, 8, size - 30)


def flip_an_offset(frame: FetchedFrame) -> None:
    """Put the last whole batches elsewhere, by a bit that no checksum covers."""
    at = 0
    for _ in range(3):
        at += 12 + struct.unpack_from(">i", frame.records, at + 8)[0]
    if frame.times % 2:
        frame.records[at + 6] ^= 0x40


def flip_an_epoch(frame: FetchedFrame) -> None:
    """Change the leader epoch of a batch, which no checksum covers."""
    frame.records[15] ^= 1


def cut(frame: FetchedFrame) -> None:
    """Lose the second half and the connection."""
    del frame.data[len(frame.data) // 2 :]


def flip_the_correlation(frame: FetchedFrame) -> None:
    """Let it answer another request."""
    frame.data[7] ^= 1


FAULTS: tuple[tuple[Fault, list[str]], ...] = (
    (flip_a_record, ["CRC-32C"]),
    (flip_a_size, ["no whole batch"]),
    (shorten_a_batch, ["CRC-32C"]),
    (flip_an_offset, ["different offsets"]),
    (flip_an_epoch, ["leader epoch"]),
    (cut, ["closed the connection"]),
    (flip_the_correlation, ["correlation id"]),
)
SOUND = len(FAULTS)
TOPIC = "orders"


@pytest.fixture(scope="module")
def proxied(
    kafka_programs: KafkaPrograms, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[RealKafka, KafkaProxy]]:
    """A broker that clients reach only through a proxy."""
    with kafka_proxy() as proxy:
        advertised = {"OUTSIDE": proxy.address}
        listeners = {"OUTSIDE": "PLAINTEXT"}
        with RealKafka(
            kafka_programs, tmp_path_factory.mktemp("proxied-kafka"), listeners=listeners, advertised=advertised
        ) as kafka:
            proxy.broker = kafka.address("OUTSIDE")
            yield kafka, proxy


def test_garbled_answers_fail_their_partitions_alone_and_leave_nothing_wrong(
    proxied: tuple[RealKafka, KafkaProxy], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kafka, proxy = proxied
    site = LiveSite(kafka, tmp_path, (TOPIC,), {"bootstrap.servers": proxy.address})
    kafka.client.create_topic(TOPIC, SOUND + 1, SMALL_SEGMENTS | LONG)
    for partition in range(SOUND + 1):
        kafka.client.produce(TOPIC, varied_records(400, seed=1), partition=partition, batch_num_messages=20)
    proxy.faults = {number: fault for number, (fault, _) in enumerate(FAULTS)}
    proxy.spared_bytes = SAMPLE_BYTES

    with monkeypatch.context() as patient:
        without_patience(patient, 3)
        result = site.run("copy", "--json")

    assert result.exit_code == 1
    assert {row["partition"] for row in result.rows} == {f"{TOPIC}-{SOUND}"}
    said = {
        fault.__name__: [line for line in result.err.splitlines() if f"{TOPIC}-{number}" in line]
        for number, (fault, _) in enumerate(FAULTS)
    }
    unnamed = [fault.__name__ for fault, words in FAULTS if not mentions("\n".join(said[fault.__name__]), *words)]
    assert unnamed == [], said

    proxy.faults = {}
    while site.copied():
        pass
    for partition in range(SOUND + 1):
        assert ensure_as_stored(site, partition) >= 2
    site.audited()


def test_an_answer_that_is_cut_once_is_asked_for_again(proxied: tuple[RealKafka, KafkaProxy], tmp_path: Path) -> None:
    kafka, proxy = proxied
    again = "asked-for-again"
    site = LiveSite(kafka, tmp_path, (again,), {"bootstrap.servers": proxy.address})
    kafka.client.create_topic(again, 1, SMALL_SEGMENTS | LONG)
    kafka.client.produce(again, varied_records(400, seed=1), batch_num_messages=20)
    cuts: list[int] = []

    def once(frame: FetchedFrame) -> None:
        cuts.append(frame.times)
        if len(cuts) == 1:
            cut(frame)

    proxy.faults = {0: once}
    proxy.spared_bytes = SAMPLE_BYTES

    assert site.copied()
    assert len(cuts) > 1
    site.audited()


@dataclass
class Garbler:
    """Spoils every other answer: a bit of it changes, or it is cut, or it answers another request."""

    random: Random
    _seen: int = 0
    spoilt: list[str] = field(default_factory=list)
    """What was done."""

    def __call__(self, answer: bytearray) -> None:
        self._seen += 1
        if self._seen % 2 == 0:
            return
        how = self.random.choice(["bit", "bit", "bit", "cut", "correlation"])
        if how == "bit":
            at = self.random.randrange(8, len(answer))
            answer[at] ^= 1 << self.random.randrange(8)
            how = f"bit of byte {at} of {len(answer)}"
        elif how == "cut":
            del answer[len(answer) // 2 :]
        else:
            answer[7] ^= 1
        self.spoilt.append(how)


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(2, 10))])
@pytest.mark.parametrize("api", [LIST_OFFSETS, OFFSET_FOR_LEADER_EPOCH, METADATA, DELETE_RECORDS], ids=str)
def test_garbled_answers_about_a_partition_lose_nothing(
    proxied: tuple[RealKafka, KafkaProxy], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, api: Api, seed: int
) -> None:
    kafka, proxy = proxied
    topic = f"garbled-{api}-{seed}"
    trimmed = {"remote.storage.enable": True, "local.deletion.allowed": True, "local.retention.ms": 1}
    site = LiveSite(kafka, tmp_path, (topic,), {"bootstrap.servers": proxy.address, "topics": {topic: trimmed}})
    kafka.client.create_topic(topic, 1, SMALL_SEGMENTS | LONG)
    sent = kafka.client.produce(topic, varied_records(300, seed=1), batch_num_messages=20)
    assert site.copied()
    garbler = Garbler(Random(f"{api} {seed}"))  # noqa: S311 - nothing secret
    proxy.faults = {}
    for round_number in range(2):
        sent += kafka.client.produce(topic, varied_records(300, seed=2 + round_number), batch_num_messages=20)
        proxy.changes = {api.key: garbler}
        with monkeypatch.context() as patient:
            without_patience(patient, 1)
            # A garbled end makes a plan of as many segments as a run may copy: the brokers are asked for each.
            results = [site.run("copy", "--max-segments", MOST_SEGMENTS), site.run("retain")]
        proxy.changes = {}
        for result in results:
            assert result.exit_code in {0, 1}, (result, garbler.spoilt)
            assert "Traceback" not in result.err, (result, garbler.spoilt)
        ensure_all_is_there(site, sent)
    assert garbler.spoilt

    while site.copied():
        pass
    retained = site.run("retain")
    assert retained.exit_code == 0, (retained, garbler.spoilt)
    assert ensure_all_is_there(site, sent) == log_start(site) > 0
    site.audited()


def ensure_all_is_there(site: LiveSite, sent: list[Record]) -> int:
    """See that the remote log begins with what was `sent`, and reaches to the broker's log start; return its end."""
    with site.open() as remote_log, BlockingLogReader(remote_log.open_log_reader()) as reader:
        # Another topic id may have come: the cluster does not know it, so nothing was copied under it.
        [copied] = [
            each
            for each in remote_log.segments.list_partitions()
            if finished(remote_log.segments.list_remote_log_segments(each))
        ]
        end = reader.view(copied).remote_end
        in_order = sorted(sent, key=lambda record: record.offset)
        assert list(reader.records(copied, 0, end_offset=end)) == in_order[:end]
    assert log_start(site) <= end
    return end


def log_start(site: LiveSite) -> int:
    """Return the broker's log start."""
    asked = TopicPartition(site.topics[0], 0)
    with ClusterClient.by_properties({"bootstrap.servers": site.kafka.bootstrap_servers}) as client:
        found = client.list_offsets({asked: OffsetSpec.EARLIEST})[asked]
    assert isinstance(found, ListedOffset)
    return found.offset
