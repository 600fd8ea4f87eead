"""Which partition of the metadata topic has the metadata of a partition.

Released Kafka hashes the topic's id and the partition's number; the draft of KIP-405 hashes the text `topic-partition`.
"""

from __future__ import annotations

from tiered_storage.errors import ConfigurationError
from tiered_storage.kafka_log.files.kafka_uuid import decode_uuid
from tiered_storage.remote_log.model import TopicIdPartition

_MASK_32 = 0xFFFFFFFF
_POSITIVE = 0x7FFFFFFF

_MURMUR2_SEED = 0x9747B28C
_MURMUR2_FACTOR = 0x5BD1E995
_MURMUR2_SHIFT = 24
_INT_BYTES = 4


def metadata_partition(partition: TopicIdPartition, partitions: int) -> int:
    """Return the metadata partition of `partition` in a topic of `partitions`, as RemoteLogMetadataTopicPartitioner.

    Raises ConfigurationError if there is no partition, or the topic's id is not a UUID.
    """
    _check(partitions)
    topic_id = decode_uuid(partition.topic_id)
    most, least = int.from_bytes(topic_id[:8], "big"), int.from_bytes(topic_id[8:], "big")
    hashed = 1
    for part in (_hash_of_long(least), _hash_of_long(most), partition.partition):
        hashed = (31 * hashed + part) & _MASK_32
    return (_murmur2_of_int(hashed) & _POSITIVE) % partitions


def draft_metadata_partition(partition: TopicIdPartition, partitions: int) -> int:
    """Return the metadata partition of `partition` by the draft of KIP-405: `hashCode` of its name, made positive.

    Raises ConfigurationError if there is no partition.
    """
    _check(partitions)
    hashed = 0
    for character in map(ord, f"{partition.topic}-{partition.partition}"):
        hashed = (31 * hashed + character) & _MASK_32
    return (hashed & _POSITIVE) % partitions


def _check(partitions: int) -> None:
    if partitions < 1:
        raise ConfigurationError(f"a metadata topic of {partitions} partitions is invalid: it has 1 or more")


def _hash_of_long(bits: int) -> int:
    """Return Java's Long.hashCode of the 64 `bits`."""
    return (bits ^ bits >> 32) & _MASK_32


def _murmur2_of_int(value: int) -> int:
    """Return Kafka's murmur2 of the 4 bytes of `value`, the highest first."""
    word = int.from_bytes(value.to_bytes(_INT_BYTES, "big"), "little")
    word = word * _MURMUR2_FACTOR & _MASK_32
    word = (word ^ word >> _MURMUR2_SHIFT) * _MURMUR2_FACTOR & _MASK_32
    hashed = (_MURMUR2_SEED ^ _INT_BYTES) * _MURMUR2_FACTOR & _MASK_32 ^ word
    hashed = (hashed ^ hashed >> 13) * _MURMUR2_FACTOR & _MASK_32
    return hashed ^ hashed >> 15
