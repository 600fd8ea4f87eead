"""Producers that write to a topic without a pause, and a consumer that follows: the clients of a live cluster."""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import closing
from itertools import count
from threading import Event, Thread
from types import TracebackType
from typing import Any, Self

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer

from tiered_storage_airflow.demo_cluster.ledger import Ledger, Place

FLUSH_SECONDS = 120.0
RECORD_BYTES = 1000
_TICK_SECONDS = 0.05


class Background(ABC):
    """Runs `_run` in a thread of its own, until it is stopped. A context manager that starts and stops it."""

    def __init__(self, name: str) -> None:
        """Start nothing yet."""
        self._stopped = Event()
        self._thread = Thread(target=self._run, name=name)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()

    def stop(self) -> None:
        """Let it end what it has begun, and wait for that."""
        self._stopped.set()
        self._thread.join()

    @abstractmethod
    def _run(self) -> None:
        """Work until `_stopped` is set."""


class LoadProducer(Background):
    """An idempotent producer: `rate` records a second to `topic`, each with its own key.

    A record that the brokers refuse is never sent again, and is not in the ledger. Its end sends what is left, and
    waits for the answers.
    """

    def __init__(
        self, name: str, topic: str, properties: Mapping[str, Any], ledger: Ledger, rate: int, size: int = RECORD_BYTES
    ) -> None:
        """Start nothing yet; `properties` are librdkafka's. Records have values of `size` bytes."""
        super().__init__(f"producer of {topic}")
        self._name = name
        self._topic = topic
        self._ledger = ledger
        self._rate = rate
        self._size = size
        self._numbers = count()
        self._properties = {
            "enable.idempotence": True,
            "acks": "all",
            # If a request fails, the brokers refuse the requests sent after it. librdkafka then takes a new producer
            # epoch, and sends records again that the brokers already have (confluentinc/librdkafka, issue 4953).
            "max.in.flight.requests.per.connection": 1,
            "linger.ms": 20,
            # Longer than any broker is away in these runs.
            "message.timeout.ms": 120_000,
            "topic.metadata.refresh.interval.ms": 2000,
            "log_level": 0,
            **properties,
        }
        self.refused: list[str] = []
        """Why records were not acknowledged."""

    def _run(self) -> None:
        producer = Producer(self._properties)
        begun, sent = time.monotonic(), 0
        while not self._stopped.wait(_TICK_SECONDS):
            due = int((time.monotonic() - begun) * self._rate)
            while sent < due and not self._stopped.is_set():
                if not self._send(producer):
                    producer.flush(FLUSH_SECONDS)
                    # After a fatal error an idempotent producer accepts no more records.
                    producer = Producer(self._properties)
                sent += 1
            producer.poll(0)
        producer.flush(FLUSH_SECONDS)

    def _send(self, producer: Producer) -> bool:
        """Enqueue a record; return whether the producer still works."""
        key = f"{self._name}-{next(self._numbers)}".encode()
        # The halves are equal, so every codec makes records smaller. Without one, segments fill as fast as they come.
        value = 2 * os.urandom(self._size // 2)
        while True:
            try:
                producer.produce(self._topic, value, key, on_delivery=self._delivered)
            except BufferError:
                producer.poll(0.1)
            except KafkaException as error:
                self.refused.append(str(error))
                return False
            else:
                return True

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.refused.append(str(error))
            return
        self._ledger.acknowledge(bytes(message.key() or b""), Place.of(message))


class LoadConsumer(Background):
    """A consumer of `topics` in the group `live-consumer`."""

    def __init__(self, topics: list[str], properties: Mapping[str, Any]) -> None:
        """Start nothing yet; `properties` are librdkafka's."""
        super().__init__("consumer")
        self._topics = topics
        self._properties = {
            "group.id": "live-consumer",
            "auto.offset.reset": "earliest",
            "log_level": 0,
            **properties,
        }
        self.keys: set[bytes] = set()
        """The keys of all records that came."""

    def _run(self) -> None:
        with closing(Consumer(self._properties)) as consumer:
            consumer.subscribe(self._topics)
            while not self._stopped.is_set():
                for message in consumer.consume(1000, timeout=0.5):
                    if message.error() is None:
                        self.keys.add(bytes(message.key() or b""))
