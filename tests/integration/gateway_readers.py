"""Readers of whole topics through a gateway, one for each kind of client, that run while other things fail.

Each continues by itself after every fault, at the offset after its last record, and remembers all that it got.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import closing
from typing import Any, Self

import aiokafka
import kafka
import kafka.errors
from aiokafka.errors import NoOffsetForPartitionError, OffsetOutOfRangeError
from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from servers.kafka_programs import KafkaPrograms
from tiered_storage_airflow.demo_cluster.ledger import Place
from tiered_storage_airflow.demo_cluster.load import Background

METADATA_MS = 2000
"""How soon a client knows new partitions."""
POLL_SECONDS = 0.2
_ENDED_BY_SIGTERM = 143
"""What a Java program ends with."""
_LOST = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE})


class GatewayReader(Background):
    """Reads from offset 0 until it is stopped."""

    sees_aborted = False
    """Whether it gets the records of aborted transactions too."""
    only: tuple[str, int] | None = None
    """The partition that it reads, if it does not read all."""

    def __init__(self, name: str) -> None:
        """Start nothing yet."""
        super().__init__(name)
        self.name = name
        self.offsets: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
        """Those of each partition's records, in the order in which they came."""
        self.keys: dict[Place, bytes] = {}
        self.failures: list[str] = []
        """What would have made this reader jump, or end."""

    def take(self, place: Place, key: bytes) -> None:
        """Note one record."""
        self.offsets[place.topic, place.partition].append(place.offset)
        self.keys[place] = key

    def take_message(self, message: Message) -> None:
        """Note what librdkafka gave: a record, or an error that would make its consumer jump or end."""
        error = message.error()
        if error is None:
            self.take(Place.of(message), bytes(message.key() or b""))
        elif error.code() in _LOST or error.fatal():
            self.failures.append(str(error))

    def next_offset(self, topic: str, partition: int) -> int:
        """Return the offset after the last record that came, 0 before the first."""
        read = self.offsets[topic, partition]
        return read[-1] + 1 if read else 0

    def unread(self, acknowledged: Mapping[bytes, Place]) -> list[str]:
        """Return the acknowledged records that it should have read, and has not."""
        return [
            f"{key.decode()} in {place}"
            for key, place in acknowledged.items()
            if self.only in (None, (place.topic, place.partition)) and self.keys.get(place) != key
        ]

    def elsewhere(self, acknowledged: Mapping[bytes, Place]) -> list[str]:
        """Return the acknowledged records that it got at another place than theirs."""
        return [
            f"{key.decode()} at {place}" for place, key in self.keys.items() if acknowledged.get(key, place) != place
        ]

    def lags(self, topic: str, log_starts: Mapping[int, int]) -> bool:
        """Whether it still has to read what the brokers have deleted."""
        return any(self.next_offset(topic, number) < start for number, start in log_starts.items())

    def out_of_order(self) -> dict[tuple[str, int], list[int]]:
        """Return the offsets that came twice, or after a later one, by partition."""
        return {
            partition: [offset for before, offset in zip([-1, *offsets], offsets, strict=False) if offset <= before]
            for partition, offsets in self.offsets.items()
            if offsets != sorted(set(offsets))
        }


class LibrdkafkaReader(GatewayReader):
    """confluent-kafka's consumer, alone in a group of `protocol`: classic, or consumer (KIP-848).

    It waits for `pause_seconds` after each record, until somebody sets them to 0.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        topics: list[str],
        protocol: str,
        isolation: str,
        beside: str = "all",
        pause_seconds: float = 0,
    ) -> None:
        """Start nothing yet; `beside` is the fault that it is for, a part of its name."""
        super().__init__(f"librdkafka-{protocol}-{isolation}-{beside}")
        self.pause_seconds = pause_seconds
        self.sees_aborted = isolation == "read_uncommitted"
        self._topics = topics
        self._is_incremental = protocol == "consumer"
        self._properties = {
            "bootstrap.servers": bootstrap_servers,
            "group.id": self.name,
            "group.protocol": protocol,
            "isolation.level": isolation,
            "enable.auto.commit": False,
            # It never has to look for a place to begin at: an offset out of range is a failure.
            "auto.offset.reset": "error",
            "check.crcs": True,
            "topic.metadata.refresh.interval.ms": METADATA_MS,
            # It asks for what it takes now: what it has asked for ahead would be there in a fault too.
            "queued.max.messages.kbytes": 64,
            "fetch.max.bytes": 1 << 20,
            "log_level": 0,
        }

    def _run(self) -> None:
        with closing(Consumer(self._properties)) as consumer:
            consumer.subscribe(self._topics, on_assign=self._continue)
            while not self._stopped.is_set():
                # One at a time: a batch could hold records from before and after a change of the assignment.
                message = consumer.poll(POLL_SECONDS)
                if message is not None:
                    self.take_message(message)
                    self._stopped.wait(self.pause_seconds)

    def _continue(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        for each in partitions:
            each.offset = self.next_offset(each.topic, each.partition)
        (consumer.incremental_assign if self._is_incremental else consumer.assign)(partitions)


class AssignedReader(GatewayReader):
    """A consumer without a group, of committed records: it assigns itself the partitions that there are."""

    def __init__(self, name: str, bootstrap_servers: str, topics: list[str]) -> None:
        """Start nothing yet."""
        super().__init__(name)
        self._topics = topics
        self._properties: dict[str, Any] = {
            "bootstrap_servers": bootstrap_servers,
            "isolation_level": "read_committed",
            "auto_offset_reset": "none",
            "enable_auto_commit": False,
            "metadata_max_age_ms": METADATA_MS,
        }

    def _follow_partitions(
        self,
        consumer: aiokafka.AIOKafkaConsumer | kafka.KafkaConsumer,
        partition: type[aiokafka.TopicPartition | kafka.TopicPartition],
    ) -> None:
        """Read all partitions that there are now, each from the offset after the last record."""
        known = {
            partition(topic, number)
            for topic in self._topics
            # It knows nothing of a topic before it reads a partition of it.
            for number in consumer.partitions_for_topic(topic) or (0,)
        }
        if known <= consumer.assignment():
            return
        consumer.assign(list(known))
        for each in known:
            consumer.seek(each, self.next_offset(each.topic, each.partition))

    def _take_all(self, found: Mapping[Any, Iterable[Any]]) -> None:
        for partition, records in found.items():
            for record in records:
                self.take(Place(partition.topic, partition.partition, record.offset), record.key or b"")


class KafkaPythonReader(AssignedReader):
    """kafka-python's consumer."""

    def _run(self) -> None:
        with closing(kafka.KafkaConsumer(**self._properties)) as consumer:
            while not self._stopped.is_set():
                self._follow_partitions(consumer, kafka.TopicPartition)
                try:
                    self._take_all(consumer.poll(timeout_ms=int(POLL_SECONDS * 1000)))
                except (kafka.errors.OffsetOutOfRangeError, kafka.errors.NoOffsetForPartitionError) as error:
                    self.failures.append(repr(error))
                    break


class AiokafkaReader(AssignedReader):
    """aiokafka's consumer."""

    def _run(self) -> None:
        asyncio.run(self._read())

    async def _read(self) -> None:
        async with aiokafka.AIOKafkaConsumer(**self._properties) as consumer:
            while not self._stopped.is_set():
                self._follow_partitions(consumer, aiokafka.TopicPartition)
                try:
                    self._take_all(await consumer.getmany(timeout_ms=int(POLL_SECONDS * 1000)))
                except (OffsetOutOfRangeError, NoOffsetForPartitionError) as error:
                    self.failures.append(repr(error))
                    break


class JavaReader(GatewayReader):
    """Kafka's own console consumer, of partition 0 of one topic."""

    def __init__(self, programs: KafkaPrograms, bootstrap_servers: str, topic: str) -> None:
        """Start nothing yet."""
        super().__init__("java")
        self._topic = topic
        self.only = (topic, 0)
        self._command = programs.command(
            "org.apache.kafka.tools.consumer.ConsoleConsumer",
            *("--bootstrap-server", bootstrap_servers, "--topic", topic),
            *("--partition", "0", "--offset", "earliest", "--isolation-level", "read_committed"),
            *("--formatter-property", "print.offset=true", "--formatter-property", "print.key=true"),
            *("--formatter-property", "print.value=false"),
        )

    def stop(self) -> None:
        """End the program."""
        self._process.terminate()
        super().stop()

    def __enter__(self) -> Self:
        self._process: subprocess.Popen[str] = subprocess.Popen(
            self._command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        super().__enter__()
        return self

    def _run(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            found = re.fullmatch(r"Offset:(\d+)\t(\S+)\n", line)
            if found is None:
                self.failures.append(line)
            else:
                self.take(Place(self._topic, 0, int(found[1])), found[2].encode())
        if not self._stopped.is_set() and self._process.wait() != _ENDED_BY_SIGTERM:
            self.failures.append(f"the program ended with {self._process.returncode}")


def all_readers(programs: KafkaPrograms, bootstrap_servers: str, topic: str, decided: str) -> list[GatewayReader]:
    """Return a reader of each kind, of `topic` and of `decided`, which has transactions."""
    topics = [topic, decided]
    return [
        LibrdkafkaReader(bootstrap_servers, topics, "classic", "read_committed"),
        LibrdkafkaReader(bootstrap_servers, topics, "classic", "read_uncommitted"),
        LibrdkafkaReader(bootstrap_servers, topics, "consumer", "read_committed"),
        AiokafkaReader("aiokafka", bootstrap_servers, topics),
        KafkaPythonReader("kafka-python", bootstrap_servers, topics),
        JavaReader(programs, bootstrap_servers, topic),
    ]
