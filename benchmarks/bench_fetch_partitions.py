"""Copies many partitions of five small segments each out of a running broker in one run, by the command line.

The run is a process of its own: it discovers the partitions, plans, takes leases, fetches, copies into a local store
and commits. The goals are those of 2,000 partitions on two cores, 10 minutes and 3 GB of memory; fewer have their share
of the time. Memory is the most that the run's process and those below it had together (PSS, looked at all the time).
"""

from __future__ import annotations

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


def copy(root: Path, servers: str) -> Run:
    """Run `tiered-storage copy` over everything in a process of its own."""
    config = root / "settings.yaml"
    given = {"bootstrap.servers": servers, "state.directory": str(root / "state")}
    config.write_text(yaml.safe_dump({**given, "topics": {TOPIC: {"remote.storage.enable": True}}}))
    command = [str(Path(sys.executable).with_name("tiered-storage")), "copy", "--json", "--config", str(config)]
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
    given = parser.parse_args()
    count: int = given.partitions
    # Of the broker too, which this process starts.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    with one_broker(given.directory, "fetch-partitions-") as (root, kafka):
        small = {"internal.segment.bytes": str(SEGMENT_BYTES), "segment.index.bytes": str(SEGMENT_BYTES)}
        kafka.client.create_topic(TOPIC, count, small)
        produce(kafka.bootstrap_servers, count)
        first = copy(root, kafka.bootstrap_servers)
        again = copy(root, kafka.bootstrap_servers)
    print(f"  {count} partitions: {first.rows} segments, {first.seconds:.1f} s, {first.cpu:.1f} s of CPU")
    print(f"  a run with nothing to do: {again.seconds:.1f} s, {again.cpu:.1f} s of CPU, {again.rows} segments")
    if first.rows < SEGMENTS * count or again.rows:
        raise SystemExit(f"{first.rows} and {again.rows} segments were copied: nothing was measured")
    allowed = ALLOWED_SECONDS * count / ALL_PARTITIONS
    what = f"run by Fetch, {count} x {SEGMENTS} segments"
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
