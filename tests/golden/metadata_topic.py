"""What a broker that tiers by itself wrote into its topic `__remote_log_metadata`.

metadata-topic.json has the cluster's id, the number of metadata partitions, and each record: its metadata partition,
its offset, its value in base64.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from servers.kafka_programs import KafkaPrograms
from servers.real_kafka import RealKafka
from servers.tiering_kafka import TIERED, tiering_kafka
from support.records import varied_records
from support.waiting import wait_for
from tiered_storage.kafka_log.files.topic_partition import REMOTE_LOG_METADATA_TOPIC
from tiered_storage.kafka_log.records.record import Record
from tiered_storage.remote_log.metadata.topic.records import MetadataEvent, decode_event
from tiered_storage.remote_log.model import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    SegmentState,
)

GOLDEN = Path(__file__).parent
FILE = "metadata-topic.json"
METADATA_PARTITIONS = 50
TOPICS = {"orders": 3, "payments": 2, "refunds": 1}
"""The topics that the broker tiers, with their numbers of partitions; the last one is deleted in the end."""

_WAIT_SECONDS = 90
_RECORDS = 400
_PROPERTIES = {
    "rlmm.config.remote.log.metadata.topic.num.partitions": str(METADATA_PARTITIONS),
    "transaction.max.timeout.ms": "60000",
}


@dataclass(frozen=True, slots=True)
class TopicRecord:
    """A record of the metadata topic."""

    partition: int
    offset: int
    value: bytes


@dataclass(frozen=True, slots=True)
class MetadataTopic:
    """The records of a metadata topic of `partitions`, by partition and offset."""

    cluster_id: str
    partitions: int
    records: tuple[TopicRecord, ...]

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Return what `save` wrote into `folder`."""
        content = json.loads((folder / FILE).read_text())
        records = (TopicRecord(each[0], each[1], base64.b64decode(each[2])) for each in content["records"])
        return cls(content["cluster_id"], content["partitions"], tuple(records))

    def save(self, folder: Path) -> None:
        """Write it into `folder`."""
        content: dict[str, Any] = asdict(self)
        content["records"] = [[each.partition, each.offset, _base64(each.value)] for each in self.records]
        text = json.dumps(content).replace(", [", ",\n[")
        (folder / FILE).write_text(text + "\n")

    def events(self) -> list[MetadataEvent]:
        """Return the records decoded."""
        return [decode_event(each.value, self.cluster_id) for each in self.records]


def metadata_kafka(programs: KafkaPrograms, root: Path) -> RealKafka:
    """Return a broker, not started, that tiers by itself, with 50 metadata partitions."""
    return tiering_kafka(programs, root, _PROPERTIES)


def let_it_tier(kafka: RealKafka) -> None:
    """Let a broker of `metadata_kafka` copy segments of TOPICS, delete some, and delete a topic.

    Kafka 4.3 writes no record of a partition's deletion: it deletes the segments.
    """
    for topic, partitions in TOPICS.items():
        kafka.client.create_topic(topic, partitions, TIERED)
    for topic, partitions in TOPICS.items():
        for partition in range(partitions):
            kafka.client.produce(topic, varied_records(_RECORDS, seed=1), partition=partition, batch_num_messages=50)
    _abort(kafka, "payments")
    for topic, partitions in TOPICS.items():
        _wait_for(kafka, _states(topic, SegmentState.COPY_SEGMENT_FINISHED, at_least=3 * partitions))
    _wait_for(kafka, _has_aborted)
    kafka.client.delete_records("orders", 0, _RECORDS)
    kafka.client.delete_topic("refunds")
    for topic in ("orders", "refunds"):
        _wait_for(kafka, _states(topic, SegmentState.DELETE_SEGMENT_FINISHED, at_least=3))


def metadata_topic_of(kafka: RealKafka) -> MetadataTopic:
    """Read the whole metadata topic of a broker of `metadata_kafka`."""
    records = [
        TopicRecord(partition, each.offset, each.value or b"")
        for partition in range(METADATA_PARTITIONS)
        for each in kafka.client.consume_all(REMOTE_LOG_METADATA_TOPIC, partition)
    ]
    return MetadataTopic(kafka.client.cluster_id(), METADATA_PARTITIONS, tuple(records))


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _abort(kafka: RealKafka, topic: str) -> None:
    """Abort a transaction in partition 0 of `topic`, and fill up its segment."""
    producer = kafka.client.producer(transactional_id=topic, max_in_flight=5)
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(topic, b"aborted", partition=0)
    producer.flush()
    producer.abort_transaction()
    kafka.client.wait_until_decided(topic)
    kafka.client.produce(topic, (Record(0, 1, None, bytes(1_000)) for _ in range(40)), batch_num_messages=5)


def _wait_for(kafka: RealKafka, condition: Callable[[Sequence[MetadataEvent]], bool]) -> None:
    wait_for(lambda: condition(metadata_topic_of(kafka).events()), kafka.output_tail, _WAIT_SECONDS)


def _states(topic: str, state: SegmentState, at_least: int) -> Callable[[Sequence[MetadataEvent]], bool]:
    def have(events: Sequence[MetadataEvent]) -> bool:
        updates = [each.record for each in events if isinstance(each.record, RemoteLogSegmentMetadataUpdate)]
        of_topic = [each for each in updates if each.segment_id.topic_id_partition.topic == topic]
        return sum(update.state is state for update in of_topic) >= at_least

    return have


def _has_aborted(events: Sequence[MetadataEvent]) -> bool:
    segments = [each for each in events if isinstance(each.record, RemoteLogSegmentMetadata)]
    return not all(each.is_transaction_index_empty for each in segments)
