"""What a writer of the metadata topic does with records that its client refuses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from support.metadata_stores import topic_options
from support.topic_brokers import SERVERS
from tiered_storage.errors import ConfigurationError, MetadataUnavailableError
from tiered_storage.remote_log.metadata.sql.topic_segments import MetadataTopicId
from tiered_storage.remote_log.metadata.topic.cluster import metadata_writer
from tiered_storage.remote_log.metadata.topic.cluster.metadata_writer import MetadataWriter, OutgoingRecord
from tiered_storage.remote_log.metadata.topic.cluster.options import TopicOptions

TOPIC = MetadataTopicId("cluster-1", "metadata", "topic-id-of-metadataAA", 3)
RECORDS = [OutgoingRecord(0, b"first"), OutgoingRecord(1, b"second")]


class Acknowledged:
    """The message of a delivery; None: the broker does not know its offset."""

    def __init__(self, offset: int | None) -> None:
        self._offset = offset

    def offset(self) -> int | None:
        return self._offset


class Client:
    """A producer that refuses the second record with `error`, and acknowledges all others at `offset`.

    Its methods are those of confluent_kafka.Producer.
    """

    def __init__(self, error: Exception | None = None, offset: int | None = 7) -> None:
        self.error, self.offset = error, offset
        self.queue: list[Callable[[Any, Any], None]] = []

    def produce(self, *_: object, partition: int, on_delivery: Callable[[Any, Any], None]) -> None:
        if self.error is not None and partition == 1:
            raise self.error
        self.queue.append(on_delivery)

    def flush(self, _: float) -> int:
        for delivered in self.queue:
            delivered(None, Acknowledged(self.offset))
        self.queue = []
        return 0

    def purge(self) -> None:
        self.queue = []


@pytest.fixture(autouse=True)
def producers() -> Iterator[dict[Any, Any]]:
    """The producers that are kept, none before and after the test."""
    metadata_writer._producers.clear()
    yield metadata_writer._producers
    metadata_writer._producers.clear()


@pytest.mark.parametrize(
    ("client", "error", "message"),
    [
        (Client(KafkaException(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))), ConfigurationError, "6 bytes"),
        (Client(BufferError("Local: Queue full")), MetadataUnavailableError, "Queue full"),
        (Client(offset=None), MetadataUnavailableError, "does not know where"),
    ],
    ids=["too large", "full", "unknown offset"],
)
def test_a_client_that_failed_sends_nothing_later(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    producers: dict[Any, Any],
    client: Client,
    error: type[Exception],
    message: str,
) -> None:
    monkeypatch.setattr("confluent_kafka.Producer", lambda _: client)
    writer = MetadataWriter(TopicOptions.of(topic_options(SERVERS, tmp_path)))

    with pytest.raises(error, match=message):
        writer.write(TOPIC, RECORDS)

    assert (client.queue, producers) == ([], {})


def test_a_client_that_wrote_everything_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, producers: dict[Any, Any]
) -> None:
    client = Client()
    monkeypatch.setattr("confluent_kafka.Producer", lambda _: client)

    assert MetadataWriter(TopicOptions.of(topic_options(SERVERS, tmp_path))).write(TOPIC, RECORDS) == [7, 7]
    assert list(producers.values()) == [client]
