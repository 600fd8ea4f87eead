"""Plans a copy run over 100,000 segments of 2,000 partitions: half of each partition is remote already.

It measures `plan` of the command line without the start of Python: open the metadata, look at every partition of the
log directory, and choose the 10,000 segments that a run takes at most. The segments are sparse files with their indexes
and snapshots: a plan reads names, sizes and checkpoints, and the end of each active segment. The peer is a walk over
the log directory that asks for the size of every file.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import yaml
from measuring import STATE, Goal, judge, print_machine, walk_seconds

from tiered_storage.clock import wall_clock
from tiered_storage.kafka_log.files.kafka_uuid import random_uuid
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import (
    LEADER_EPOCH_CHECKPOINT,
    EpochEntry,
    write_leader_epochs,
)
from tiered_storage.kafka_log.files.log_segment import LogSegment, producer_snapshot_path
from tiered_storage.kafka_log.files.offset_checkpoint import (
    HIGH_WATERMARK_CHECKPOINT,
    LOG_START_OFFSET_CHECKPOINT,
    write_offset_checkpoint,
)
from tiered_storage.kafka_log.files.partition_metadata import PARTITION_METADATA, write_topic_id
from tiered_storage.kafka_log.log.log_directory_writer import LogDirectoryWriter
from tiered_storage.kafka_log.producers.producer_snapshot import write_producer_snapshot
from tiered_storage.kafka_log.records.record import Record
from tiered_storage.kafka_log.records.record_batch import encode_batch
from tiered_storage.remote_log.context import store_options
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.metadata.metadata_store import MetadataStore
from tiered_storage.remote_log.metadata.remote_log_metadata_manager import Topic
from tiered_storage.remote_log.model import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    SegmentState,
    TopicIdPartition,
)
from tiered_storage.settings.settings import load_settings

GOAL = 5.5
MEMORY = 500
"""MiB."""
CHOSEN = 10_000
OFFSETS_A_SEGMENT = 1000
SEGMENT_BYTES = 1 << 20
_CLUSTER_ID = "benchmark"


@dataclass(frozen=True, slots=True)
class LogShape:
    """How many closed segments a log directory has, and how many of each partition are `remote`."""

    topics: int = 100
    partitions_a_topic: int = 20
    segments: int = 50
    remote: int = 25

    @property
    def partitions(self) -> int:
        """The partitions of all topics."""
        return self.topics * self.partitions_a_topic


@dataclass(frozen=True, slots=True)
class LargeSite:
    """A log directory of many partitions and the metadata of what is remote, below `root`.

    The metadata are in the database at `metadata_url`, in SQLite below `root` if it is None.
    """

    root: Path
    shape: LogShape = LogShape()
    metadata_url: str | None = None

    @property
    def logs(self) -> Path:
        """The log directory."""
        return self.root / "kafka-logs"

    def write(self) -> None:
        """Write all of it."""
        LogDirectoryWriter.create(self.logs, _CLUSTER_ID).close()
        partitions = list(_partitions(self.shape))
        for partition in partitions:
            _write_partition(self.logs / str(partition), partition, self.shape.segments)
        keys = [(partition.topic, partition.partition) for partition in partitions]
        high_watermark = self.shape.segments * OFFSETS_A_SEGMENT + 1
        write_offset_checkpoint(self.logs / HIGH_WATERMARK_CHECKPOINT, dict.fromkeys(keys, high_watermark))
        write_offset_checkpoint(self.logs / LOG_START_OFFSET_CHECKPOINT, dict.fromkeys(keys, 0))
        settings = {
            "log.dirs": [str(self.logs)],
            "state.directory": str(self.root / "state"),
            "copy.max.segments.per.run": CHOSEN,
            **({} if self.metadata_url is None else {"rlmm.config.url": self.metadata_url}),
        }
        self._config.write_text(yaml.safe_dump(settings))
        with self.open() as remote_log:
            _fill_metadata(remote_log.context.store, partitions, self.shape.remote)

    def open(self) -> RemoteLogManager:
        """Open the remote log; use it in a `with`."""
        settings = load_settings(self._config, environ={})
        return RemoteLogManager.open(settings, wall_clock, store_options(settings, {}), create=True)

    def plan(self) -> float:
        """Plan once; return the seconds."""
        begun = time.perf_counter()
        with self.open() as remote_log:
            plan = remote_log.plan_copy()
        seconds = time.perf_counter() - begun
        assert len(plan.segments) == CHOSEN, len(plan.segments)
        assert not plan.unreadable, plan.unreadable[0]
        assert len(plan.partitions) == self.shape.partitions
        return seconds

    @property
    def _config(self) -> Path:
        return self.root / "tiered_storage.yaml"


def _partitions(shape: LogShape) -> Iterator[TopicIdPartition]:
    for topic in range(shape.topics):
        topic_id = random_uuid()
        for number in range(shape.partitions_a_topic):
            yield TopicIdPartition(_CLUSTER_ID, topic_id, number, f"benchmark{topic:03}")


def _write_partition(directory: Path, partition: TopicIdPartition, segments: int) -> None:
    directory.mkdir()
    write_topic_id(directory / PARTITION_METADATA, partition.topic_id)
    write_leader_epochs(directory / LEADER_EPOCH_CHECKPOINT, [EpochEntry(0, 0)])
    for number in range(segments):
        segment = LogSegment(number * OFFSETS_A_SEGMENT, directory)
        with segment.log_path.open("wb") as file:
            file.truncate(SEGMENT_BYTES)
        for path in (segment.offset_index_path, segment.time_index_path):
            path.touch()
        producer_snapshot_path(directory, segment.base_offset).touch()
    end = segments * OFFSETS_A_SEGMENT
    LogSegment(end, directory).log_path.write_bytes(encode_batch([Record(end, wall_clock(), b"key", b"value", ())]))
    write_producer_snapshot(producer_snapshot_path(directory, end), [])


def _fill_metadata(store: MetadataStore, partitions: list[TopicIdPartition], remote: int) -> None:
    for partition in {each.topic_id: each for each in partitions}.values():
        store.topics.put(Topic(_CLUSTER_ID, partition.topic_id, partition.topic, remote_storage_enable=True))
    leases = store.leases.acquire_many(partitions, "benchmark", 3_600_000).granted
    segments = [
        (
            RemoteLogSegmentMetadata(
                segment_id=RemoteLogSegmentId(lease.topic_id_partition, random_uuid()),
                start_offset=number * OFFSETS_A_SEGMENT,
                end_offset=(number + 1) * OFFSETS_A_SEGMENT - 1,
                max_timestamp=0,
                event_timestamp=0,
                size=SEGMENT_BYTES,
                leader_epochs=(EpochEntry(0, number * OFFSETS_A_SEGMENT),),
                fencing_number=lease.fencing_number,
            ),
            lease,
        )
        for lease in leases
        for number in range(remote)
    ]
    store.segments.add_remote_log_segments(segments)
    finished = SegmentState.COPY_SEGMENT_FINISHED
    store.segments.update_remote_log_segments(
        [(RemoteLogSegmentMetadataUpdate(each.segment_id, finished, 0, b"\0" * 18), lease) for each, lease in segments]
    )
    store.leases.release_many(leases)


def main() -> int:
    """Measure; return 1 if a goal was missed."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--directory", type=Path, default=STATE, help="where to work, on the disk to measure")
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--plan", type=Path, help=argparse.SUPPRESS)
    given = arguments.parse_args()
    if given.plan:
        site = LargeSite(given.plan)
        seconds = [each() for _ in range(given.rounds) for each in (site.plan, lambda: walk_seconds(site.logs))]
        print(*seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
        return 0
    given.directory.mkdir(parents=True, exist_ok=True)
    print_machine(given.directory)
    root = Path(tempfile.mkdtemp(prefix="plan-", dir=given.directory))
    try:
        LargeSite(root).write()
        # In a new process: the one that wrote the site has used memory for that.
        command = [sys.executable, __file__, "--plan", str(root), "--rounds", str(given.rounds)]
        *each, memory = map(float, subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())
    finally:
        shutil.rmtree(root)
    rounds, walks, used = each[::2], each[1::2], memory / (1 << 20)
    print(f"  seconds: best {min(rounds):.2f}, median {median(rounds):.2f}; {used:.0f} MiB at most")
    shape = LogShape()
    what = f"plan, {shape.partitions * shape.segments:,} segments"
    ours, peer = median(rounds), median(walks)
    return judge(
        [
            Goal(what, f"{ours:.2f} s", f"{peer:.2f} s walk with sizes", ours / peer, GOAL, is_most=True),
            Goal(f"{what}, memory", f"{used:.0f} MiB", f"{MEMORY} MiB allowed", used / MEMORY, 1, is_most=True),
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
