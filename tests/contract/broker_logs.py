"""A log that a running broker leads, for the contract of SegmentSource: in transactions, and rolled as a copy does."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from support.kafka_clients import REQUEST_SECONDS, RealKafkaClient, send
from tiered_storage.clock import wall_clock
from tiered_storage.kafka_log.records.record import Record
from tiered_storage.kafka_wire.cluster import ClusterClient
from tiered_storage.kafka_wire.fetch import FetchBuffer
from tiered_storage.remote_log.source.fetched_log import FetchedLog, RolledPartition, RollRange
from tiered_storage.remote_log.source.leader_log import LeaderLog
from tiered_storage.remote_log.source.partition_log import LocalSegment, PartitionLog

if TYPE_CHECKING:
    from confluent_kafka import Producer

_SMALL = {"internal.segment.bytes": "1000"}
_BATCHES = 60
_BUFFER_BYTES = 1 << 20


def write_in_transactions(client: RealKafkaClient, topic: str) -> None:
    """Create `topic` with several small segments of one partition; three producers write it, two in transactions.

    Two transactions are aborted, and all are decided in the end.
    """
    client.create_topic(topic, 1, _SMALL)
    transactional = [client.producer(transactional_id=f"{topic}-{number}", linger_ms=0) for number in range(2)]
    for producer in transactional:
        producer.init_transactions(REQUEST_SECONDS)
        producer.begin_transaction()
    producers = [*transactional, client.producer(enable_idempotence=True, linger_ms=0)]
    for sequence in range(_BATCHES):
        append(producers[sequence % 3], topic)
        if sequence % 13 == 12:  # within some segments, and over the borders of others
            ended = transactional[sequence % 2]
            (ended.abort_transaction if sequence % 2 else ended.commit_transaction)(REQUEST_SECONDS)
            ended.begin_transaction()
    for producer in transactional:
        producer.commit_transaction(REQUEST_SECONDS)
    client.wait_until_decided(topic)


def append(producer: Producer, topic: str) -> None:
    """Append a batch of one record."""
    # The time is of today: brokers forget producers whose records are older.
    send(producer, topic, 0, [Record(0, wall_clock(), b"key", b"some value")])


def rolled_segments(log: PartitionLog, bootstrap_servers: str, folder: Path) -> tuple[LocalSegment, ...]:
    """Return the segments that a copy of `log` rolls in the new `folder`, up to its stable end; they stay there."""
    assert log.unsegmented is not None
    rules = log.unsegmented.rules
    wanted = RollRange(log.log_start_offset, log.last_stable_offset)
    folder.mkdir()

    def later() -> int:
        """Return a time at which a copy no longer waits for the tail to fill a segment."""
        return wall_clock() + rules.tail_ms

    place = RolledPartition(log.topic_id_partition, rules, folder, later)
    rolled = FetchedLog(place, wanted, ()) if rules.files is None else LeaderLog(place, rules.files, wanted, tuple)
    buffer = FetchBuffer(_BUFFER_BYTES)
    with ClusterClient.by_properties({"bootstrap.servers": bootstrap_servers}) as cluster, closing(rolled):
        return tuple(iter(lambda: rolled.next_segment(cluster, buffer), None))
