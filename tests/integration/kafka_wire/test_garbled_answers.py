"""Answers that are cut or garbled on their way: an error names them, and nothing wrong reaches the store.

Nor do brokers delete what is not remote.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from random import Random

import pytest
from confluent_kafka import Consumer, TopicPartition

from integration.stored_segments import ensure_as_stored
from servers.kafka_programs import KafkaPrograms
from servers.kafka_proxy import Fault, FetchedFrame, KafkaProxy, kafka_proxy
from servers.real_kafka import RealKafka
from support.bad_clusters import without_patience
from support.command_line import mentions
from support.live_sites import LONG, SMALL_SEGMENTS, LiveSite, log_start
from support.records import varied_records
from tiered_storage.kafka_log.files.kafka_uuid import decode_uuid
from tiered_storage.kafka_log.records.record import Record
from tiered_storage.kafka_wire.connections.apis import (
    DELETE_RECORDS,
    DESCRIBE_CLUSTER,
    DESCRIBE_CONFIGS,
    FETCH,
    LIST_GROUPS,
    LIST_OFFSETS,
    METADATA,
    OFFSET_FETCH,
    OFFSET_FOR_LEADER_EPOCH,
    Api,
)
from tiered_storage.remote_log.coverage import finished
from tiered_storage.remote_log.read.blocking_reader import BlockingLogReader

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


def flip_the_error_code(frame: FetchedFrame) -> None:
    """Let it be an error, which says of what is there that it is not."""
    frame.entry[5] ^= 1


def flip_the_high_watermark(frame: FetchedFrame) -> None:
    """Let far more be replicated than the log has."""
    frame.entry[9] ^= 1


def flip_the_last_stable_offset(frame: FetchedFrame) -> None:
    """Let far more be stable than the log has."""
    frame.entry[17] ^= 1


def flip_the_log_start(frame: FetchedFrame) -> None:
    """Let the log begin after what it has."""
    frame.entry[25] ^= 1


def lose_the_aborted_transactions(frame: FetchedFrame) -> None:
    """Let their list be null."""
    frame.entry[30] = 0


def claim_an_aborted_transaction(frame: FetchedFrame) -> None:
    """Let their list have one, which is made of what follows it."""
    frame.entry[30] += 1


FAULTS: tuple[tuple[Fault, list[str]], ...] = (
    (flip_a_record, ["CRC-32C"]),
    (flip_a_size, ["no whole batch"]),
    (shorten_a_batch, ["CRC-32C"]),
    (flip_an_offset, ["different offsets"]),
    (flip_an_epoch, ["leader epoch"]),
    (cut, ["closed the connection"]),
    (flip_the_correlation, ["correlation id"]),
    (flip_the_error_code, ["OFFSET_OUT_OF_RANGE"]),
    (claim_an_aborted_transaction, ["Fetch"]),
    # No copy goes by these.
    (flip_the_high_watermark, []),
    (flip_the_last_stable_offset, []),
    (flip_the_log_start, []),
    (lose_the_aborted_transactions, []),
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
    harmless = [number for number, (_, words) in enumerate(FAULTS) if not words]
    assert {row["partition"] for row in result.rows} == {f"{TOPIC}-{number}" for number in (*harmless, SOUND)}
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
    """Spoils every other answer about a topic: a bit of it changes, or it is cut, or it answers another request.

    `names` are of that topic, or of the cluster. If there are `others`, of another topic, only what follows the former
    changes, up to the latter; else any byte.
    """

    random: Random
    names: Sequence[bytes]
    others: Sequence[bytes]
    most: int
    """How many bytes after the name may change."""
    _seen: int = 0
    spoilt: list[str] = field(default_factory=list)
    """What was done."""

    def __call__(self, answer: bytearray) -> None:
        begin = min((at for name in self.names if (at := answer.find(name)) >= 0), default=-1)
        if begin < 0:
            return
        self._seen += 1
        if self._seen % 2 == 0:
            return
        how = self.random.choice(["bit", "bit", "bit", "cut", "correlation"])
        if how == "bit":
            end = min((at for name in self.others if (at := answer.find(name)) > begin), default=len(answer))
            at = self.random.randrange(begin if self.others else 8, min(end, begin + self.most))
            answer[at] ^= 1 << self.random.randrange(8)
            how = f"bit of byte {at} of {len(answer)}"
        elif how == "cut":
            del answer[len(answer) // 2 :]
        else:
            answer[7] ^= 1
        self.spoilt.append(how)


GARBLED = (
    LIST_OFFSETS,
    OFFSET_FOR_LEADER_EPOCH,
    METADATA,
    DELETE_RECORDS,
    DESCRIBE_CLUSTER,
    DESCRIBE_CONFIGS,
    LIST_GROUPS,
    OFFSET_FETCH,
    FETCH,
)
WITH_RIGHTS = {DESCRIBE_CLUSTER, METADATA}
"""Their answers have rights of the login, which doctor looks at too."""
TRIMMED = {"remote.storage.enable": True, "local.deletion.allowed": True, "local.retention.ms": 1}


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(2, 10))])
@pytest.mark.parametrize("api", GARBLED, ids=str)
def test_garbled_answers_about_a_topic_lose_nothing_and_hold_up_no_other(
    proxied: tuple[RealKafka, KafkaProxy], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, api: Api, seed: int
) -> None:
    kafka, proxy = proxied
    garbled, sound = names = (f"garbled-{api}-{seed}", f"sound-{api}-{seed}")
    topics = dict.fromkeys(names, TRIMMED)
    site = LiveSite(kafka, tmp_path, names, {"bootstrap.servers": proxy.address, "topics": topics})
    ids = {name: decode_uuid(kafka.client.create_topic(name, 1, SMALL_SEGMENTS | LONG)) for name in names}
    sent = {name: produced(kafka, name, seed=1) for name in names}
    assert site.copied()
    # The records after a Fetch's header have checksums.
    most = 80 if api is FETCH else 1 << 20
    random = Random(f"{api} {seed}")  # noqa: S311 - nothing secret
    # An answer about the whole cluster names no topic.
    spoilt = [kafka.client.cluster_id().encode()] if api is DESCRIBE_CLUSTER else [garbled.encode(), ids[garbled]]
    garbler = Garbler(random, spoilt, (), most)
    proxy.faults = {}
    ends = {name: ensure_all_is_there(site, name, sent[name]) for name in names}
    for round_number, others in enumerate(([sound.encode(), ids[sound]], [])):
        garbler.others = others
        for name in names:
            sent[name] += produced(kafka, name, seed=2 + round_number)
            commit(kafka, name, ends[name] - 20)
        proxy.changes = {api.key: garbler}
        with monkeypatch.context() as patient:
            without_patience(patient, 10)
            results = [site.run(command) for command in ("copy", "retain", *(["doctor"] if api in WITH_RIGHTS else []))]
        proxy.changes = {}
        for result in results:
            assert result.exit_code in {0, 1}, (result, garbler.spoilt)
            assert "Traceback" not in result.err, (result, garbler.spoilt)
        before, ends = ends, {name: ensure_all_is_there(site, name, sent[name]) for name in names}
        assert not others or ends[sound] > before[sound], (results, garbler.spoilt)
        for name in names:
            assert log_start(site.kafka, name) <= before[name] - 20, (results, garbler.spoilt)
    assert garbler.spoilt

    while site.copied():
        pass
    for name in names:
        commit(kafka, name, len(sent[name]))
    retained = site.run("retain")
    assert retained.exit_code == 0, (retained, garbler.spoilt)
    for name in names:
        assert ensure_all_is_there(site, name, sent[name]) == log_start(site.kafka, name) > 0
    site.audited()


FAR = str(10**13)
"""A local retention (ms) that keeps all; with another first digit it keeps nothing."""


@dataclass
class OneAnswer:
    """Changes `old` to `new`, of the same length, in that one of the answers which has it."""

    old: bytes
    new: bytes
    number: int
    seen: int = 0

    def __call__(self, answer: bytearray) -> None:
        at = answer.find(self.old)
        if at < 0:
            return
        if self.seen == self.number:
            answer[at : at + len(self.new)] = self.new
        self.seen += 1


@pytest.mark.parametrize("api", [OFFSET_FETCH, LIST_GROUPS, DESCRIBE_CONFIGS], ids=str)
def test_one_wrong_answer_deletes_nothing_that_is_read_or_kept(
    proxied: tuple[RealKafka, KafkaProxy], tmp_path: Path, api: Api
) -> None:
    kafka, proxy = proxied
    topic, is_kept = f"one-wrong-{api}", api is DESCRIBE_CONFIGS
    ours = {name: value for name, value in TRIMMED.items() if not is_kept or name != "local.retention.ms"}
    site = LiveSite(kafka, tmp_path, (topic,), {"bootstrap.servers": proxy.address, "topics": {topic: ours}})
    limits = {"retention.ms": "-1", "local.retention.ms": FAR if is_kept else "-2"}
    kafka.client.create_topic(topic, 1, SMALL_SEGMENTS | LONG | limits)
    sent = produced(kafka, topic, seed=1)
    assert len(site.copied()) > 1
    reads = ensure_all_is_there(site, topic, sent) - 20
    commit(kafka, topic, reads)
    old, new = {
        OFFSET_FETCH: (struct.pack(">iq", 0, reads), struct.pack(">iq", 0, reads | 1 << 20)),
        LIST_GROUPS: (topic.encode(), topic.upper().encode()),
        DESCRIBE_CONFIGS: (FAR.encode(), FAR.replace("1", "0").encode()),
    }[api]

    for number in count():
        proxy.changes = {api.key: (wrong := OneAnswer(old, new, number))}
        result = site.run("retain")
        proxy.changes = {}
        assert result.exit_code == 0, result
        assert log_start(site.kafka, topic) <= (0 if is_kept else reads), (result, number)
        if wrong.seen <= number:
            break
    assert number >= 2


def produced(kafka: RealKafka, topic: str, seed: int) -> list[Record]:
    return kafka.client.produce(topic, varied_records(300, seed=seed), batch_num_messages=20)


def commit(kafka: RealKafka, topic: str, offset: int) -> None:
    """Let the group of that name have read the topic up to `offset`."""
    with closing(Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": topic})) as consumer:
        consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)


def ensure_all_is_there(site: LiveSite, topic: str, sent: list[Record]) -> int:
    """See that the remote log begins with what was `sent`, and reaches to the broker's log start; return its end."""
    with site.open() as remote_log, BlockingLogReader(remote_log.open_log_reader()) as reader:
        # Another topic id may have come: the cluster does not know it, so nothing was copied under it.
        [copied] = [
            each
            for each in remote_log.context.segments.list_partitions()
            if each.topic == topic and finished(remote_log.context.segments.list_remote_log_segments(each))
        ]
        end = reader.snapshot(copied).remote_end
        in_order = sorted(sent, key=lambda record: record.offset)
        assert list(reader.records(copied, 0, end_offset=end)) == in_order[:end]
    assert log_start(site.kafka, topic) <= end
    return end
