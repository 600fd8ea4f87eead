"""A small remote log for tests: a log directory written by LocalLog, settings in a file, and a store of its own.

Every batch is a segment of RECORDS records, so that offsets and timestamps are known in advance: segment `i` of a
partition begins at offset i * RECORDS and holds records of FIRST_TIMESTAMP + i hours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from support.clocks import stamped
from support.remote_logs import flip_bit
from tiered_storage.clock import BootTime, machine_boot_time, wall_clock
from tiered_storage.kafka_log.files.kafka_uuid import encode_uuid
from tiered_storage.kafka_log.files.log_segment import list_segments
from tiered_storage.kafka_log.log.log_config import LogConfig
from tiered_storage.kafka_log.log.log_directory_writer import LogDirectoryWriter
from tiered_storage.kafka_log.records.record import Record
from tiered_storage.remote_log.context import store_options
from tiered_storage.remote_log.copy.copier import CopySizes, copy_segment
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata, SegmentState, TopicIdPartition
from tiered_storage.remote_log.selection import Selection
from tiered_storage.settings.settings import load_settings

RECORDS = 10
HOUR_MS = 3_600_000
FIRST_TIMESTAMP = 1_700_000_000_000 // HOUR_MS * HOUR_MS
CLUSTER_ID = "tests"
TIERED: Mapping[str, object] = {"remote.storage.enable": True}
_ONE_BATCH = LogConfig(segment_bytes=2000)


@dataclass(frozen=True, slots=True)
class TieredSite:
    """A log directory and everything that is tiered from it, below `root`."""

    root: Path

    @property
    def config(self) -> Path:
        """The settings file."""
        return self.root / "tiered_storage.yaml"

    @property
    def logs(self) -> Path:
        """The log directory."""
        return self.root / "kafka-logs"

    @property
    def state(self) -> Path:
        """Where the store, the work area and the metadata store are."""
        return self.root / "state"

    def write_logs(self, partitions: Mapping[str, int]) -> None:
        """Write partitions such as orders-0, each of so many closed segments and an active one."""
        with LogDirectoryWriter.create(self.logs, CLUSTER_ID) as writer:
            for name, closed in partitions.items():
                topic, _, number = name.rpartition("-")
                log = writer.create_log(topic, int(number), topic_id(topic), _ONE_BATCH)
                for segment in range(closed + 1):
                    log.append(_records(segment))

    def append_segment(self, name: str) -> None:
        """Close the active segment of a partition by beginning another one."""
        topic, _, number = name.rpartition("-")
        with LogDirectoryWriter.open(self.logs, _ONE_BATCH) as writer:
            log = writer.log(topic, int(number))
            log.append(_records(len(log.segments)))

    def configure(self, topics: Mapping[str, Mapping[str, object]], **settings: object) -> None:
        """Write the settings file: properties of topics, and other settings with underscores for dots."""
        given = {
            "log.dirs": [str(self.logs)],
            "state.directory": str(self.state),
            "remote.log.deletion.grace.ms": 0,
            "scheduled.deletion.enable": True,
            **{name.replace("_", "."): value for name, value in settings.items()},
            "topics": {name: dict(properties) for name, properties in topics.items()},
        }
        self.config.write_text(yaml.safe_dump(given))

    def open(self) -> RemoteLogManager:
        """Open the remote log; use it in a `with`."""
        return self.open_after(0)

    def open_after(self, passed_ms: int) -> RemoteLogManager:
        """Open it as if so much time had passed, for the store too."""

        def later() -> int:
            return wall_clock() + passed_ms

        def later_boot_time() -> BootTime:
            running = machine_boot_time()
            return BootTime(running.boot_id, running.ms + passed_ms)

        settings = load_settings(self.config, environ={})
        options = store_options(settings)
        return stamped(RemoteLogManager.open(settings, later, options, create=True, boot_clock=later_boot_time))

    def copy(self, topics: str = ".*") -> None:
        """Copy and commit what is due of `topics`, by the library alone."""
        with self.open() as remote_log:
            sizes = CopySizes(1 << 20, 4096, 1 << 20)
            begun = remote_log.begin_copy(remote_log.plan_copy(Selection(topics)), "site")
            outcomes = [copy_segment(task, remote_log.context.storage, sizes, wall_clock) for task in begun.tasks]
            assert remote_log.commit_copy(outcomes).is_whole

    def segments(self, name: str, *states: SegmentState) -> list[RemoteLogSegmentMetadata]:
        """Return the remote segments of a partition, of `states` or of all."""
        with self.open() as remote_log:
            found = remote_log.context.segments.list_remote_log_segments(partition(name))
            return [segment for segment in found if not states or segment.state in states]

    def finished(self, name: str) -> list[int]:
        """Return the start offsets of the remote segments of a partition that readers may see."""
        return [segment.start_offset for segment in self.segments(name, SegmentState.COPY_SEGMENT_FINISHED)]

    def local(self, name: str) -> list[int]:
        """Return the base offsets of a partition's local segments."""
        return [segment.base_offset for segment in list_segments(self.logs / name)]

    def announced(self, now: int, *names: str) -> dict[str, object]:
        """Return what an asset event says of a copy of these partitions at `now` (ms), as the task announce does."""
        path = f"runs/of-a-test/{'-'.join(names)}/announced.jsonl"
        with self.open() as remote_log:
            remote_log.context.work.write(path, map(partition, names), TopicIdPartition)
        return {"partitions": len(names), "path": path, "now": now}

    def corrupt(self, name: str, base_offset: int) -> Path:
        """Flip a bit of a record in a local segment; return its file."""
        path = self.logs / name / f"{base_offset:020d}.log"
        flip_bit(path, -20)
        return path


def topic_id(topic: str) -> str:
    """Return the id that a topic has here."""
    return encode_uuid(topic.encode().ljust(16, b"\1")[:16])


def partition(name: str) -> TopicIdPartition:
    """Return the key of a partition such as orders-0."""
    topic, _, number = name.rpartition("-")
    return TopicIdPartition(CLUSTER_ID, topic_id(topic), int(number), topic)


def _records(segment: int) -> list[Record]:
    return [Record(0, FIRST_TIMESTAMP + segment * HOUR_MS, b"key %d" % i, bytes(100)) for i in range(RECORDS)]
