"""Write records to the metadata topic, through confluent-kafka: each once, in order, on all replicas in sync."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tiered_storage.errors import ConfigurationError, MetadataUnavailableError
from tiered_storage.remote_log.metadata.sql.topic_segments import MetadataTopicId
from tiered_storage.remote_log.metadata.topic.cluster.options import TopicOptions

_OURS: Final = {"enable.idempotence": True, "acks": "all"}
_FLUSH_MARGIN_SECONDS: Final = 5.0

_in_use = threading.Lock()
_producers: dict[tuple[int, tuple[tuple[str, Any], ...]], Any] = {}
"""The producers of this process, and of those before a fork, by process and properties: a new one waits half a second
for its producer id."""


@dataclass(frozen=True, slots=True)
class OutgoingRecord:
    """A record to write: its metadata partition and its value."""

    partition: int
    value: bytes


class MetadataWriter:
    """Writes to the metadata topic, for threads and, after a fork, for processes."""

    def __init__(self, options: TopicOptions) -> None:
        """Connect to nothing yet."""
        self._options = options

    def write(self, topic: MetadataTopicId, records: Sequence[OutgoingRecord]) -> list[int]:
        """Write the records, in order; return their offsets.

        Raises MetadataUnavailableError if any was not acknowledged by all replicas in sync in time: it may be written
        or not, as readers will see. Raises ConfigurationError for a record that is larger than the client allows.
        """
        offsets: dict[int, int] = {}
        failures: list[str] = []

        def delivered(number: int) -> Callable[[Any, Any], None]:
            def call(error: Any, message: Any) -> None:
                if error is not None:
                    failures.append(str(error.str()))
                elif message.offset() is None:
                    failures.append("one was written, and its leader, which changed, does not know where")
                else:
                    offsets[number] = message.offset()

            return call

        with _in_use:
            producer = self._producer()
            for number, record in enumerate(records):
                full = self._queue(producer, topic, record, delivered(number))
                if full is not None:
                    # Those after it would be out of order.
                    failures.append(full)
                    break
            left = producer.flush(self._options.write_wait_ms / 1000 + _FLUSH_MARGIN_SECONDS)
            if left or failures or len(offsets) != len(records):
                self._drop(producer)
                why = failures[0] if failures else f"{left} records were not acknowledged"
                raise MetadataUnavailableError(
                    f"metadata topic {topic.name}: the brokers at {self._options.servers} did not take the records "
                    f"({why}): check that they run and that enough replicas are in sync, then try again"
                )
        return [offsets[number] for number in range(len(records))]

    def _queue(
        self, producer: Any, topic: MetadataTopicId, record: OutgoingRecord, delivered: Callable[[Any, Any], None]
    ) -> str | None:
        """Hand a record to the producer; return why it has no room for it, or None. Raises ConfigurationError."""
        # Imported here: it costs a tenth of a second, and most commands only read.
        from confluent_kafka import KafkaException  # noqa: PLC0415

        try:
            producer.produce(topic.name, record.value, partition=record.partition, on_delivery=delivered)
        except BufferError as error:
            return str(error)
        except KafkaException as error:
            self._drop(producer)
            raise ConfigurationError(
                f"metadata topic {topic.name}: the client refuses a record of {len(record.value)} bytes ({error}): set "
                "message.max.bytes of the producer, and max.message.bytes of the topic, to more"
            ) from error
        return None

    @staticmethod
    def _drop(producer: Any) -> None:
        """Let nothing be sent later, when its writer has long been refused."""
        producer.purge()
        _producers.clear()

    def _producer(self) -> Any:
        ours = {**_OURS, "message.timeout.ms": self._options.write_wait_ms}
        properties = {"linger.ms": 0, "log_level": 0, **self._options.client("producer"), **ours}
        key = os.getpid(), tuple(sorted(properties.items()))
        if key not in _producers:
            from confluent_kafka import KafkaException, Producer  # noqa: PLC0415

            try:
                _producers[key] = Producer(properties)
            except KafkaException as error:
                raise ConfigurationError(
                    f"the producer of metadata topic {self._options.name}: {error}: correct its properties"
                ) from error
        return _producers[key]
