"""kafka-python's consumer."""

from __future__ import annotations

import time

from kafka import KafkaConsumer, TopicPartition

from support.kafka_clients import REQUEST_SECONDS
from tiered_storage.kafka_log.records.record import Record


def consume_all(bootstrap_servers: str, topic: str, partition: int = 0, *, group: str | None = None) -> list[Record]:
    """Read a partition from its first offset to its end, assigned or as the only member of `group`.

    A group has to commit the end. Raises TimeoutError if no record comes for REQUEST_SECONDS.
    """
    asked = TopicPartition(topic, partition)
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap_servers, group_id=group, auto_offset_reset="earliest", enable_auto_commit=False
    )
    try:
        if group is None:
            consumer.assign([asked])
            consumer.seek_to_beginning(asked)
        else:
            consumer.subscribe([topic])
        end: int = consumer.end_offsets([asked])[asked]
        records = _read_to(consumer, asked, end)
        if group is not None:
            consumer.commit()
            assert consumer.committed(asked) == end
    finally:
        consumer.close()
    return records


def _read_to(consumer: KafkaConsumer, asked: TopicPartition, end: int) -> list[Record]:
    records: list[Record] = []
    deadline = time.monotonic() + REQUEST_SECONDS
    while asked not in consumer.assignment() or consumer.position(asked) < end:
        for message in consumer.poll(timeout_ms=1000).get(asked, ()):
            headers = tuple(message.headers)
            records.append(Record(message.offset, message.timestamp, message.key, message.value, headers))
            deadline = time.monotonic() + REQUEST_SECONDS
        if time.monotonic() > deadline:
            raise TimeoutError(f"{asked}: no record came after {len(records)}")
    return records
