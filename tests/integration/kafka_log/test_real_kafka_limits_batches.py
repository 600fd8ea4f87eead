"""How large a batch may be: a log takes what a live broker takes, to the byte, and cuts its segments alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import KafkaError

from golden.aiokafka_clients import ProduceRefusedError, produce_batch
from servers.real_kafka import RealKafka
from support.local_logs import NOW, create
from tiered_storage.errors import ConfigurationError
from tiered_storage.kafka_log.log.log_config import LogConfig
from tiered_storage.kafka_log.records.compression import Compression
from tiered_storage.kafka_log.records.record import Record
from tiered_storage.kafka_log.records.record_batch import encode_batch

MESSAGE_BYTES = 1000
SEGMENT_BYTES = 1 << 20
"""The least that a broker takes for a topic."""


@dataclass(frozen=True, slots=True)
class Sent:
    """One batch that a topic is sent: of one record, and of that codec."""

    record: Record
    codec: Compression = Compression.NONE

    @classmethod
    def of_size(cls, size: int) -> Sent:
        """A batch of exactly `size` bytes."""
        # Nearly as many bytes of value: with more of them a length before it could take a byte that it will not need.
        nearly = size - 100
        sent = cls(_record(nearly + size - len(cls(_record(nearly)).batch())))
        assert len(sent.batch()) == size
        return sent

    def batch(self) -> bytes:
        return encode_batch([self.record], self.codec)


def _record(value_bytes: int) -> Record:
    return Record(0, NOW, b"key", bytes(value_bytes))


SMALL, PACKED = Sent(_record(10)), Sent(_record(2 * SEGMENT_BYTES), Compression.ZSTD)
TOPICS = {
    "limited-by-message": (
        LogConfig(segment_bytes=SEGMENT_BYTES, max_message_bytes=MESSAGE_BYTES),
        [*map(Sent.of_size, (MESSAGE_BYTES, MESSAGE_BYTES + 1)), PACKED, SMALL],
        [0, KafkaError.MSG_SIZE_TOO_LARGE, 1, 2],
    ),
    "limited-by-segment": (
        LogConfig(segment_bytes=SEGMENT_BYTES, max_message_bytes=2 * SEGMENT_BYTES),
        [
            SMALL,
            *map(Sent.of_size, (SEGMENT_BYTES, SEGMENT_BYTES + 1, 2 * SEGMENT_BYTES, 2 * SEGMENT_BYTES + 1)),
            PACKED,
        ],
        [0, 1, *[KafkaError.RECORD_LIST_TOO_LARGE] * 2, KafkaError.MSG_SIZE_TOO_LARGE, 2],
    ),
    "limited-by-both": (
        LogConfig(segment_bytes=SEGMENT_BYTES, max_message_bytes=SEGMENT_BYTES),
        [*map(Sent.of_size, (SEGMENT_BYTES + 1, SEGMENT_BYTES, SEGMENT_BYTES))],
        [KafkaError.MSG_SIZE_TOO_LARGE, 0, 1],
    ),
}
"""Each topic's settings, what it is sent, and for each batch the offset that it gets, or the broker's refusal."""
REFUSALS = {KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE}


def by_the_broker(kafka: RealKafka, topic: str, sent: Sent) -> int:
    try:
        return produce_batch(kafka.bootstrap_servers, topic, 0, sent.batch())
    except ProduceRefusedError as refused:
        return refused.code


def by_us(append: Callable[[], int]) -> int | None:
    """The offset that `append` comes to, None where the batch is too large."""
    try:
        return append()
    except ConfigurationError as error:
        assert "max_message_bytes and segment_bytes allow" in str(error)
        return None


def logs_in(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.glob("*.log")}


@pytest.mark.parametrize("topic", TOPICS)
def test_a_log_takes_batches_as_large_as_a_broker_takes_them(real_kafka: RealKafka, tmp_path: Path, topic: str) -> None:
    config, batches, outcomes = TOPICS[topic]
    settings = {"segment.bytes": config.segment_bytes, "max.message.bytes": config.max_message_bytes}
    real_kafka.client.create_topic(topic, 1, {name: str(value) for name, value in settings.items()})

    assert [by_the_broker(real_kafka, topic, sent) for sent in batches] == outcomes
    expected = [None if outcome in REFUSALS else outcome for outcome in outcomes]
    with create(tmp_path / "encoded", config=config) as encoded:
        assert [by_us(partial(encoded.append_encoded_batch, sent.batch())) for sent in batches] == expected
    with create(tmp_path / "records", config=config) as records:
        assert [by_us(partial(records.append, [sent.record], sent.codec)) for sent in batches] == expected
    theirs = logs_in(real_kafka.log_dir / f"{topic}-0")
    assert logs_in(encoded.directory) == logs_in(records.directory) == theirs
