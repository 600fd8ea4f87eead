"""Local logs for the contract of SegmentSource: a log of the same kind in every kind of source."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from support.remote_logs import CLUSTER_ID, NOW, ORDERS_0, partition_of, topic_id, unsynced
from support.transactions import ABORT, COMMIT, data
from tiered_storage.kafka_log.files.kafka_uuid import random_uuid
from tiered_storage.kafka_log.files.log_segment import list_segments
from tiered_storage.kafka_log.log.log_config import LogConfig
from tiered_storage.kafka_log.log.log_directory_writer import LogDirectoryWriter
from tiered_storage.remote_log.model import TopicIdPartition
from tiered_storage.remote_log.source.log_directory_source import LogDirectorySource
from tiered_storage.remote_log.source.partition_log import LocalSegment, NamedPartition
from tiered_storage.remote_log.source.segment_source import SegmentSource

if TYPE_CHECKING:
    from servers.real_kafka import RealKafka

UNKNOWN = partition_of("unknown")
_CONFIG = LogConfig(segment_bytes=1000, index_interval_bytes=100)
_BATCHES = 60
_FETCH_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class SourceUnderTest:
    """A source of the log `partition`, which holds `content`, and of nothing that is `unknown`.

    The log has several closed segments; two transactions were aborted in it. `segments` returns all that a copy could
    open, up to its end: those that the source shows, else those that a copy rolls. `append` adds a batch to its end.
    """

    source: SegmentSource
    content: bytes
    segments: Callable[[], Sequence[LocalSegment]]
    append: Callable[[], None]
    partition: TopicIdPartition = ORDERS_0
    unknown: TopicIdPartition = UNKNOWN


def log_directory_under_test(root: Path) -> SourceUnderTest:
    """Write the log into a log directory without a broker."""
    logs = root / "logs"
    with unsynced(), LogDirectoryWriter.create(logs, CLUSTER_ID, clock=lambda: NOW) as writer:
        log = writer.create_log(ORDERS_0.topic, ORDERS_0.partition, topic_id(ORDERS_0.topic), _CONFIG)
        for sequence in range(_BATCHES):
            producer = sequence % 3
            log.append_encoded_batch(data(0, 20 + producer, sequence // 3, transactional=producer < 2))
            if sequence % 13 == 12:  # within some segments, and over the borders of others
                log.append_end_marker(20 + sequence % 2, 0, ABORT if sequence % 2 else COMMIT)
        for producer in (20, 21):
            log.append_end_marker(producer, 0, COMMIT)
    directory = logs / str(ORDERS_0)

    def append() -> None:
        with unsynced(), LogDirectoryWriter.open(logs, _CONFIG, clock=lambda: NOW) as writer:
            writer.log(ORDERS_0.topic, ORDERS_0.partition).append_encoded_batch(data())

    content = b"".join(segment.log_path.read_bytes() for segment in list_segments(directory))
    source = LogDirectorySource((logs,))

    def segments() -> Sequence[LocalSegment]:
        log = source.partition(ORDERS_0)
        assert log is not None
        return log.segments

    return SourceUnderTest(source, content, segments, append)


def brokers_under_test(root: Path, kafka: RealKafka, *, by_directories: bool) -> SourceUnderTest:
    """Have a broker write the log; the source sees it by Fetch alone, or its closed segments in the broker's files."""
    # These imports take longer than most tests that need a log directory.
    from contract.broker_logs import append, rolled_segments, write_in_transactions
    from tiered_storage.remote_log.source.fetch_source import FetchSource
    from tiered_storage.remote_log.source.leader_files import BrokerDirectories

    topic, client, servers = f"contract-{random_uuid()}", kafka.client, kafka.bootstrap_servers
    write_in_transactions(client, topic)
    brokers = BrokerDirectories({1: (kafka.log_dir,)}) if by_directories else None
    source = FetchSource({"bootstrap.servers": servers}, None, _FETCH_BYTES, brokers)
    [named] = source.named(topic, 0)
    assert isinstance(named, NamedPartition)
    partition = named.topic_id_partition
    log = source.partition(partition)
    assert log is not None
    content = b"".join(segment.log_path.read_bytes() for segment in list_segments(kafka.log_dir / str(partition)))
    return SourceUnderTest(
        source,
        content,
        cache(partial(rolled_segments, log, servers, root / "rolled")),
        lambda: append(client.producer(), topic),
        partition,
        replace(partition, topic=f"{topic}-unknown", topic_id=random_uuid()),
    )


SOURCES: dict[str, Callable[[Path, Callable[[], RealKafka]], SourceUnderTest]] = {
    "log directory": lambda root, _: log_directory_under_test(root),
    "brokers by Fetch": lambda root, kafka: brokers_under_test(root, kafka(), by_directories=False),
    "brokers' directories": lambda root, kafka: brokers_under_test(root, kafka(), by_directories=True),
}
"""Every kind of source, by what makes its log: in a folder, or at the session's broker, which starts once asked for.

A new kind joins the contract here."""
