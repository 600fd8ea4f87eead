"""The topic `__delete_failed_remote_log_segments`: each segment whose objects could not be deleted (KIP-405's draft).

A record is sent for every failed attempt. Its key is the segment's id, so that compaction keeps the last attempt. Its
value is one JSON object, in UTF-8:

    version              1; later releases may add fields
    clusterId, topic, topicId, partition
    segmentId            a Kafka Uuid, as are clusterId and topicId; `topic` is the id if the name is unknown
    startOffset, endOffset      of the segment; the end is inclusive
    segmentSizeInBytes   0: the copy never finished
    failedAtMs           ms since 1970
    error                the reason, at most 2,000 characters

The list in the metadata stays the truth: the next run deletes again what is on it, and no record says that it could.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tiered_storage.errors import ConfigurationError, SourceClusterError
from tiered_storage.remote_log.context import RemoteLogContext
from tiered_storage.remote_log.metadata.safety import printable
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message, Producer

VALUE_VERSION = 1
DELIVERY_SECONDS = 30
_GRACE_SECONDS = 5
_PROPAGATION_MS = 5_000
"""How long the client waits for a topic that it does not find."""
_SETTING = "remote.log.failed.deletions.topic"


@dataclass(frozen=True, slots=True)
class FailedDeletion:
    """An attempt to delete the objects of `segment` that failed at `failed_at` (ms)."""

    segment: RemoteLogSegmentMetadata
    failed_at: int
    error: str

    @property
    def key(self) -> bytes:
        """The key of its record."""
        return self.segment.segment_id.id.encode()

    @property
    def value(self) -> bytes:
        """The value of its record."""
        partition = self.segment.topic_id_partition
        content = {
            "version": VALUE_VERSION,
            "clusterId": partition.cluster_id,
            "topic": partition.topic,
            "topicId": partition.topic_id,
            "partition": partition.partition,
            "segmentId": self.segment.segment_id.id,
            "startOffset": self.segment.start_offset,
            "endOffset": self.segment.end_offset,
            "segmentSizeInBytes": self.segment.size,
            "failedAtMs": self.failed_at,
            "error": printable(self.error),
        }
        return json.dumps(content, ensure_ascii=False).encode()


@dataclass(frozen=True, slots=True)
class FailedDeletionsTopic:
    """The topic `name` of the cluster that `properties` lead to, by librdkafka's names.

    After a failure it sends nothing more: the rest of a run must not wait for a cluster that does not answer.
    """

    name: str
    properties: Mapping[str, str] = field(repr=False)
    _failed: list[str] = field(default_factory=list, init=False, repr=False)

    @classmethod
    def of(cls, context: RemoteLogContext) -> FailedDeletionsTopic | None:
        """Return the topic that the settings name; None if they name none.

        Raises ConfigurationError if there is a topic, but no running cluster.
        """
        name = context.settings.remote_log_failed_deletions_topic
        if name is None:
            return None
        properties = context.source.access
        if "bootstrap.servers" not in properties:
            raise ConfigurationError(
                f"{_SETTING} is {name}, and no running cluster is named: set bootstrap.servers, or take the setting out"
            )
        return cls(name, properties)

    def send(self, failures: Iterable[FailedDeletion]) -> None:
        """Send a record for each of `failures`, and wait until the brokers have them all.

        Raises SourceClusterError if they do not have them all in DELIVERY_SECONDS, and ConfigurationError if the client
        refuses its properties. Does nothing after an earlier failure.
        """
        wanted = list(failures)
        if not wanted or self._failed:
            return
        refused: list[str] = []
        connection: list[str] = []

        def delivered(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                refused.append(error.str())

        from confluent_kafka import KafkaException  # noqa: PLC0415 -- as in _producer

        producer = self._producer(connection)
        try:
            for each in wanted:
                producer.produce(self.name, each.value, each.key, on_delivery=delivered)
        except (BufferError, KafkaException) as error:
            refused.append(str(error))
        if producer.flush(DELIVERY_SECONDS + _GRACE_SECONDS):
            refused.append("no broker answered")
        if refused:
            self._failed.append(refused[-1])
            reason = ", ".join(dict.fromkeys((refused[-1], *connection[-1:])))
            raise SourceClusterError(
                f"{self.name}: the topic did not take {len(wanted)} failed deletions: {reason}; create the topic if it "
                "is missing, and grant the login Write on it; 'tiered-storage failed-deletions' lists them too"
            )

    def _producer(self, said: list[str]) -> Producer:
        """Open the producer; it adds to `said` why it cannot connect."""
        # Its import takes a tenth of a second and a C library: only who sends pays for it.
        from confluent_kafka import KafkaException, Producer  # noqa: PLC0415

        settings: dict[str, Any] = {
            **self.properties,
            "log_level": 0,
            "error_cb": lambda error: said.append(error.str()),
            "enable.idempotence": True,
            "acks": "all",
            "partitioner": "murmur2_random",
            "message.timeout.ms": DELIVERY_SECONDS * 1000,
            "topic.metadata.propagation.max.ms": _PROPAGATION_MS,
        }
        try:
            return Producer(settings)
        except (KafkaException, TypeError, ValueError):
            self._failed.append("refused")
            raise ConfigurationError(
                f"{self.name}: the client refuses one of the cluster's properties (values are not shown): correct "
                "cluster.client.properties.file or the connection"
            ) from None
