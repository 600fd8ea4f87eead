"""Answers to Fetch that are cut or garbled on their way: an error names them, and nothing wrong reaches the store."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from servers.kafka_programs import KafkaPrograms
from servers.kafka_proxy import Fault, FetchedFrame, KafkaProxy, kafka_proxy
from servers.real_kafka import RealKafka
from support.bad_clusters import without_patience
from support.command_line import mentions
from support.live_sites import LONG, SMALL_SEGMENTS, LiveSite, ensure_as_stored
from support.records import varied_records

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
