"""Topics with batches of every kind, written through a real broker: what the golden logs and their tests are made of.

compressed-by-client     a partition for each codec, compressed by librdkafka
compressed-by-broker-*   the same records, compressed by Kafka's Java code
headers                  idempotent producer; null and empty keys, values and header values, repeated header keys
transactions             aborted over segment borders, aborted in one segment, committed, still open at the end
framings                 a batch in each framing that brokers take, sent as it is; what librdkafka cannot read apart
append-time-*            LogAppendTime; not compressed, lz4 as the client sent it, others by the broker
framings-append-time     LogAppendTime, the batches of framings
epochs                   three leader epochs
compacted                what compaction leaves: gaps, empty batches, delete horizons, markers without a transaction
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from golden.aiokafka_clients import produce_batch
from golden.framings import FRAMINGS, Framing, batch_in
from servers.real_kafka import RealKafka
from support.kafka_clients import CODECS, Codec, RealKafkaClient, send
from support.waiting import wait_for
from tiered_storage.errors import CorruptLogError
from tiered_storage.kafka_log.files.log_segment import list_segments
from tiered_storage.kafka_log.kernels.constants import CONTROL_BIT, DELETE_HORIZON_BIT
from tiered_storage.kafka_log.records.batch_header import TimestampType
from tiered_storage.kafka_log.records.record import Record
from tiered_storage.kafka_log.records.segment_scan import BatchTable, scan_segment

FIRST_TIMESTAMP = 1_700_000_000_000
BROKER_PROPERTIES = {"log.cleaner.backoff.ms": "100", "transaction.max.timeout.ms": "3600000"}
BROKER_CODECS = CODECS[1:]
APPEND_TIME_TOPICS: dict[str, tuple[Codec, str]] = {
    "append-time-none": ("none", "producer"),
    "append-time-lz4": ("lz4", "producer"),
    "append-time-gzip": ("lz4", "gzip"),
    "append-time-snappy": ("gzip", "snappy"),
    "append-time-zstd": ("none", "zstd"),
}
"""The codec of the client and of the broker, by topic."""

FRAMING_TOPICS = {"framings": TimestampType.CREATE_TIME, "framings-append-time": TimestampType.LOG_APPEND_TIME}
"""The timestamp type, by topic."""

_FOR_FEW = ("gzip, two members",)
FRAMINGS_BY_PARTITION: tuple[tuple[Framing, ...], ...] = (
    tuple(framing for name, framing in FRAMINGS.items() if name not in _FOR_FEW),
    tuple(FRAMINGS[name] for name in _FOR_FEW),
)
"""The framings of the batches in each partition of these topics, again and again; librdkafka reads the first one."""

UNREAD_BY_LIBRDKAFKA = [(topic, 1) for topic in FRAMING_TOPICS]

LOG_STARTS = {"headers": 1}
"""The log starts that records were deleted up to, by topic; the others begin at 0."""

PARTITIONS = [
    *(("compressed-by-client", number) for number in range(len(CODECS))),
    *((f"compressed-by-broker-{codec}", 0) for codec in BROKER_CODECS),
    *((topic, number) for topic in FRAMING_TOPICS for number in range(len(FRAMINGS_BY_PARTITION))),
    *((topic, 0) for topic in ("headers", "transactions", *APPEND_TIME_TOPICS, "epochs", "compacted")),
]

INDEX_INTERVAL_BYTES = 400
"""Of all topics."""

_RECORDS_IN_A_BATCH = 6
_RECORDS_IN_A_FRAMING = 4
_TIMESTAMP_TYPES = {TimestampType.CREATE_TIME: "CreateTime", TimestampType.LOG_APPEND_TIME: "LogAppendTime"}
_SMALL_SEGMENTS = {"internal.segment.bytes": "1500", "index.interval.bytes": str(INDEX_INTERVAL_BYTES)}
_COMPACTED = {
    **_SMALL_SEGMENTS,
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.001",
    "delete.retention.ms": "86400000",
}
_COMPACTION_SECONDS = 60


def golden_records(count: int, seed: int) -> Iterator[Record]:
    """Yield small records with and without keys, values and headers; half of each value compresses."""
    chance = random.Random(seed)  # noqa: S311 -- data, no secret
    for number in range(count):
        value = b"value " * 4 + chance.randbytes(6).hex().encode()
        yield Record(
            offset=number,
            timestamp=FIRST_TIMESTAMP + 10 * number - chance.randrange(25),
            key=None if number % 5 == 0 else f"key {number % 7}".encode(),
            value={3: None, 4: b""}.get(number % 7, value),
            headers=(("trace", chance.randbytes(4)), ("größe", None), ("trace", b""))[: number % 4],
        )


def write_golden_topics(kafka: RealKafka, scale: int = 1) -> None:
    """Write all topics; `scale` multiplies their records. Restarts `kafka` twice, for the leader epochs."""
    client = kafka.client
    _write_codecs(client, scale)
    _write_framings(client, scale)
    _write_headers(client, scale)
    _write_append_times(client, scale)
    _write_transactions(client, scale)
    _write_compacted(client, kafka.log_dir / "compacted-0", scale)
    client.create_topic("epochs", 1, _SMALL_SEGMENTS)
    for epoch in range(3):
        if epoch:
            with kafka.stopped():
                pass
        records = golden_records(2 * _RECORDS_IN_A_BATCH * scale, seed=30 + epoch)
        client.produce("epochs", records, batch_num_messages=_RECORDS_IN_A_BATCH)


def _write_codecs(client: RealKafkaClient, scale: int) -> None:
    count = 2 * _RECORDS_IN_A_BATCH * scale
    client.create_topic("compressed-by-client", len(CODECS), _SMALL_SEGMENTS)
    for number, codec in enumerate(CODECS):
        records = golden_records(count, seed=number)
        # librdkafka sends a batch as it is that no codec makes shorter, such as one of one record. It waits for six.
        client.produce(
            "compressed-by-client",
            records,
            partition=number,
            codec=codec,
            batch_num_messages=_RECORDS_IN_A_BATCH,
            linger_ms=10_000,
        )
    for codec in BROKER_CODECS:
        topic = f"compressed-by-broker-{codec}"
        client.create_topic(topic, 1, _SMALL_SEGMENTS | {"compression.type": codec})
        client.produce(topic, golden_records(count, seed=9), batch_num_messages=_RECORDS_IN_A_BATCH)


def framed_records(number: int) -> list[Record]:
    """Return the records of the batch `number` in each partition of the framings."""
    return list(golden_records(_RECORDS_IN_A_FRAMING, seed=50 + number))


def _write_framings(client: RealKafkaClient, scale: int) -> None:
    for topic, timestamp_type in FRAMING_TOPICS.items():
        config = {"message.timestamp.type": _TIMESTAMP_TYPES[timestamp_type]}
        client.create_topic(topic, len(FRAMINGS_BY_PARTITION), _SMALL_SEGMENTS | config)
        for partition, framings in enumerate(FRAMINGS_BY_PARTITION):
            for number, framing in enumerate(framings * scale):
                batch = batch_in(framing, framed_records(number))
                produce_batch(client.bootstrap_servers, topic, partition, batch)


def _write_headers(client: RealKafkaClient, scale: int) -> None:
    client.create_topic("headers", 1, _SMALL_SEGMENTS)
    odd = [
        (None, None, ()),
        (b"", b"", (("", b""),)),
        (b"key", None, (("again", b"1"), ("again", None), ("other", b"\xff\x00"), ("again", b"1"))),
        (None, b"value", (("größe ✓", "größe ✓".encode()),)),
        (b"\x00\xff", b"\xfe\n\x1b", tuple((f"header {i}", None) for i in range(20))),
    ]
    records = [Record(i, FIRST_TIMESTAMP - i, *odd[i % len(odd)]) for i in range(2 * len(odd) * scale)]
    producer = client.producer(enable_idempotence="true", batch_num_messages=len(odd))
    send(producer, "headers", 0, records)
    client.delete_records("headers", 0, before=LOG_STARTS["headers"])


def _write_append_times(client: RealKafkaClient, scale: int) -> None:
    for topic, (codec, broker_codec) in APPEND_TIME_TOPICS.items():
        config = {"message.timestamp.type": "LogAppendTime", "compression.type": broker_codec}
        client.create_topic(topic, 1, _SMALL_SEGMENTS | config)
        records = golden_records(2 * _RECORDS_IN_A_BATCH * scale, seed=20)
        client.produce(topic, records, codec=codec, batch_num_messages=_RECORDS_IN_A_BATCH)


def _write_transactions(client: RealKafkaClient, scale: int) -> None:
    topic, batch = "transactions", _RECORDS_IN_A_BATCH
    client.create_topic(topic, 1, _SMALL_SEGMENTS)
    late, other, unfinished = (
        client.producer(
            transactional_id=name,
            enable_idempotence="true",
            batch_num_messages=batch,
            transaction_timeout_ms=3_600_000,
        )
        for name in ("late", "other", "unfinished")
    )
    for producer in (late, other, unfinished):
        producer.init_transactions()
    for seed in range(40, 40 + 10 * scale, 10):
        late.begin_transaction()
        send(late, topic, 0, golden_records(batch, seed))
        other.begin_transaction()
        send(other, topic, 0, golden_records(3 * batch, seed + 1))
        client.produce(topic, golden_records(batch, seed + 2))
        other.commit_transaction()
        send(late, topic, 0, golden_records(batch, seed + 3))
        late.abort_transaction()
        late.begin_transaction()
        send(late, topic, 0, golden_records(2, seed + 4))
        late.abort_transaction()
    unfinished.begin_transaction()
    send(unfinished, topic, 0, golden_records(batch, seed=41))
    other.begin_transaction()
    send(other, topic, 0, golden_records(batch, seed=42))
    other.abort_transaction()


def _write_compacted(client: RealKafkaClient, directory: Path, scale: int) -> None:
    """Write keys that are written over, all of a batch or some, or deleted, and transactions of which nothing stays."""
    topic = "compacted"
    client.create_topic(topic, 1, _COMPACTED)
    first, second = (client.producer(enable_idempotence="true", batch_num_messages=_RECORDS_IN_A_BATCH) for _ in "12")
    ending = client.producer(transactional_id="ending", enable_idempotence="true", batch_num_messages=6)
    ending.init_transactions()
    for round_ in range(scale):
        send(first, topic, 0, _keyed(f"over-{round_}-{{}}", 0, 6))
        ending.begin_transaction()
        send(ending, topic, 0, _keyed(f"over-{round_}-{{}}", 6, 9))
        ending.commit_transaction()
        ending.begin_transaction()
        send(ending, topic, 0, _keyed(f"aborted-{round_}-{{}}", 0, 3))
        ending.abort_transaction()
        send(second, topic, 0, _keyed(f"over-{round_}-{{}}", 0, 9, timestamp=FIRST_TIMESTAMP + 1000))
        send(second, topic, 0, _keyed(f"some-{round_}-{{}}", 0, 6))
        send(second, topic, 0, _keyed(f"some-{round_}-{{}}", 1, 4, timestamp=FIRST_TIMESTAMP + 2000))
        send(second, topic, 0, _keyed(f"some-{round_}-{{}}", 3, 5, timestamp=FIRST_TIMESTAMP + 3000, value=None))
    # What is in the active segment is never compacted.
    send(second, topic, 0, _keyed("last-{}", 0, 30))
    wait_for(lambda: _is_compacted(directory), lambda: f"{directory} was not compacted", _COMPACTION_SECONDS)


def _keyed(
    key: str, start: int, stop: int, *, timestamp: int = FIRST_TIMESTAMP, value: bytes | None = b"value " * 5
) -> list[Record]:
    return [Record(0, timestamp + i, key.format(i).encode(), value) for i in range(start, stop)]


def _is_compacted(directory: Path) -> bool:
    """Say whether all is there that compaction leaves, and nothing else of the transactions.

    The cleaner may change the files at any moment.
    """
    try:
        tables = [scan_segment(segment.log_path, segment.base_offset) for segment in list_segments(directory)]
    except (OSError, CorruptLogError):
        return False
    table = BatchTable.concatenate(tables)
    is_control = (table.attributes & CONTROL_BIT) != 0
    has_marker = np.isin(table.producer_id, table.producer_id[is_control])
    return bool(
        (table.record_count == 0).any()
        and (table.attributes & DELETE_HORIZON_BIT).any()
        and not table.record_count[has_marker & ~is_control].any()
    )
