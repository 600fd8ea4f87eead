"""A consumer in Python, aiokafka's, for what librdkafka's cannot read: gzip of several members."""

from __future__ import annotations

import asyncio

from aiokafka import AIOKafkaConsumer, TopicPartition

from tiered_storage.kafka_log.records.record import Record

_SECONDS = 30


def consume_all(bootstrap_servers: str, topic: str, partition: int) -> list[Record]:
    """Read a partition from offset 0 to its end; TimeoutError where the broker falls silent."""
    return asyncio.run(asyncio.wait_for(_consume_all(bootstrap_servers, TopicPartition(topic, partition)), _SECONDS))


async def _consume_all(bootstrap_servers: str, partition: TopicPartition) -> list[Record]:
    records: list[Record] = []
    async with AIOKafkaConsumer(bootstrap_servers=bootstrap_servers, enable_auto_commit=False) as consumer:
        consumer.assign([partition])
        consumer.seek(partition, 0)
        end = (await consumer.end_offsets([partition]))[partition]
        while await consumer.position(partition) < end:
            message = await consumer.getone()
            headers = tuple(message.headers)
            records.append(Record(message.offset, message.timestamp, message.key, message.value, headers))
    return records
