"""Copies many partitions of five small segments each out of a running broker in one run.

By the command line, or with --spark by the copy job of spark_jobs on local[2], as Airflow's task runs it.

The run is a process of its own: it discovers the partitions, plans, takes leases, fetches, copies into a local store
and commits. The goals are limits and no ratios, because no peer does the same: on two cores, 2,000 partitions may take
10 minutes and 3 GB of memory; fewer have their share of the time. Memory is the most that the run's process and those
below it had together (PSS, looked at all the time).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import yaml
from measuring import Goal, judge
from one_broker import arguments, one_broker

from tiered_storage_airflow.embedded.environment import PROJECT_ROOT

TOPIC = "benchmark"
ALL_PARTITIONS = 2000
ALLOWED_SECONDS = 600.0
ALLOWED_BYTES = 3e9
CORES = 2
SEGMENTS = 5
SEGMENT_BYTES = 32 << 10
RECORD_BYTES = 1000
BATCH_RECORDS = 10
LOOK_SECONDS = 0.1
JOB = "runs/benchmark/1"


@dataclass(frozen=True, slots=True)
class Run:
    """A run of the command line: wall and CPU seconds, and the most memory (bytes) that its processes had together."""

    rows: int
    seconds: float
    cpu: float
    memory: int


def produce(servers: str, partitions: int) -> None:
    """Fill SEGMENTS segments of every partition, and begin another."""
    from confluent_kafka import Producer  # noqa: PLC0415 - the peer's

    settings: dict[str, str | int] = {
        "bootstrap.servers": servers,
        "batch.num.messages": BATCH_RECORDS,
        "linger.ms": 1000,
        "queue.buffering.max.messages": 1_000_000,
    }
    producer = Producer(settings)
    records = (SEGMENTS * SEGMENT_BYTES + SEGMENT_BYTES // 2) // RECORD_BYTES
    for first in range(0, partitions, 100):
        for partition in range(first, min(first + 100, partitions)):
            for _ in range(records):
                producer.produce(TOPIC, os.urandom(RECORD_BYTES), partition=partition)
        if producer.flush(120):
            raise SystemExit("the broker took too few records")


def copy(root: Path, servers: str, *, by_spark: bool) -> Run:
    """Copy everything by `tiered-storage copy`, or through Spark, in a process of its own."""
    config = root / "settings.yaml"
    given = {"bootstrap.servers": servers, "state.directory": str(root / "state")}
    config.write_text(yaml.safe_dump({**given, "topics": {TOPIC: {"remote.storage.enable": True}}}))
    command = [str(Path(sys.executable).with_name("tiered-storage")), "copy", "--json", "--config", str(config)]
    if by_spark:
        command = [sys.executable, __file__, "--copy-by-spark", str(config)]
    begun = time.perf_counter()
    with (root / "out").open("w+") as out:
        process = subprocess.Popen(command, stdout=out)
        root_process, memory, ended = psutil.Process(process.pid), 0, 0
        while not ended:
            memory = max(memory, memory_below(root_process))
            time.sleep(LOOK_SECONDS)
            ended, status, used = os.wait4(process.pid, os.WNOHANG)
        seconds = time.perf_counter() - begun
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise SystemExit(f"the copy ended with {process.returncode}")
        out.seek(0)
        rows = len(json.load(out)["rows"])
    # The peak of its own process is known exactly, between two looks as well.
    return Run(rows, seconds, used.ru_utime + used.ru_stime, max(memory, used.ru_maxrss << 10))


def copy_by_spark(config: Path) -> None:
    """Plan, submit the copy job and commit; print what was copied as `tiered-storage copy --json` does."""
    from integration.spark_submit import isolated_spark  # noqa: PLC0415 - the path to it is made by one_broker
    from tiered_storage.clock import wall_clock  # noqa: PLC0415 - slow to import, here and below
    from tiered_storage.remote_log.context import store_options  # noqa: PLC0415
    from tiered_storage.remote_log.copy.job import CopyJob  # noqa: PLC0415
    from tiered_storage.remote_log.manager import RemoteLogManager  # noqa: PLC0415
    from tiered_storage.settings.settings import load_settings  # noqa: PLC0415

    settings = load_settings(config, environ={})
    with RemoteLogManager.open(settings, wall_clock, store_options(settings, {}), create=True) as remote_log:
        plan, rows = remote_log.plan_copy(), 0
        if plan.segments:
            spark = isolated_spark(PROJECT_ROOT / ".state", config.parent)
            begun = remote_log.begin_copy(plan, "benchmark")
            with remote_log.held(begun):
                job = remote_log.write_copy_job(JOB, begun)
                spark.run("copy_segments.py", remote_log.context.access(job.files))
                outcomes = list(CopyJob.read(remote_log.context.work, JOB)[0].outcomes())
                if not remote_log.commit_copy(outcomes).is_whole:
                    raise SystemExit("the commit of the copy was not whole")
            rows = len([each for each in outcomes if each.rolled is not None])
    print(json.dumps({"rows": [{}] * rows}))


def memory_below(process: psutil.Process) -> int:
    """Return the bytes that a process and all below it have now; what they share counts once."""
    size = 0
    with suppress(psutil.Error):
        for each in (process, *process.children(recursive=True)):
            with suppress(psutil.Error):
                size += each.memory_full_info().pss
    return size


def main() -> int:
    """Measure; return 1 if a goal was missed."""
    parser = arguments(__doc__)
    parser.add_argument("--partitions", type=int, default=ALL_PARTITIONS)
    parser.add_argument("--spark", action="store_true", help="copy through Spark's job")
    parser.add_argument("--copy-by-spark", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.copy_by_spark is not None:
        copy_by_spark(given.copy_by_spark)
        return 0
    count: int = given.partitions
    # Of the broker too, which this process starts.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    with one_broker(given.directory, "fetch-partitions-") as (root, kafka):
        small = {"internal.segment.bytes": str(SEGMENT_BYTES), "segment.index.bytes": str(SEGMENT_BYTES)}
        kafka.client.create_topic(TOPIC, count, small)
        produce(kafka.bootstrap_servers, count)
        first = copy(root, kafka.bootstrap_servers, by_spark=given.spark)
        again = copy(root, kafka.bootstrap_servers, by_spark=given.spark)
    less = " (without Spark's workers, which the run does not wait for)" if given.spark else ""
    print(f"  {count} partitions: {first.rows} segments, {first.seconds:.1f} s, {first.cpu:.1f} s of CPU{less}")
    print(f"  a run with nothing to do: {again.seconds:.1f} s, {again.cpu:.1f} s of CPU, {again.rows} segments")
    if first.rows < SEGMENTS * count or again.rows:
        raise SystemExit(f"{first.rows} and {again.rows} segments were copied: nothing was measured")
    allowed = ALLOWED_SECONDS * count / ALL_PARTITIONS
    what = f"run by Fetch{' through Spark' if given.spark else ''}, {count} x {SEGMENTS} segments"
    return judge(
        [
            Goal(
                what, f"{first.seconds:.1f} s", f"{allowed:.0f} s allowed", first.seconds / allowed, 1.0, is_most=True
            ),
            Goal(
                f"{what}, memory",
                f"{first.memory / 1e6:.0f} MB",
                f"{ALLOWED_BYTES / 1e6:.0f} MB allowed",
                first.memory / ALLOWED_BYTES,
                1.0,
                is_most=True,
            ),
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
