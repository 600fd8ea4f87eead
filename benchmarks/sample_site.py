"""A log directory of a known size, and a remote log beside it whose store is a directory on the same disk."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from tiered_storage.clock import wall_clock
from tiered_storage.kafka_log.files.kafka_uuid import random_uuid
from tiered_storage.kafka_log.log.local_log import LocalLog
from tiered_storage.kafka_log.log.log_config import LogConfig
from tiered_storage.kafka_log.log.log_directory_writer import LogDirectoryWriter
from tiered_storage.kafka_log.records.record import Record
from tiered_storage.remote_log.context import store_options
from tiered_storage.remote_log.copy.job import CopyJob
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.settings.settings import load_settings

TOPIC = "benchmark"
RECORD_BYTES = 1024
FIRST_TIMESTAMP = 1_700_000_000_000
_CLUSTER_ID = "benchmark"
_OWNER = "benchmark"


@dataclass(frozen=True, slots=True)
class SampleLog:
    """The shape of the log: closed segments of `segment_bytes` in each partition, batches of `batch_records`."""

    partitions: int
    segments: int
    segment_bytes: int
    batch_records: int


@dataclass(frozen=True, slots=True)
class SampleSite:
    """The log directory, its remote log and their settings, all below `root`."""

    root: Path

    @property
    def logs(self) -> Path:
        """The log directory."""
        return self.root / "kafka-logs"

    @property
    def store(self) -> Path:
        """The object store."""
        return self.root / "state" / "remote"

    def write(self, sample: SampleLog, records: Iterator[Record] | None = None) -> None:
        """Write the log directory, uncompressed, and the settings; `records` are those of all partitions."""
        with LogDirectoryWriter.create(self.logs, _CLUSTER_ID) as writer:
            topic_id = random_uuid()
            for partition in range(sample.partitions):
                log = writer.create_log(TOPIC, partition, topic_id, LogConfig(segment_bytes=sample.segment_bytes))
                _fill(log, sample, records or _records())
        self.configure()

    def configure(
        self, of_topic: Mapping[str, object] | None = None, others: Mapping[str, object] | None = None
    ) -> None:
        """Write the settings, with properties of the topic and others."""
        settings = {
            "log.dirs": [str(self.logs)],
            "state.directory": str(self.root / "state"),
            "topics": {TOPIC: {"remote.storage.enable": True, **(of_topic or {})}},
            **(others or {}),
        }
        self._config.write_text(yaml.safe_dump(settings))

    def closed_segments(self) -> list[Path]:
        """Return the `.log` files that are due to be copied, relative to the log directory."""
        found = []
        for partition in sorted(self.logs.glob(f"{TOPIC}-*")):
            found.extend(sorted(path.relative_to(self.logs) for path in partition.glob("*.log"))[:-1])
        return found

    def open(self) -> RemoteLogManager:
        """Open the remote log; use it in a `with`."""
        settings = load_settings(self._config, environ={})
        return RemoteLogManager.open(settings, wall_clock, store_options(settings), create=True)

    def begin_copy(self, remote_log: RemoteLogManager) -> CopyJob:
        """Begin to copy all that is due, as a copy run does, and lay the job out in the work area."""
        begun = remote_log.begin_copy(remote_log.plan_copy(), _OWNER)
        return remote_log.write_copy_job(f"runs/{random_uuid()}", begun)

    def forget_copies(self) -> None:
        """Remove the segments from the store: copies that were never committed are still due."""
        shutil.rmtree(self.store / _CLUSTER_ID, ignore_errors=True)

    @property
    def _config(self) -> Path:
        return self.root / "tiered_storage.yaml"


def _fill(log: LocalLog, sample: SampleLog, records: Iterator[Record]) -> None:
    """Append batches until enough segments are closed; the active one holds a single batch."""
    while len(log.segments) <= sample.segments:
        log.append([next(records) for _ in range(sample.batch_records)])


def _records() -> Iterator[Record]:
    """Yield records whose timestamps rise by 1 ms, with values that no codec could make smaller."""
    chance = random.Random(1)  # noqa: S311 - content, no secret
    values = [chance.randbytes(RECORD_BYTES) for _ in range(64)]
    number = 0
    while True:
        yield Record(0, FIRST_TIMESTAMP + number, b"key-%012d" % number, values[number % len(values)])
        number += 1
