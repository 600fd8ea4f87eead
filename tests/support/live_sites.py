"""A remote log beside running brokers."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol
from unittest import mock

import yaml
from typing_extensions import TypeVar

from servers.real_kafka import RealKafka
from support.command_line import CommandResult, run
from tiered_storage.clock import wall_clock
from tiered_storage.kafka_log.files.log_segment import LogSegment, list_segments
from tiered_storage.kafka_log.kernels.constants import LOG_OVERHEAD
from tiered_storage.kafka_wire.cluster import ClusterClient
from tiered_storage.kafka_wire.connections.apis import OffsetSpec
from tiered_storage.kafka_wire.metadata import TopicPartition
from tiered_storage.kafka_wire.partition_requests import ListedOffset
from tiered_storage.remote_log.context import store_options
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata, SegmentState
from tiered_storage.settings.settings import load_settings

SEGMENT_BYTES = 16_384
SMALL_SEGMENTS = {"internal.segment.bytes": str(SEGMENT_BYTES)}
_BASE_AND_SIZE = struct.Struct(">qi")
LONG = {"segment.ms": str(1 << 60)}
"""The records of these tests are years old: no tail is copied for its age."""


class Brokers(Protocol):
    """Running brokers: one, or several."""

    @property
    def bootstrap_servers(self) -> str: ...


BrokersT = TypeVar("BrokersT", bound=Brokers, default=RealKafka)


@dataclass(frozen=True, slots=True)
class LiveSite(Generic[BrokersT]):
    """A remote log of `topics`, below `root`; `settings` and `environment` come on top of what it needs."""

    kafka: BrokersT
    root: Path
    topics: tuple[str, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def config(self) -> Path:
        """Write the settings file and return its path."""
        return self.written({})

    def written(self, usual: Mapping[str, Any]) -> Path:
        """Write the settings file, with settings `usual` for all sites of a kind; return its path."""
        path = self.root / "settings.yaml"
        needed = {
            "bootstrap.servers": self.kafka.bootstrap_servers,
            "state.directory": str(self.root / "state"),
            "topics": {topic: {"remote.storage.enable": True} for topic in self.topics},
        }
        path.write_text(yaml.safe_dump({**needed, **usual, **self.settings}))
        return path

    def run(self, *command: object) -> CommandResult:
        """Run `tiered-storage` in this process, which has everything loaded."""
        with mock.patch.dict(os.environ, self.environment):
            return run(*command, "--config", self.config)

    def copied(self, *options: object) -> list[tuple[int, int]]:
        """Run a copy that succeeds; return the first and last offset of each segment, by its partition and start."""
        result = self.run("copy", "--json", *options)
        assert result.exit_code == 0, result.err
        return sorted((row["start_offset"], row["end_offset"]) for row in result.rows)

    def open(self) -> RemoteLogManager:
        """Open it in this process."""
        settings = load_settings(self.config, environ=self.environment)
        options = store_options(settings, self.environment)
        return RemoteLogManager.open(settings, wall_clock, options, create=True)

    def local(self: LiveSite, partition: int = 0) -> list[LogSegment]:
        """The broker's own segments, the active one last."""
        return list_segments(self.kafka.log_dir / f"{self.topics[0]}-{partition}")

    def audited(self) -> None:
        result = self.run("audit", "--deep")
        assert result.exit_code == 0, result.out + result.err


def finished(remote_log: RemoteLogManager, partition: int | None = 0) -> list[RemoteLogSegmentMetadata]:
    """Return the segments that readers may see, of the partitions with that number, or of all."""
    return [
        segment
        for found in sorted(remote_log.context.segments.list_partitions())
        if partition in (None, found.partition)
        for segment in remote_log.context.segments.list_remote_log_segments(found)
        if segment.state is SegmentState.COPY_SEGMENT_FINISHED
    ]


def remote_ends(site: LiveSite, topic: str) -> dict[int, int]:
    """Return the offset after the last remote one, by partition of a topic."""
    with site.open() as remote_log:
        segments = [each for each in finished(remote_log, None) if each.topic_id_partition.topic == topic]
    return dict(sorted((each.topic_id_partition.partition, each.end_offset + 1) for each in segments))


def log_starts(kafka: Brokers, topic: str, partitions: Iterable[int]) -> dict[int, int]:
    """Return where the brokers' logs of a topic begin, of those of `partitions` that have a leader."""
    wanted = {TopicPartition(topic, number): OffsetSpec.EARLIEST for number in partitions}
    with ClusterClient.by_properties({"bootstrap.servers": kafka.bootstrap_servers}) as client:
        found = client.list_offsets(wanted)
    return {each.partition: one.offset for each, one in found.items() if isinstance(one, ListedOffset)}


def log_start(kafka: Brokers, topic: str, partition: int = 0) -> int:
    """Return the broker's log start."""
    return log_starts(kafka, topic, [partition])[partition]


def log_content(log_dir: Path, topic: str, start: int) -> bytes:
    """Return the bytes of a log from the batch that begins at `start` on."""
    content = b"".join(segment.log_path.read_bytes() for segment in list_segments(log_dir / f"{topic}-0"))
    at = 0
    while at < len(content) and _BASE_AND_SIZE.unpack_from(content, at)[0] < start:
        at += LOG_OVERHEAD + _BASE_AND_SIZE.unpack_from(content, at)[1]
    return content[at:]
