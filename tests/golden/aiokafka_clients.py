"""What librdkafka cannot do: batches sent to a broker byte for byte, and reads of every framing, by aiokafka."""

from __future__ import annotations

import asyncio

import aiokafka
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import NotLeaderForPartitionError, UnknownTopicOrPartitionError
from aiokafka.protocol.produce import ProduceRequest

from tiered_storage.kafka_log.records.record import Record

_SECONDS = 30
_NOT_YET = {UnknownTopicOrPartitionError.errno, NotLeaderForPartitionError.errno}
"""Errors of partitions that were created just now."""


class ProduceRefusedError(RuntimeError):
    """A broker refused a batch; `code` is Kafka's number of the error."""

    def __init__(self, code: int) -> None:
        super().__init__(f"the broker refused the batch with error code {code}")
        self.code = code


def produce_batch(bootstrap_servers: str, topic: str, partition: int, batch: bytes) -> int:
    """Have the broker append `batch` and return its offset; ProduceRefusedError if the broker refuses it."""
    return asyncio.run(asyncio.wait_for(_produce_batch(bootstrap_servers, topic, partition, batch), _SECONDS))


async def _produce_batch(bootstrap_servers: str, topic: str, partition: int, batch: bytes) -> int:
    client = AIOKafkaClient(bootstrap_servers=bootstrap_servers)
    await client.bootstrap()
    try:
        while True:
            request = ProduceRequest(None, -1, _SECONDS * 1000, [(topic, [(partition, batch)])])
            response = await client.send(client.get_random_node(), request)
            [(_, [(_, code, base_offset, *_)])] = response.topics
            if not code:
                return int(base_offset)
            if code not in _NOT_YET:
                raise ProduceRefusedError(code)
            await asyncio.sleep(0.05)
    finally:
        await client.close()


def consume_all(bootstrap_servers: str, topic: str, partition: int) -> list[Record]:
    """Read a partition from offset 0 to its end; TimeoutError where the broker falls silent."""
    return asyncio.run(
        asyncio.wait_for(_consume_all(bootstrap_servers, aiokafka.TopicPartition(topic, partition)), _SECONDS)
    )


async def _consume_all(bootstrap_servers: str, partition: aiokafka.TopicPartition) -> list[Record]:
    records: list[Record] = []
    async with aiokafka.AIOKafkaConsumer(bootstrap_servers=bootstrap_servers, enable_auto_commit=False) as consumer:
        consumer.assign([partition])
        consumer.seek(partition, 0)
        end = (await consumer.end_offsets([partition]))[partition]
        while await consumer.position(partition) < end:
            message = await consumer.getone()
            headers = tuple(message.headers)
            records.append(Record(message.offset, message.timestamp, message.key, message.value, headers))
    return records
