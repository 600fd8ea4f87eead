"""Copies a topic of a running broker by Fetch into a local store, against `cp` of the broker's files and a consumer.

The broker's files are in the page cache. Ours plans, takes leases, fetches, checks every batch, builds the indexes,
syncs its objects and commits. `cp` copies the same closed segments and syncs them. The consumer is confluent-kafka's,
which reads the same records and throws them away.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import yaml
from bench_export import produce
from measuring import STATE, Goal, judge, print_machine

from tiered_storage.clock import wall_clock
from tiered_storage.kafka_log.files.log_segment import list_segments
from tiered_storage.remote_log.context import store_options
from tiered_storage.remote_log.copy.job import CopyJob
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.settings.settings import load_settings
from tiered_storage_airflow.embedded.environment import PROJECT_ROOT

sys.path.append(str(PROJECT_ROOT / "tests"))

TOPIC = "benchmark"
PARTITIONS = 4
SEGMENT_BYTES = 32 << 20
GOAL_OF_CP = 0.4
GOAL_OF_CONSUMER = 1.5
CPU_SECONDS_A_GB = 1.0


@dataclass(frozen=True, slots=True)
class Round:
    """What each way took (s), for how many bytes; `cpu` is ours, of this process."""

    size: int
    ours: float
    cpu: float
    cp: float
    consumer: float


def copy(root: Path, servers: str) -> tuple[int, float, float]:
    """Copy all closed segments into a new store below `root`; return the bytes, and the wall and CPU seconds."""
    config = root / "settings.yaml"
    given = {"bootstrap.servers": servers, "state.directory": str(root / "state")}
    config.write_text(yaml.safe_dump({**given, "topics": {TOPIC: {"remote.storage.enable": True}}}))
    settings = load_settings(config, environ={})
    with RemoteLogManager.open(settings, wall_clock, store_options(settings, {}), create=True) as remote_log:
        begun_at, cpu = time.perf_counter(), _cpu()
        begun = remote_log.begin_copy(remote_log.plan_copy(), "benchmark")
        job = remote_log.write_copy_job("runs/benchmark", begun)
        _, description = CopyJob.read(remote_log.work, job.files.folder)
        for number in range(job.groups):
            job.run_group(number, remote_log.storage, description.sizes, wall_clock, access=remote_log.source.access)
        report = remote_log.commit_copy(job.outcomes())
        seconds, cpu = time.perf_counter() - begun_at, _cpu() - cpu
    assert not report.failures, report.failures[0]
    return sum(segment.size for segment in report.committed), seconds, cpu


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


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main() -> int:
    """Measure; return 1 if a goal was missed."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--directory", type=Path, default=STATE, help="where to work, on the disk to measure")
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--size", type=int, default=512, help="MiB of records")
    given = arguments.parse_args()
    given.directory.mkdir(parents=True, exist_ok=True)
    print_machine(given.directory)
    from servers.kafka_programs import KafkaPrograms  # noqa: PLC0415 - the path to it is made above
    from servers.real_kafka import RealKafka  # noqa: PLC0415 - as above

    rounds: list[Round] = []
    with tempfile.TemporaryDirectory(dir=given.directory, prefix="fetch-") as folder:
        root = Path(folder)
        with RealKafka(KafkaPrograms.fetched(PROJECT_ROOT / ".state"), root / "kafka") as kafka:
            kafka.client.create_topic(TOPIC, PARTITIONS, {"segment.bytes": str(SEGMENT_BYTES)})
            produce(kafka.bootstrap_servers, given.size << 20)
            for number in range(given.rounds + 1):
                (place := root / str(number)).mkdir()
                (beside := root / f"cp-{number}").mkdir()
                size, ours, cpu = copy(place, kafka.bootstrap_servers)
                plain = cp(beside, kafka.log_dir, size)
                consumer = consume(kafka.bootstrap_servers, size // 1100)
                if number:
                    rounds.append(Round(size, ours, cpu, plain, consumer * size / (size // 1100 * 1100)))
                for used in (place, beside):
                    shutil.rmtree(used)
    print_machine(given.directory)
    size = rounds[0].size
    ours, plain, consumer = (
        size / median(seconds) / 1e6
        for seconds in ([one.ours for one in rounds], [one.cp for one in rounds], [one.consumer for one in rounds])
    )
    cpu = median([one.cpu for one in rounds]) / (size / 1e9)
    what = f"copy by Fetch, {size >> 20} MiB"
    return judge(
        [
            Goal(what, f"{ours:.0f} MB/s", f"{plain:.0f} MB/s cp and sync", ours / plain, GOAL_OF_CP),
            Goal(what, f"{ours:.0f} MB/s", f"{consumer:.0f} MB/s confluent-kafka", ours / consumer, GOAL_OF_CONSUMER),
            Goal(f"{what}, CPU", f"{cpu:.2f} s/GB", "1 s/GB allowed", cpu, CPU_SECONDS_A_GB, is_most=True),
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
