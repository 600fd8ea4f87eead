"""Logs in the message formats before record batches, v0 and v1, which a real broker of 2.8 wrote.

v0-{codec}, v1-{codec}   one format and codec each, compressed by the broker
v1-append-time-{codec}   LogAppendTime: the broker stamps a message, or the wrapper of compressed ones
mixed                    v0, v1 and v2 in one segment, in turns, as a topic has them whose format was raised and lowered
v0-compacted, -v1-       what compaction leaves of compressed messages: gaps in their offsets
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from golden.logs import Consumed, GoldenLogs, save_seen
from golden.topics import FIRST_TIMESTAMP, golden_records
from servers.kafka_programs import KafkaPrograms
from servers.zookeeper_kafka import ZooKeeperKafka
from support.kafka_clients import Codec, RealKafkaClient
from support.waiting import wait_for
from tiered_storage.kafka_log.records.record import Record

BROKER_VERSION = "2.8.2"
OLDER_LOGS = GoldenLogs(Path(__file__).with_name("older-formats"))
OLDER_CODECS: tuple[Codec, ...] = ("none", "gzip", "snappy", "lz4")
FORMATS = {0: "0.9.0", 1: "0.10.2", 2: "2.8"}
"""The value of message.format.version, by magic."""
APPEND_TIME_CODECS: tuple[Codec, ...] = ("none", "gzip")
MIXED_TURNS = (0, 1, 2, 1, 0, 2)
"""The magic of what was written, one after the other, with each codec."""
TOPICS = [
    *(f"v{magic}-{codec}" for magic in (0, 1) for codec in OLDER_CODECS),
    *(f"v1-append-time-{codec}" for codec in APPEND_TIME_CODECS),
    "mixed",
    "v0-compacted",
    "v1-compacted",
]

INDEX_INTERVAL_BYTES = 200
_SEGMENTS = {"segment.bytes": "700", "index.interval.bytes": str(INDEX_INTERVAL_BYTES)}
_MIXED_SEGMENTS = _SEGMENTS | {"segment.bytes": "4000"}
_BATCH = 6
_SETTLING_SECONDS = 1.0
"""A broker shows a topic's new setting before it follows it."""
_COMPACTION_SECONDS = 60


def make_older_logs(programs: KafkaPrograms, state: Path, logs: GoldenLogs, work: Path) -> None:
    """Let a broker of 2.8 write the logs, in place of the present ones; it works in the directory `work`."""
    shutil.rmtree(logs.log_dir, ignore_errors=True)
    properties = {"log.cleaner.backoff.ms": "100"}
    with ZooKeeperKafka(programs.earlier(BROKER_VERSION, state), work, properties) as kafka:
        _write(kafka)
        records = {f"{topic}-0": kafka.client.consume_all(topic) for topic in TOPICS}
    shutil.copytree(kafka.log_dir, logs.log_dir, ignore=shutil.ignore_patterns("__*", ".lock", "*.deleted"))
    consumed = {name: Consumed(found, [record.offset for record in found]) for name, found in records.items()}
    save_seen(programs, logs, consumed)


def _write(kafka: ZooKeeperKafka) -> None:
    client = kafka.client
    for magic in (0, 1):
        for codec in OLDER_CODECS:
            config = {
                "message.format.version": FORMATS[magic],
                "compression.type": codec.replace("none", "uncompressed"),
            }
            _produce_new(client, f"v{magic}-{codec}", _SEGMENTS | config)
    for codec in APPEND_TIME_CODECS:
        config = {"message.format.version": FORMATS[1], "compression.type": codec.replace("none", "uncompressed")}
        stamped = {"message.timestamp.type": "LogAppendTime"}
        _produce_new(client, f"v1-append-time-{codec}", _SEGMENTS | config | stamped)
    _write_mixed(client)
    for magic in (0, 1):
        _write_compacted(client, f"v{magic}-compacted", magic, kafka.log_dir)


def _produce_new(client: RealKafkaClient, topic: str, config: dict[str, str]) -> None:
    client.create_topic(topic, 1, config)
    client.produce(topic, _records(4 * _BATCH, seed=len(topic)), batch_num_messages=_BATCH, linger_ms=10_000)


def _write_mixed(client: RealKafkaClient) -> None:
    client.create_topic("mixed", 1, _MIXED_SEGMENTS | {"message.format.version": FORMATS[0]})
    for turn, magic in enumerate(MIXED_TURNS):
        client.alter_topic("mixed", {"message.format.version": FORMATS[magic]})
        time.sleep(_SETTLING_SECONDS)
        for codec in OLDER_CODECS:
            records = _records(_BATCH, seed=turn)
            client.produce("mixed", records, codec=codec, batch_num_messages=_BATCH, linger_ms=10_000)


def _write_compacted(client: RealKafkaClient, topic: str, magic: int, log_dir: Path) -> None:
    """Write keys over, so that some messages of each wrapper stay."""
    config = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.001", "compression.type": "gzip"}
    client.create_topic(topic, 1, _SEGMENTS | config | {"message.format.version": FORMATS[magic]})
    for round_ in range(6):
        keyed = [
            Record(0, FIRST_TIMESTAMP + 10 * round_ + i, f"key {i if i % 2 else (round_, i)}".encode(), b"value " * 9)
            for i in range(_BATCH)
        ]
        client.produce(topic, keyed, batch_num_messages=_BATCH, linger_ms=10_000)
    first = log_dir / f"{topic}-0" / f"{0:020}.log"
    size = first.stat().st_size

    def is_compacted() -> bool:
        return first.stat().st_size != size

    wait_for(is_compacted, lambda: f"{first} was not compacted", _COMPACTION_SECONDS)
    time.sleep(_SETTLING_SECONDS)


def _records(count: int, seed: int) -> list[Record]:
    """Return golden records without headers, which these formats do not have."""
    return [Record(one.offset, one.timestamp, one.key, one.value) for one in golden_records(count, seed)]
