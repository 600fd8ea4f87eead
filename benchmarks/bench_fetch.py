"""Copies a topic of a running broker by Fetch into a local store, against `cp` of the broker's files and a consumer.

The broker's files are in the page cache. Ours plans, takes leases, fetches, checks every batch, builds the indexes,
syncs its objects and commits. `cp` copies the same closed segments and syncs them. The consumer is confluent-kafka's,
which reads the same records and throws them away. What no copy can do without is printed beside them: to receive every
byte, check it once, write it once and sync it, one partition after the other.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import yaml
from bench_export import produce
from measuring import Goal, judge, print_machine
from one_broker import arguments, one_broker

from tiered_storage.clock import wall_clock
from tiered_storage.kafka_log.files.log_segment import list_segments
from tiered_storage.kafka_log.records.segment_scan import SegmentScanner
from tiered_storage.kafka_wire.cluster import ClusterClient
from tiered_storage.kafka_wire.fetch import FetchBuffer, FetchPosition
from tiered_storage.remote_log.context import store_options
from tiered_storage.remote_log.copy.job import CopyJob
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata
from tiered_storage.remote_log.storage.remote_storage_manager import LogSegmentData
from tiered_storage.settings.settings import load_settings

TOPIC = "benchmark"
PARTITIONS = 4
SEGMENT_BYTES = 32 << 20
GOAL_OF_CP = 0.4
GOAL_OF_CONSUMER = 1.5
CPU_SECONDS_A_GB = 1.0


@dataclass(frozen=True, slots=True)
class Round:
    """What each way took (s), for how many bytes; `cpu` is the source's, of this process; the floor's are s/GB too."""

    size: int
    ours: float
    whole_cpu: float
    cpu: float
    cp: float
    consumer: float
    floor: float
    floor_cpu: float


def copy(root: Path, servers: str) -> tuple[int, float, float, list[int]]:
    """Copy all closed segments into a new store below `root`; return the bytes, the wall and CPU seconds, and the ends.

    Those are the offsets (exclusive) up to which each partition was copied.
    """
    with _opened(root, servers) as remote_log:
        begun_at, cpu = time.perf_counter(), _cpu()
        begun = remote_log.begin_copy(remote_log.plan_copy(), "benchmark")
        job = remote_log.write_copy_job("runs/benchmark", begun)
        _, description = CopyJob.read(remote_log.context.work, job.files.folder)
        for number in range(job.groups):
            job.run_group(
                number,
                remote_log.context.storage,
                description.sizes,
                wall_clock,
                access=remote_log.context.source.access,
            )
        report = remote_log.commit_copy(job.outcomes())
        seconds, cpu = time.perf_counter() - begun_at, _cpu() - cpu
    assert not report.failures, report.failures[0]
    ends: dict[int, int] = {}
    for segment in report.committed:
        number = segment.topic_id_partition.partition
        ends[number] = max(segment.end_offset + 1, ends.get(number, 0))
    return sum(segment.size for segment in report.committed), seconds, cpu, [ends[number] for number in sorted(ends)]


class _Nowhere:
    """Takes segments and throws them away: what is left of a copy is the source's part."""

    def copy_log_segment_data(self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData) -> bytes:  # noqa: ARG002
        for _ in data.chunks:
            pass
        data.indexes()
        return b""


def source_alone(root: Path, servers: str) -> float:
    """Fetch, roll, check and index all closed segments without a store; return the CPU seconds a GB."""
    with _opened(root, servers) as remote_log:
        begun = remote_log.begin_copy(remote_log.plan_copy(), "benchmark")
        job = remote_log.write_copy_job("runs/benchmark", begun)
        _, description = CopyJob.read(remote_log.context.work, job.files.folder)
        cpu = _cpu()
        for number in range(job.groups):
            job.run_group(number, _Nowhere(), description.sizes, wall_clock, access=remote_log.context.source.access)  # type: ignore[arg-type]  # all that a copy calls
        cpu = _cpu() - cpu
        outcomes = list(job.outcomes())
    assert all(outcome.failure is None for outcome in outcomes), outcomes
    return cpu / sum(outcome.metadata.size for outcome in outcomes if outcome.rolled) * 1e9


def _opened(root: Path, servers: str) -> RemoteLogManager:
    """Open a new remote log below `root`; use it in a `with`."""
    config = root / "settings.yaml"
    given = {"bootstrap.servers": servers, "state.directory": str(root / "state")}
    config.write_text(yaml.safe_dump({**given, "topics": {TOPIC: {"remote.storage.enable": True}}}))
    settings = load_settings(config, environ={})
    return RemoteLogManager.open(settings, wall_clock, store_options(settings, {}), create=True)


def cp(root: Path, log_dir: Path, size: int) -> float:
    """Copy about `size` bytes of closed segments by cp and sync them; return the seconds."""
    partitions = sorted(log_dir.glob(f"{TOPIC}-*"))
    files = [segment.log_path for partition in partitions for segment in list_segments(partition)[:-1]]
    begun = time.perf_counter()
    copied = 0
    for number, path in enumerate(files):
        if copied < size:
            subprocess.run(["cp", str(path), str(root / str(number))], check=True)
            copied += path.stat().st_size
    subprocess.run(["sync", "-f", str(root)], check=True)
    return (time.perf_counter() - begun) * size / copied


def consume(servers: str, records: int) -> float:
    """Read `records` records from the start of all partitions; return the seconds from the first one on."""
    from confluent_kafka import Consumer, TopicPartition  # noqa: PLC0415 - the peer's

    settings: dict[str, str | int | bool] = {
        "bootstrap.servers": servers,
        "group.id": "benchmark",
        "enable.auto.commit": False,
        "fetch.max.bytes": 64 << 20,
        "max.partition.fetch.bytes": 8 << 20,
        "queued.max.messages.kbytes": 256 << 10,
    }
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(TOPIC, number, 0) for number in range(PARTITIONS)])
    consumer.consume(1, 30)
    begun, seen = time.perf_counter(), 1
    while seen < records:
        seen += len(consumer.consume(5000, 5))
    seconds = time.perf_counter() - begun
    consumer.close()
    return seconds


def floor(root: Path, servers: str, end_offsets: Sequence[int]) -> tuple[int, float, float]:
    """Receive each partition up to its end, check it, write it and sync it; return bytes, wall and CPU seconds."""
    begun, cpu, size = time.perf_counter(), _cpu(), 0
    buffer = FetchBuffer(64 << 20)
    with ClusterClient.by_properties({"bootstrap.servers": servers}) as cluster:
        for partition, end in enumerate(end_offsets):
            at = 0
            with (root / str(partition)).open("wb", buffering=0) as file:
                while at < end:
                    [found] = cluster.fetch([FetchPosition(TOPIC, partition, at)], buffer).partitions
                    table, consumed = SegmentScanner(TOPIC, at).feed(found.records)
                    for piece in range(0, consumed, 1 << 20):
                        file.write(found.records[piece : min(piece + (1 << 20), consumed)])
                    at, size = int(table.last_offset[-1]) + 1, size + consumed
                os.fsync(file.fileno())
    return size, time.perf_counter() - begun, _cpu() - cpu


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main() -> int:
    """Measure; return 1 if a goal was missed."""
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--size", type=int, default=512, help="MiB of records")
    given = parser.parse_args()
    rounds: list[Round] = []
    with one_broker(given.directory, "fetch-") as (root, kafka):
        kafka.client.create_topic(TOPIC, PARTITIONS, {"segment.bytes": str(SEGMENT_BYTES)})
        produce(kafka.bootstrap_servers, given.size << 20)
        for number in range(given.rounds + 1):
            (place := root / str(number)).mkdir()
            (beside := root / f"cp-{number}").mkdir()
            (least := root / f"least-{number}").mkdir()
            (nowhere := root / f"nowhere-{number}").mkdir()
            size, ours, whole_cpu, ends = copy(place, kafka.bootstrap_servers)
            cpu = source_alone(nowhere, kafka.bootstrap_servers)
            plain = cp(beside, kafka.log_dir, size)
            consumer = consume(kafka.bootstrap_servers, size // 1100)
            moved, *bare = floor(least, kafka.bootstrap_servers, ends)
            if number:
                whole = consumer * size / (size // 1100 * 1100)
                per_gb = [1e9 * each / moved for each in bare]
                rounds.append(Round(size, ours, whole_cpu, cpu, plain, whole, *per_gb))
            for used in (place, beside, least, nowhere):
                shutil.rmtree(used)
    print_machine(given.directory)
    size = rounds[0].size
    ours, plain, consumer = (
        size / median(seconds) / 1e6
        for seconds in ([one.ours for one in rounds], [one.cp for one in rounds], [one.consumer for one in rounds])
    )
    cpu = median([one.cpu for one in rounds])
    whole_cpu = median([one.whole_cpu for one in rounds]) / (size / 1e9)
    bare, bare_cpu = (median(each) for each in zip(*((one.floor, one.floor_cpu) for one in rounds), strict=True))
    print(f"  a whole run, its plan, store and commit too: {whole_cpu:.2f} s of CPU a GB")
    print(f"  receive, check, write and sync, nothing else: {1e3 / bare:.0f} MB/s, {bare_cpu:.2f} s of CPU a GB")
    what = f"copy by Fetch, {size >> 20} MiB"
    return judge(
        [
            Goal(what, f"{ours:.0f} MB/s", f"{plain:.0f} MB/s cp and sync", ours / plain, GOAL_OF_CP),
            Goal(what, f"{ours:.0f} MB/s", f"{consumer:.0f} MB/s confluent-kafka", ours / consumer, GOAL_OF_CONSUMER),
            Goal(f"{what}, source's CPU", f"{cpu:.2f} s/GB", "1 s/GB allowed", cpu, CPU_SECONDS_A_GB, is_most=True),
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
