"""Local logs for the contract of SegmentSource: the same log in every kind of source."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from support.remote_logs import CLUSTER_ID, NOW, ORDERS_0, partition_of, topic_id, unsynced
from support.transactions import ABORT, COMMIT, data
from tiered_storage.kafka_log.files.log_segment import list_segments
from tiered_storage.kafka_log.log.log_config import LogConfig
from tiered_storage.kafka_log.log.log_directory_writer import LogDirectoryWriter
from tiered_storage.remote_log.model import TopicIdPartition
from tiered_storage.remote_log.source.log_directory_source import LogDirectorySource
from tiered_storage.remote_log.source.segment_source import SegmentSource

UNKNOWN = partition_of("unknown")
_CONFIG = LogConfig(segment_bytes=1000, index_interval_bytes=100)
_BATCHES = 60


@dataclass(frozen=True, slots=True)
class SourceUnderTest:
    """A source of the log `partition`, which holds `content`, and of nothing that is `unknown`.

    The log has several closed segments, in some of which transactions were aborted. `append` adds a batch to its end.
    """

    source: SegmentSource
    content: bytes
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
    return SourceUnderTest(LogDirectorySource((logs,)), content, append)


SOURCES: dict[str, Callable[[Path], SourceUnderTest]] = {"log directory": log_directory_under_test}
"""Every kind of source: a new one joins the contract here."""
