"""The running cluster that a topic is restored into, through confluent-kafka.

Its import takes a tenth of a second and a C library: import this module only for a restore into a cluster.
"""

from __future__ import annotations

import struct
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource  # type: ignore[attr-defined]

from tiered_storage.errors import ConfigurationError, TargetClusterError, TieredStorageError
from tiered_storage.kafka_log.files.kafka_uuid import encode_uuid
from tiered_storage.kafka_log.records.record import Record
from tiered_storage.kafka_wire.connections.client_properties import checked_properties
from tiered_storage.remote_log.restore.offset_map import OffsetMapWriter

ANSWER_SECONDS = 30
DELIVERY_SECONDS = 120
QUEUED_KIB = 64 << 10
LARGEST_MESSAGE = 1_000_000_000
RECORDS_AT_ONCE = 1000
_MOMENT_SECONDS = 0.05
_POLL_SECONDS = 0.2
_POLL_EVERY = 500
_WRITE_EVERY = 10_000

OnDelivery = Callable[[Any, Any], None]


@dataclass(frozen=True, slots=True)
class TargetTopic:
    """A topic of the cluster, and its settings by Kafka's names; `replicas` is the maximum over its partitions."""

    cluster_id: str
    topic_id: str
    name: str
    partitions: int
    settings: Mapping[str, str]
    replicas: int

    @property
    def stamps_records(self) -> bool:
        """Whether the broker replaces the producers' timestamps by its own."""
        return self.settings.get("message.timestamp.type") == "LogAppendTime"


@dataclass(frozen=True, slots=True)
class TargetCluster:
    """The cluster at `bootstrap_servers`; `properties` are librdkafka's, for connecting and security only.

    Methods raise TargetClusterError. The client logs ten lines a second if no broker answers; only the last reason is
    kept, for that error. `log_level` among the properties sends all of them to standard error again. Raises
    ConfigurationError for a property that client_properties.py does not allow.
    """

    bootstrap_servers: str
    properties: Mapping[str, str] = field(repr=False)
    _said: dict[str, str] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Refuse properties that may load or run code, or change how records are sent, wherever they came from."""
        checked_properties(self.properties, self.bootstrap_servers)

    def topic(self, name: str) -> TargetTopic:
        """Look a topic up; it is not created. Raises ConfigurationError if it does not exist."""
        with self._asked(f"topic {name}"), self._admin() as admin:
            cluster_id = admin.describe_cluster(request_timeout=ANSWER_SECONDS).result(2 * ANSWER_SECONDS).cluster_id
            try:
                found = admin.describe_topics(TopicCollection([name]), request_timeout=ANSWER_SECONDS)[name].result(
                    2 * ANSWER_SECONDS
                )
            except KafkaException as error:
                if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise
                raise ConfigurationError(
                    f"{self.bootstrap_servers} has no topic {name}: create it first, with as many partitions as the "
                    "topic had and the settings that it should have"
                ) from error
            resource = ConfigResource(ConfigResource.Type.TOPIC, name)
            entries = admin.describe_configs([resource], request_timeout=ANSWER_SECONDS)[resource].result(
                ANSWER_SECONDS
            )
        most, least = found.topic_id.get_most_significant_bits(), found.topic_id.get_least_significant_bits()
        topic_id = encode_uuid(struct.pack(">qq", most, least))
        settings = {key: str(entry.value) for key, entry in entries.items() if entry.value is not None}
        replicas = max(len(each.replicas) for each in found.partitions)
        return TargetTopic(cluster_id, topic_id, name, len(found.partitions), settings, replicas)

    def ends(self, topic: str, partitions: Iterable[int]) -> dict[int, tuple[int, int]]:
        """Return the first offset of each partition, and the one after its last record."""
        with self._asked(f"the ends of {topic}"), self._consumer() as consumer:
            return {
                number: consumer.get_watermark_offsets(TopicPartition(topic, number), ANSWER_SECONDS, cached=False)
                for number in partitions
            }

    def producer(self, compression: str) -> Any:
        """Open an idempotent producer: a record is written once, and in order, or sending it fails."""
        settings: dict[str, str | int | bool] = {
            "enable.idempotence": True,
            "acks": "all",
            "compression.type": compression,
            "linger.ms": 20,
            "message.timeout.ms": DELIVERY_SECONDS * 1000,
            "message.max.bytes": LARGEST_MESSAGE,
            "queue.buffering.max.kbytes": QUEUED_KIB,
        }
        with self._asked("a producer"):
            return Producer(self._with(settings))

    def records(self, topic: str, partition: int, first: int, end: int) -> Iterator[Record]:
        """Yield the records from offset `first` to `end` (exclusive), whoever wrote them."""
        if first >= end:
            return
        with self._asked(f"{topic}-{partition}"), self._consumer() as consumer:
            consumer.assign([TopicPartition(topic, partition, first)])
            silent_from = time.monotonic()
            while time.monotonic() < silent_from + ANSWER_SECONDS:
                # It waits for this many messages, up to its limit: more than a moment would be lost at the end.
                messages = consumer.consume(RECORDS_AT_ONCE, _MOMENT_SECONDS)
                for message in messages:
                    if message.error() is not None and message.error().code() != KafkaError._PARTITION_EOF:
                        raise KafkaException(message.error())
                    if message.error() is not None or message.offset() >= end:
                        return
                    headers = tuple(message.headers() or ())
                    yield Record(message.offset(), message.timestamp()[1], message.key(), message.value(), headers)
                if messages:
                    silent_from = time.monotonic()
        raise TargetClusterError(f"{self.bootstrap_servers}: {topic}-{partition} gave nothing for {ANSWER_SECONDS} s")

    @contextmanager
    def _admin(self) -> Iterator[AdminClient]:
        admin = AdminClient(self._with({}))
        try:
            yield admin
        except KafkaException:
            # Only now the client reports why it could not connect.
            admin.poll(0)
            raise

    @contextmanager
    def _consumer(self) -> Iterator[Any]:
        consumer = Consumer(
            self._with(
                {
                    "group.id": "remote-log-restore",
                    "enable.auto.commit": False,
                    "enable.partition.eof": True,
                    "auto.offset.reset": "error",
                    "isolation.level": "read_uncommitted",
                    "check.crcs": True,
                }
            )
        )
        try:
            yield consumer
        finally:
            consumer.close()

    def _with(self, settings: Mapping[str, str | int | bool]) -> dict[str, Any]:
        quiet: dict[str, Any] = {"log_level": 0, "error_cb": self._keep}
        return {**quiet, **self.properties, "bootstrap.servers": self.bootstrap_servers, **settings}

    def _keep(self, error: KafkaError) -> None:
        if error.code() != KafkaError._ALL_BROKERS_DOWN:
            self._said["last"] = error.str()

    @contextmanager
    def _asked(self, what: str) -> Iterator[None]:
        """Turn the client's errors into ours, with the reason that it logged."""
        what = f"{self.bootstrap_servers}: {what}"
        try:
            yield
        except KafkaException as error:
            reported = error.args[0].str() if error.args and isinstance(error.args[0], KafkaError) else str(error)
            if error.args and isinstance(error.args[0], KafkaError) and error.args[0].code() == KafkaError._INVALID_ARG:
                raise self._refused(what, reported) from None
            reason = f" ({self._said['last']})" if "last" in self._said else ""
            raise TargetClusterError(
                f"{what}: {reported}{reason}; is the address right, does a broker run there, and do the client's "
                "properties (--client-properties, or the connection's) suit its listener?"
            ) from error
        except (TypeError, ValueError) as error:
            raise self._refused(what, str(error)) from None

    def _refused(self, what: str, reported: str) -> ConfigurationError:
        """Return the error for a property that the client refuses; its own message in `reported` contains the value."""
        names = [name for name in sorted(self.properties, key=len, reverse=True) if name in reported]
        shown = f"the value of {names[0]}" if names else "one of its properties"
        return ConfigurationError(f"{what}: the client refuses {shown} (values are not shown); correct it")


class Sender:
    """Sends to `topic` with a `producer` of confluent-kafka. Not thread-safe."""

    def __init__(self, producer: Any, topic: str, offset_map: OffsetMapWriter) -> None:
        self.without_time = 0
        """How many records had no timestamp, or 0, which librdkafka replaces by the present time."""
        self._producer = producer
        self._topic = topic
        self._map = offset_map
        self._waiting: dict[int, deque[int]] = {number: deque() for number in offset_map.progress}
        """The old offsets of unacknowledged records by partition; acknowledgements come in their order."""
        self._failure: TieredStorageError | None = None
        self._acknowledged = 0

    def send(self, partition: int, records: Iterable[Record]) -> int:
        """Send `records` to `partition` and return their number; they are acknowledged after `finish`.

        Raises TargetClusterError if the cluster refuses one, or does not answer in time; ConfigurationError if somebody
        else writes into the partition too.
        """
        count = 0
        delivered = partial(self._delivered, partition)
        for record in records:
            self._send(partition, record, delivered)
            count += 1
            if count % _POLL_EVERY == 0:
                self._poll(0)
        return count

    def finish(self) -> None:
        """Wait until everything is acknowledged and in the map. Raises as `send`."""
        while any(self._waiting.values()):
            self._poll(_POLL_SECONDS)
        self._map.flush()

    def abandon(self) -> None:
        """Drop everything that is not sent yet, as after an error."""
        self._producer.purge(in_queue=True, in_flight=True, blocking=False)

    def _send(self, partition: int, record: Record, delivered: Any) -> None:
        self.without_time += record.timestamp <= 0
        while True:
            try:
                self._producer.produce(
                    self._topic,
                    record.value,
                    record.key,
                    partition,
                    on_delivery=delivered,
                    timestamp=max(record.timestamp, 0),
                    headers=list(record.headers),
                )
            except BufferError:
                if not any(self._waiting.values()):
                    raise self._refused(partition, record.offset, "it does not fit the client's queue") from None
                self._poll(_POLL_SECONDS)
            except KafkaException as error:
                raise self._refused(partition, record.offset, error.args[0].str()) from error
            else:
                self._waiting[partition].append(record.offset)
                return

    def _poll(self, seconds: float) -> None:
        self._producer.poll(seconds)
        if self._failure is not None:
            raise self._failure
        if self._acknowledged >= _WRITE_EVERY:
            self._acknowledged = 0
            self._map.flush()

    def _delivered(self, partition: int, error: Any, message: Any) -> None:
        """Map one record, or keep the first error: everything after it is ignored."""
        if self._failure is not None:
            return
        old = self._waiting[partition].popleft()
        expected = self._map.progress[partition].next_new
        if error is not None:
            self._failure = self._refused(partition, old, error.str())
        # For a duplicate, a broker may no longer know the offset.
        elif message.offset() >= 0 and message.offset() != expected:
            self._failure = ConfigurationError(
                f"{self._topic}-{partition}: a record got offset {message.offset()}, but {expected} was next: somebody "
                "else writes into it; start again with a topic of its own"
            )
        else:
            self._map.add(partition, old)
            self._acknowledged += 1

    def _refused(self, partition: int, offset: int, reason: str) -> TargetClusterError:
        return TargetClusterError(
            f"{self._topic}-{partition}: the record of offset {offset} was not accepted: {reason}; accepted records "
            f"are in {self._map.path}, and another run resumes after them"
        )
