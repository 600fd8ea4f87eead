"""Holds records in the target cluster against those in the store."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest

from tiered_storage.errors import ConfigurationError, TargetClusterError
from tiered_storage.kafka_log.records.record import Record
from tiered_storage.remote_log.restore.offset_map import OffsetMapWriter
from tiered_storage.remote_log.restore.target_cluster import TargetCluster, TargetTopic


def map_what_is_there(
    cluster: TargetCluster,
    topic: TargetTopic,
    partition: int,
    end: int,
    records: Iterator[Record],
    offset_map: OffsetMapWriter,
) -> int:
    """Map the records that the target has up to `end` though the map lacks them; return how many.

    `records` are those that come next in the store; where there are none, what the target has is none of ours. Raises
    ConfigurationError where the target has less than the map, or other records.
    """
    next_new = offset_map.progress[partition].next_new
    if end < next_new:
        raise ConfigurationError(
            f"{topic.name}-{partition} ends at {end}, and {offset_map.path} tells of records up to {next_new - 1}: it "
            "is another topic of the same name, or has lost records; begin anew with another map"
        )
    count = 0
    for there in cluster.records(topic.name, partition, next_new, end):
        record = next(records, None)
        if record is None:
            break
        if not _are_the_same(record, there, topic):
            raise ConfigurationError(
                f"{topic.name}-{partition}: offset {there.offset} does not hold the record of offset {record.offset} "
                "that was to come next: somebody else writes into it; begin anew in a topic of its own"
            )
        offset_map.add(partition, record.offset)
        count += 1
    offset_map.flush()
    return count


def compare(
    cluster: TargetCluster, topic: TargetTopic, partition: int, first: int, end: int, records: Iterator[Record]
) -> None:
    """Read offsets `first` to `end` (exclusive) of the target: they have to be `records`. Raises TargetClusterError."""
    for there, record in zip_longest(cluster.records(topic.name, partition, first, end), records):
        if there is None or record is None or not _are_the_same(record, there, topic):
            lost = f"the record of offset {record.offset}" if record else "nothing of the store"
            found = f"what offset {there.offset} holds" if there else "nothing"
            raise TargetClusterError(f"{topic.name}-{partition}: read back, {found} stands for {lost}")


def _are_the_same(record: Record, there: Record, topic: TargetTopic) -> bool:
    has_own_time = record.timestamp > 0 and not topic.stamps_records
    return (
        (record.key, record.value, record.headers) == (there.key, there.value, there.headers)
        and (record.timestamp == there.timestamp or not has_own_time)
    )  # fmt: skip
