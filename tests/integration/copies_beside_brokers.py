"""What tests of copies beside brokers share."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from itertools import pairwise
from pathlib import Path

from servers.real_kafka import RealKafka
from tiered_storage.clock import wall_clock
from tiered_storage.kafka_log.files.log_segment import list_segments
from tiered_storage.kafka_log.records.record import Record
from tiered_storage.kafka_wire.cluster import ClusterClient
from tiered_storage.kafka_wire.metadata import NO_LEADER
from tiered_storage.remote_log.copy.copier import CopySizes, copy_segment
from tiered_storage.remote_log.copy.segment_roller import SegmentRoller
from tiered_storage.remote_log.copy.tasks import CopyOutcome, CopyTask
from tiered_storage.remote_log.manager import RemoteLogManager

SECONDS = 60
SIZES = CopySizes(1 << 20, 4096, 1 << 20)


def closed_of(directory: Path) -> list[tuple[int, int]]:
    return [(one.base_offset, after.base_offset - 1) for one, after in pairwise(list_segments(directory))]


def each_copied(
    remote_log: RemoteLogManager,
    tasks: tuple[CopyTask, ...],
    before: Callable[[CopyTask], None] = lambda _: None,
) -> list[CopyOutcome]:
    """Copy `tasks`, each after `before` was called with it and the file that is its segment."""

    def copy(known: CopyTask) -> CopyOutcome:
        before(known)
        return copy_segment(known, remote_log.context.storage, SIZES, wall_clock)

    with closing(
        SegmentRoller(tasks, remote_log.context.source.access, remote_log.context.storage, wall_clock)
    ) as roller:
        return [roller.copy(task, copy) for task in tasks]


def up_to(sent: list[Record], end: int) -> list[Record]:
    """The records up to offset `end`: a busy broker may take a batch that was sent later first."""
    return [one for one in sorted(sent, key=lambda one: one.offset) if one.offset <= end]


def leader_of(kafka: RealKafka, topic: str, partition: int) -> int:
    with ClusterClient.by_properties({"bootstrap.servers": kafka.bootstrap_servers}) as client:
        found = client.metadata([topic]).topics[topic].partitions.get(partition)
        return NO_LEADER if found is None else found.leader
