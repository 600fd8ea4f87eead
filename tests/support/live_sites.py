"""A remote log beside a running broker, and comparisons with what that broker stores."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import yaml

from servers.real_kafka import RealKafka
from support.command_line import CommandResult, run
from tiered_storage.clock import wall_clock
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import read_leader_epochs
from tiered_storage.kafka_log.files.log_segment import LogSegment, list_segments, producer_snapshot_path
from tiered_storage.kafka_log.producers.producer_snapshot import parse_producer_snapshot, read_producer_snapshot
from tiered_storage.kafka_log.records.record import Record
from tiered_storage.kafka_wire.cluster import ClusterClient
from tiered_storage.kafka_wire.metadata import TopicPartition
from tiered_storage.kafka_wire.partition_requests import ListedOffset, OffsetSpec
from tiered_storage.remote_log.context import store_options
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata, SegmentState
from tiered_storage.remote_log.read.blocking_reader import BlockingLogReader
from tiered_storage.remote_log.read.read_values import Isolation
from tiered_storage.remote_log.storage.listable_storage import ListableStorage
from tiered_storage.remote_log.storage.remote_storage_manager import IndexKind
from tiered_storage.settings.settings import load_settings

SEGMENT_BYTES = 16_384
SMALL_SEGMENTS = {"internal.segment.bytes": str(SEGMENT_BYTES)}
LONG = {"segment.ms": str(1 << 60)}
"""The records of these tests are years old: no tail is copied for its age."""


@dataclass(frozen=True, slots=True)
class LiveSite:
    """A remote log of `topics`, below `root`, beside the running broker."""

    kafka: RealKafka
    root: Path
    topics: tuple[str, ...]
    properties: Mapping[str, Any]

    @property
    def config(self) -> Path:
        path = self.root / "settings.yaml"
        settings = {
            "bootstrap.servers": self.kafka.bootstrap_servers,
            "state.directory": str(self.root / "state"),
            "topics": {topic: {"remote.storage.enable": True} for topic in self.topics},
            **self.properties,
        }
        path.write_text(yaml.safe_dump(settings))
        return path

    def run(self, *command: object) -> CommandResult:
        return run(*command, "--config", self.config)

    def copied(self, *options: object) -> list[tuple[int, int]]:
        """Run a copy that succeeds; return the first and last offset of each segment, by its partition and start."""
        result = self.run("copy", "--json", *options)
        assert result.exit_code == 0, result.err
        return sorted((row["start_offset"], row["end_offset"]) for row in result.rows)

    def open(self) -> RemoteLogManager:
        settings = load_settings(self.config, environ={})
        return RemoteLogManager.open(settings, wall_clock, store_options(settings, {}), create=True)

    def local(self, partition: int = 0) -> list[LogSegment]:
        """The broker's own segments, the active one last."""
        return list_segments(self.kafka.log_dir / f"{self.topics[0]}-{partition}")

    def audited(self) -> None:
        result = self.run("audit", "--deep")
        assert result.exit_code == 0, result.out + result.err


def finished(remote_log: RemoteLogManager, partition: int = 0) -> list[RemoteLogSegmentMetadata]:
    [found] = [one for one in remote_log.context.segments.list_partitions() if one.partition == partition]
    segments = remote_log.context.segments.list_remote_log_segments(found)
    return [segment for segment in segments if segment.state is SegmentState.COPY_SEGMENT_FINISHED]


def ensure_as_stored(
    site: LiveSite, partition: int = 0, *, indexes: bool = True, times_of: Literal["batches", "records"] = "batches"
) -> int:
    """Compare every remote segment with the broker's files of the same base offset; return how many there were.

    A broker that was restarted in the middle of a segment has other entries in its `indexes`. The time indexes of
    earlier brokers have the same times, and the offsets of records, where those of 4.3 have the ends of their batches.
    """
    with site.open() as remote_log:
        storage = remote_log.context.storage
        assert isinstance(storage, ListableStorage)
        segments = finished(remote_log, partition)
        remote = {each.start_offset: (each, storage.fetch_bundle(each)) for each in segments}
        local = site.local(partition)
        closed = {one.base_offset: (one, after.base_offset) for one, after in pairwise(local)}
        shared = sorted(remote.keys() & closed.keys())
        for base in shared:
            (metadata, bundle), (files, end) = remote[base], closed[base]
            assert metadata.end_offset == end - 1
            assert b"".join(storage.fetch_log_segment(metadata)) == files.log_path.read_bytes()
            if indexes:
                assert bundle[IndexKind.OFFSET] == files.offset_index_path.read_bytes()
                ours, theirs = bundle[IndexKind.TIMESTAMP], files.time_index_path.read_bytes()
                assert ours == theirs if times_of == "batches" else _times(ours) == _times(theirs)
            aborted = files.transaction_index_path
            assert bundle.get(IndexKind.TRANSACTION, b"") == (aborted.read_bytes() if aborted.exists() else b"")
            snapshot = producer_snapshot_path(files.directory, end)
            producers = parse_producer_snapshot(bundle[IndexKind.PRODUCER_SNAPSHOT], "ours")
            assert set(producers) == set(read_producer_snapshot(snapshot))
        epochs = read_leader_epochs(files.directory / "leader-epoch-checkpoint")
        assert segments[-1].leader_epochs[-1].epoch == epochs[-1].epoch
    return len(shared)


def _times(time_index: bytes) -> list[int]:
    return [timestamp for timestamp, _ in struct.iter_unpack(">qi", time_index)]


def read(site: LiveSite, isolation: Isolation, start: int = 0) -> list[Record]:
    with site.open() as remote_log, BlockingLogReader(remote_log.open_log_reader()) as reader:
        [partition] = [one for one in remote_log.context.segments.list_partitions() if one.partition == 0]
        return list(reader.records(partition, start, isolation=isolation))


def log_start(kafka: RealKafka, topic: str, partition: int = 0) -> int:
    """Return the broker's log start."""
    asked = TopicPartition(topic, partition)
    with ClusterClient.by_properties({"bootstrap.servers": kafka.bootstrap_servers}) as client:
        found = client.list_offsets({asked: OffsetSpec.EARLIEST})[asked]
    assert isinstance(found, ListedOffset)
    return found.offset
