"""Send records in order with an idempotent producer, and map each one's offset when it is acknowledged."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from functools import partial
from typing import Any

from confluent_kafka import KafkaException

from tiered_storage.errors import ConfigurationError, TargetClusterError, TieredStorageError
from tiered_storage.kafka_log.records.record import Record
from tiered_storage.remote_log.restore.offset_map import OffsetMapWriter

_POLL_SECONDS = 0.2
_POLL_EVERY = 500
_WRITE_EVERY = 10_000


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
