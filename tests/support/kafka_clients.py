"""Clients of a real broker: Kafka's protocol by hand, librdkafka's, aiokafka's and Java's consumers.

Batches sent to a broker as they are, byte for byte: what no client would make itself.

One Produce request of version 7, the first that lets zstd pass (strings have an int16 length, bytes and arrays int32):

    request    size int32; api key int16 0, api version int16 7, correlation id int32, client id string
               transactional id string, -1: null; acks int16 -1: all; timeout int32 in ms
               1 topic: name string; 1 partition: number int32, records bytes
    response   size int32; correlation id int32; 1 topic: name string; 1 partition: number int32
               error code int16, base offset int64, log append time int64, log start offset int64; throttle time int32

Source: Kafka's protocol guide.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Literal, cast

import aiokafka
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tiered_storage.kafka_log.files.kafka_uuid import encode_uuid
from tiered_storage.kafka_log.records.batch_header import TimestampType
from tiered_storage.kafka_log.records.record import Headers, Record

if TYPE_CHECKING:
    from support.real_kafka import RealKafka

_TIMEOUT_SECONDS = 30
_NOT_YET = frozenset({3, 6})
"""Unknown topic or partition, and not its leader: what a broker says of partitions that were created just now."""
_CORRELATION_ID = 7


class ProduceRefusedError(RuntimeError):
    """A broker did not take a batch; `code` is Kafka's number of the error."""

    def __init__(self, code: int) -> None:
        super().__init__(f"the broker refused the batch with error code {code}")
        self.code = code


def produce_batch(bootstrap_servers: str, topic: str, partition: int, batch: bytes) -> int:
    """Have the broker append `batch` and return the offset it got; ProduceRefusedError where it does not."""
    end = time.monotonic() + _TIMEOUT_SECONDS
    while True:
        code, base_offset = _ask(bootstrap_servers, topic, partition, batch)
        if not code:
            return base_offset
        if code not in _NOT_YET or time.monotonic() > end:
            raise ProduceRefusedError(code)
        time.sleep(0.05)


def _ask(bootstrap_servers: str, topic: str, partition: int, batch: bytes) -> tuple[int, int]:
    """Send `batch` once and return error code and base offset."""
    host, port = bootstrap_servers.split(":")
    with socket.create_connection((host, int(port)), _TIMEOUT_SECONDS) as connection:
        connection.sendall(_request(topic, partition, batch))
        with connection.makefile("rb") as answers:
            (size,) = struct.unpack(">i", answers.read(4))
            answer = answers.read(size)
    code, base_offset = struct.unpack_from(">hq", answer, 4 + 4 + 2 + len(topic) + 4 + 4)
    return code, base_offset


def _request(topic: str, partition: int, batch: bytes) -> bytes:
    header = struct.pack(">hhi", 0, 7, _CORRELATION_ID) + _string("golden")
    body = struct.pack(">hhi", -1, -1, _TIMEOUT_SECONDS * 1000)
    body += struct.pack(">i", 1) + _string(topic) + struct.pack(">iii", 1, partition, len(batch)) + batch
    return struct.pack(">i", len(header + body)) + header + body


def _string(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


REQUEST_SECONDS = 30

Codec = Literal["none", "gzip", "snappy", "lz4", "zstd"]
CODECS: tuple[Codec, ...] = ("none", "gzip", "snappy", "lz4", "zstd")
DeliveryCallback = Callable[[KafkaError | None, Message], None]
Isolation = Literal["read_uncommitted", "read_committed"]


class RealKafkaClientError(RuntimeError):
    """A broker refused, or did not answer in time."""


@dataclass(frozen=True, slots=True)
class RealKafkaClient:
    """Calls to the broker at `bootstrap_servers`; each opens what it needs and closes it."""

    bootstrap_servers: str

    def create_topic(self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> str:
        """Create a topic of one replica and return its id, in Kafka's text form, once the broker leads it."""
        topic = NewTopic(name, num_partitions=partitions, replication_factor=1, config=dict(config or {}))
        admin = self._admin()
        admin.create_topics([topic], operation_timeout=REQUEST_SECONDS)[name].result(REQUEST_SECONDS)
        return self.topic_id(name)

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        """Move the log start of a partition to offset `before`."""
        admin = self._admin()
        wanted = TopicPartition(topic, partition, before)
        admin.delete_records([wanted], operation_timeout=REQUEST_SECONDS)[wanted].result(REQUEST_SECONDS)

    def topic_id(self, name: str) -> str:
        """Return the id of a topic; one that was made just now the broker may not know yet."""
        admin = self._admin()
        deadline = time.monotonic() + REQUEST_SECONDS
        while True:
            try:
                described = admin.describe_topics(TopicCollection([name]))[name].result(REQUEST_SECONDS)
                break
            except KafkaException as error:
                if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART or time.monotonic() > deadline:
                    raise
            time.sleep(0.2)
        most = described.topic_id.get_most_significant_bits()
        least = described.topic_id.get_least_significant_bits()
        return encode_uuid(struct.pack(">qq", most, least))

    def producer(self, codec: Codec = "none", **properties: str | int) -> Producer:
        """Open a producer; `properties` are librdkafka's, with _ for the dots. `send` sends through it."""
        return Producer(
            {
                "bootstrap.servers": self.bootstrap_servers,
                "compression.type": codec,
                # One request at a time keeps the order without a producer id, which the first one waits a second for.
                "max.in.flight": 1,
                "message.timeout.ms": REQUEST_SECONDS * 1000,
                **{name.replace("_", "."): value for name, value in properties.items()},
            }
        )

    def produce(
        self,
        topic: str,
        records: Iterable[Record],
        *,
        partition: int = 0,
        codec: Codec = "none",
        **properties: str | int,
    ) -> list[Record]:
        """Send `records` to one partition in their order and return them with the offsets they got for their own.

        Raises RealKafkaClientError where one was refused or not answered.
        """
        return send(self.producer(codec, **properties), topic, partition, records)

    def consume_all(
        self,
        topic: str,
        partition: int = 0,
        *,
        start: int = 0,
        isolation: Isolation = "read_uncommitted",
    ) -> list[Record]:
        """Read a partition from offset `start` to the end that `isolation` shows, with every batch's CRC checked.

        Raises KafkaException where there is no such offset, RealKafkaClientError where the broker falls silent.
        """
        with closing(self._consumer(isolation)) as consumer:
            consumer.assign([TopicPartition(topic, partition, start)])
            return list(_until_end(consumer))

    def offset_for_time(self, topic: str, partition: int, timestamp: int) -> int:
        """Return the first offset whose record is as late as `timestamp` (ms) or later, -1 where there is none."""
        with closing(self._consumer()) as consumer:
            wanted = TopicPartition(topic, partition, timestamp)
            [found] = consumer.offsets_for_times([wanted], timeout=REQUEST_SECONDS)
            return int(found.offset)

    def cluster_id(self) -> str:
        """The cluster's id, as in meta.properties."""
        admin = self._admin()
        return str(admin.list_topics(timeout=REQUEST_SECONDS).cluster_id)

    def _consumer(self, isolation: Isolation = "read_uncommitted") -> Consumer:
        return Consumer(
            {
                "bootstrap.servers": self.bootstrap_servers,
                "group.id": "unused",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
                "isolation.level": isolation,
                "check.crcs": True,
                # Waiting for more at the end is time that no test has.
                "fetch.wait.max.ms": 10,
            }
        )

    def _admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 4})


def send(producer: Producer, topic: str, partition: int, records: Iterable[Record]) -> list[Record]:
    """Send `records` through `producer`, wait until all are acknowledged, and return them with their offsets.

    Raises RealKafkaClientError where one was refused or not answered.
    """
    sent: list[Record] = []
    offsets: dict[int, int] = {}
    refused: list[str] = []

    def delivered(number: int, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            refused.append(str(error))
        else:
            offsets[number] = cast(int, message.offset())

    for number, record in enumerate(records):
        sent.append(record)
        _enqueue(producer, topic, partition, record, partial(delivered, number))
    waiting = producer.flush(REQUEST_SECONDS)
    if waiting or refused:
        raise RealKafkaClientError(f"{topic}-{partition}: {waiting} unanswered, {len(refused)} refused: {refused[:3]}")
    return [replace(record, offset=offsets[number]) for number, record in enumerate(sent)]


def _enqueue(producer: Producer, topic: str, partition: int, record: Record, delivered: DeliveryCallback) -> None:
    while True:
        try:
            producer.produce(
                topic,
                record.value,
                record.key,
                partition,
                on_delivery=delivered,
                timestamp=record.timestamp,
                headers=list(record.headers),
            )
        except BufferError:
            producer.poll(1)
        else:
            return


def _until_end(consumer: Consumer) -> Iterable[Record]:
    """Yield records up to the end of the one partition assigned; an end without a record in between is one as well."""
    end = time.monotonic() + REQUEST_SECONDS
    while time.monotonic() < end:
        for message in consumer.consume(1000, timeout=0.05):
            error = message.error()
            if error is None:
                end = time.monotonic() + REQUEST_SECONDS
                yield _record(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                return
            else:
                raise KafkaException(error)
    raise RealKafkaClientError(f"neither a record nor the end of the partition came within {REQUEST_SECONDS} s")


def _record(message: Message) -> Record:
    headers = cast(Headers, tuple(message.headers() or ()))
    return Record(cast(int, message.offset()), message.timestamp()[1], message.key(), message.value(), headers)


_SECONDS = 30


def consume_all(bootstrap_servers: str, topic: str, partition: int) -> list[Record]:
    """Read a partition from offset 0 to its end; TimeoutError where the broker falls silent."""
    return asyncio.run(
        asyncio.wait_for(_consume_all(bootstrap_servers, aiokafka.TopicPartition(topic, partition)), _SECONDS)
    )


async def _consume_all(bootstrap_servers: str, partition: aiokafka.TopicPartition) -> list[Record]:
    records: list[Record] = []
    async with aiokafka.AIOKafkaConsumer(bootstrap_servers=bootstrap_servers, enable_auto_commit=False) as consumer:
        consumer.assign([partition])
        consumer.seek(partition, 0)
        end = (await consumer.end_offsets([partition]))[partition]
        while await consumer.position(partition) < end:
            message = await consumer.getone()
            headers = tuple(message.headers)
            records.append(Record(message.offset, message.timestamp, message.key, message.value, headers))
    return records


_TIMES = {TimestampType.CREATE_TIME: "CreateTime", TimestampType.LOG_APPEND_TIME: "LogAppendTime"}
_SHOWN = ("print.timestamp", "print.partition", "print.offset", "print.headers", "print.key")
_BYTES = "org.apache.kafka.common.serialization.BytesDeserializer"
_AS_IT_IS = range(ord(" "), ord("~") + 1)


def consume_with_java(
    kafka: RealKafka,
    topic: str,
    partition: int | None = None,
    isolation: Isolation = "read_uncommitted",
    *,
    most: int,
    timeout_ms: int = 30_000,
) -> list[str]:
    """Return a line a record, of one partition or of all, until there are `most` or none comes for so long (ms)."""
    which = ("--from-beginning",) if partition is None else ("--partition", str(partition), "--offset", "earliest")
    properties = [*(f"{name}=true" for name in _SHOWN), "headers.deserializer=" + _BYTES]
    out = kafka.tool(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *("--bootstrap-server", kafka.bootstrap_servers, "--topic", topic, *which),
        *("--isolation-level", isolation, "--timeout-ms", str(timeout_ms), "--max-messages", str(most)),
        *(argument for each in properties for argument in ("--formatter-property", each)),
    )
    return out.splitlines()


def java_lines(
    records: Iterable[Record], partition: int, timestamp_type: TimestampType = TimestampType.CREATE_TIME
) -> list[str]:
    """Return the lines that `records` of a partition come to; keys and values are text without tabs or line ends."""
    return [
        "\t".join(
            (
                f"{_TIMES[timestamp_type]}:{record.timestamp}",
                f"Partition:{partition}",
                f"Offset:{record.offset}",
                _header_text(record.headers),
                _text(record.key),
                _text(record.value),
            )
        )
        for record in records
    ]


def _text(content: bytes | None) -> str:
    return "null" if content is None else content.decode()


def _header_text(headers: Headers) -> str:
    shown = [f"{key}:{'null' if value is None else _escaped(value)}" for key, value in headers]
    return ",".join(shown) or "NO_HEADERS"


def _escaped(content: bytes) -> str:
    """As Kafka's Bytes shows itself."""
    return "".join(chr(byte) if byte in _AS_IT_IS and byte != ord("\\") else f"\\x{byte:02X}" for byte in content)
