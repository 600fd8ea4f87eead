"""A client of a real broker: librdkafka's."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, cast

from confluent_kafka import (
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    ElectionType,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    OffsetSpec,
)
from confluent_kafka.cimpl import NewTopic

from support.waiting import wait_for
from tiered_storage.kafka_log.files.kafka_uuid import encode_uuid
from tiered_storage.kafka_log.records.batch_header import NO_TIMESTAMP
from tiered_storage.kafka_log.records.record import Headers, Record

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
    properties: Mapping[str, str] = field(default_factory=dict)
    """Of librdkafka, for consumers."""

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        config: Mapping[str, str] | None = None,
        replicas: list[list[int]] | None = None,
    ) -> str:
        """Create a topic and return its id, in Kafka's text form, once the broker leads it.

        It has one replica, or `replicas` has the brokers of each partition.
        """
        where: dict[str, Any] = {"replica_assignment": replicas} if replicas else {"replication_factor": 1}
        topic = NewTopic(name, num_partitions=partitions, config=dict(config or {}), **where)
        admin = self._admin()
        admin.create_topics([topic], operation_timeout=REQUEST_SECONDS)[name].result(REQUEST_SECONDS)
        return self.topic_id(name)

    def alter_topic(self, name: str, config: Mapping[str, str]) -> None:
        """Set properties of a topic, and wait until the broker shows them."""
        admin = self._admin()
        entries = [
            ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET) for key, value in config.items()
        ]
        resource = ConfigResource(ConfigResource.Type.TOPIC, name, incremental_configs=entries)
        admin.incremental_alter_configs([resource])[resource].result(REQUEST_SECONDS)
        asked = ConfigResource(ConfigResource.Type.TOPIC, name)

        def is_shown() -> bool:
            shown = admin.describe_configs([asked])[asked].result(REQUEST_SECONDS)
            return all(shown[key].value == value for key, value in config.items())

        wait_for(is_shown, lambda: f"{name}: the broker does not show {dict(config)}", REQUEST_SECONDS)

    def delete_topic(self, name: str) -> None:
        """Delete a topic."""
        admin = self._admin()
        admin.delete_topics([name], operation_timeout=REQUEST_SECONDS)[name].result(REQUEST_SECONDS)

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        """Move the log start of a partition to offset `before`."""
        self.delete_records_of(topic, {partition: before})

    def delete_records_of(self, topic: str, befores: Mapping[int, int]) -> None:
        """Move the log starts of partitions, each to its offset in `befores`."""
        admin = self._admin()
        wanted = [TopicPartition(topic, partition, before) for partition, before in befores.items()]
        for done in admin.delete_records(wanted, operation_timeout=REQUEST_SECONDS).values():
            done.result(REQUEST_SECONDS)

    def elect_preferred(self, topic: str, partition: int = 0) -> None:
        """Have the first replica of a partition lead it, once that is in sync."""
        admin, wanted = self._admin(), TopicPartition(topic, partition)

        def is_elected() -> bool:
            error = admin.elect_leaders(ElectionType.PREFERRED, [wanted]).result(REQUEST_SECONDS)[wanted]
            return error is None or error.code() == KafkaError.ELECTION_NOT_NEEDED

        wait_for(is_elected, lambda: f"{topic}-{partition} elects nobody", REQUEST_SECONDS)

    def topic_id(self, name: str) -> str:
        """Return the id of a topic, empty if it has none; one that was made just now the broker may not know yet."""
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
        return encode_uuid(struct.pack(">qq", most, least)) if most or least else ""

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
        """Return the first offset whose record is as late as `timestamp` (ms) or later, -1 where there is none.

        A broker that looks in its remote tier may answer with an error, and offset -1: it is asked again.
        """
        answers: list[TopicPartition] = []

        def has_answered() -> bool:
            wanted = TopicPartition(topic, partition, timestamp)
            answers[:] = consumer.offsets_for_times([wanted], timeout=REQUEST_SECONDS)
            return answers[0].error is None

        with closing(self._consumer()) as consumer:
            wait_for(has_answered, lambda: f"{topic}-{partition}: {answers[0].error}", REQUEST_SECONDS)
        return int(answers[0].offset)

    def wait_until_decided(self, topic: str, partition: int = 0, below: int | None = None) -> None:
        """Wait until no transaction is open in a partition, or none `below` that offset.

        A producer learns that its transaction ended before the coordinator has written the marker (KIP-98).
        """

        def is_decided() -> bool:
            stable = self._latest(topic, partition, IsolationLevel.READ_COMMITTED)
            wanted = self._latest(topic, partition, IsolationLevel.READ_UNCOMMITTED) if below is None else below
            return stable >= wanted

        wait_for(is_decided, lambda: f"{topic}-{partition}: a transaction stays open", REQUEST_SECONDS)

    def _latest(self, topic: str, partition: int, isolation: IsolationLevel) -> int:
        admin = self._admin()
        asked = {TopicPartition(topic, partition): OffsetSpec.latest()}  # type: ignore[no-untyped-call]
        [answer] = admin.list_offsets(asked, isolation_level=isolation).values()
        return int(answer.result(REQUEST_SECONDS).offset)

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
                **self.properties,
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
    kind, timestamp = message.timestamp()
    timestamp = NO_TIMESTAMP if kind == TIMESTAMP_NOT_AVAILABLE else timestamp
    return Record(cast(int, message.offset()), timestamp, message.key(), message.value(), headers)
