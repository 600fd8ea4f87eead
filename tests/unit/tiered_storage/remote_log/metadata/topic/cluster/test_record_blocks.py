"""Blocks of a metadata partition end where their memory does, also within one answer of the brokers."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tiered_storage.kafka_log.records.compression import Compression
from tiered_storage.kafka_log.records.record import Record
from tiered_storage.kafka_log.records.record_batch import encode_batch
from tiered_storage.remote_log.metadata.sql.topic_segments import MetadataTopicId
from tiered_storage.remote_log.metadata.topic.cluster import metadata_log, record_blocks
from tiered_storage.remote_log.metadata.topic.cluster.metadata_log import Found, LogValues, MetadataLog
from tiered_storage.remote_log.metadata.topic.cluster.options import TopicOptions
from tiered_storage.remote_log.metadata.topic.cluster.record_blocks import fetch_block

TOPIC = MetadataTopicId("cluster-1", "metadata", "topic-id-of-metadataAA", 1)
VALUE_BYTES = 10_000
IN_A_BATCH = 3


class AnsweredLog(MetadataLog):
    """A metadata log whose brokers answer each Fetch with all batches that end at the offset asked for, or later."""

    def __init__(self, batches: list[bytes]) -> None:
        super().__init__(TopicOptions.of({"remote.log.metadata.cache.directory": "unused"}))
        self._batches = batches

    def read(
        self,
        topic: MetadataTopicId,  # noqa: ARG002 - there is one
        partition: int,  # noqa: ARG002 - there is one
        offset: int,
        decode: Callable[[memoryview], tuple[Found, int]],
    ) -> tuple[Found, int]:
        return decode(memoryview(b"".join(self._batches[offset // IN_A_BATCH :])))


def a_log(*codecs: Compression) -> AnsweredLog:
    """Return a log of batches in these codecs, each of IN_A_BATCH records of VALUE_BYTES."""
    return AnsweredLog(
        [
            encode_batch(
                [Record(IN_A_BATCH * at + each, 1_000, None, bytes(VALUE_BYTES)) for each in range(IN_A_BATCH)], codec
            )
            for at, codec in enumerate(codecs)
        ]
    )


COMPRESSED = (Compression.ZSTD, Compression.LZ4, Compression.NONE, Compression.GZIP)


def test_a_block_ends_with_the_compressed_batch_that_fills_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_blocks, "_MOST_BYTES", 2 * IN_A_BATCH * VALUE_BYTES)
    log, end = a_log(*COMPRESSED), IN_A_BATCH * len(COMPRESSED)
    ends, offsets, offset = [], [], 0

    while offset < end:
        block = fetch_block(log, TOPIC, 0, offset, end)
        offsets += block.offsets.tolist()
        assert block.values.to_pylist() == [bytes(VALUE_BYTES)] * len(block)
        ends.append(offset := block.next_offset)

    assert ends == [6, 12]
    assert offsets == list(range(end))


def test_a_block_of_plain_batches_ends_with_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_blocks, "_MOST_BYTES", VALUE_BYTES)

    block = fetch_block(a_log(Compression.NONE, Compression.NONE), TOPIC, 0, 1, 6)

    assert (block.offsets.tolist(), block.next_offset) == ([1, 2, 3, 4, 5], 6)


def test_values_end_with_the_batch_that_fills_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata_log, "_MOST_VALUE_BYTES", 2 * VALUE_BYTES)

    found = a_log(*COMPRESSED).fetch(TOPIC, 0, 1)

    assert found == LogValues(0, ((1, bytes(VALUE_BYTES)), (2, bytes(VALUE_BYTES))), 3, 0)
