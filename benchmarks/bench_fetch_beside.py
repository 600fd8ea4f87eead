"""Measures a producer and a consumer at the end of a topic while a throttled copy of another topic runs beside them.

The producer sends records at a fixed rate, and each record's acknowledgement is timed; the consumer waits at the end of
the topic, and each record is timed from its sending to its arrival. Both without a copy and beside one, in turns. The
copy is a process of its own, limited to a quarter of what `cp` and a sync get from the disk.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import yaml
from bench_export import produce
from measuring import Goal, judge
from one_broker import arguments, one_broker

COPIED, LIVE = "copied", "live"
SEGMENT_BYTES = 32 << 20
RECORDS_A_SECOND = 500
RECORD_BYTES = 1000
GOAL = 1.3
SHARE_OF_DISK = 4
LEAD_SECONDS = 3.0
"""What a copy takes to begin."""


@dataclass(slots=True)
class Latencies:
    """Seconds from the sending of each record to its acknowledgement, and to its arrival at the consumer."""

    acknowledged: list[float] = field(default_factory=list)
    arrived: list[float] = field(default_factory=list)

    @staticmethod
    def p99(seconds: list[float]) -> float:
        """Return what 99 of 100 stay below."""
        return sorted(seconds)[len(seconds) * 99 // 100]


def latencies(servers: str, seconds: float) -> Latencies:
    """Send records at the fixed rate for `seconds` and consume them meanwhile; return how long each took."""
    from confluent_kafka import Consumer, Producer, TopicPartition  # noqa: PLC0415 - the peer's

    producer = Producer({"bootstrap.servers": servers, "linger.ms": 0, "acks": "all"})
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "beside", "enable.auto.commit": False})
    _, end = consumer.get_watermark_offsets(TopicPartition(LIVE, 0), 30)
    consumer.assign([TopicPartition(LIVE, 0, end)])
    found, over = Latencies(), threading.Event()

    def consume() -> None:
        while not over.is_set():
            # One by one: consume() waits for a full list, up to its whole timeout.
            message = consumer.poll(0.05)
            value = message.value() if message is not None and message.error() is None else None
            if value is not None:
                found.arrived.append(time.perf_counter() - float(value[:20]))

    reader = threading.Thread(target=consume)
    reader.start()
    begun = time.perf_counter()
    for number in range(int(seconds * RECORDS_A_SECOND)):
        while (ahead := begun + number / RECORDS_A_SECOND - time.perf_counter()) > 0:
            producer.poll(min(ahead, 0.001))
        sent = time.perf_counter()

        def acknowledged(error: object, _: object, sent: float = sent) -> None:
            if error is None:
                found.acknowledged.append(time.perf_counter() - sent)

        producer.produce(
            LIVE, f"{sent:020.9f}".encode().ljust(RECORD_BYTES, b"."), partition=0, on_delivery=acknowledged
        )
    producer.flush(30)
    time.sleep(0.5)
    over.set()
    reader.join()
    consumer.close()
    return found


def disk_rate(root: Path, log_dir: Path) -> float:
    """Return the bytes a second at which `cp` and a sync copy closed segments of the broker."""
    from tiered_storage.kafka_log.files.log_segment import list_segments  # noqa: PLC0415 - slow to import

    files = [segment.log_path for segment in list_segments(log_dir / f"{COPIED}-0")[:-1]][:8]
    begun = time.perf_counter()
    for number, path in enumerate(files):
        subprocess.run(["cp", str(path), str(root / f"cp-{number}")], check=True)
    subprocess.run(["sync", "-f", str(root)], check=True)
    rate = sum(path.stat().st_size for path in files) / (time.perf_counter() - begun)
    for number in range(len(files)):
        (root / f"cp-{number}").unlink()
    return rate


def begin_copy(root: Path, servers: str, bytes_a_second: int) -> subprocess.Popen[bytes]:
    """Begin a throttled copy into a new store below `root`, in a process of its own."""
    config = root / "settings.yaml"
    given = {
        "bootstrap.servers": servers,
        "state.directory": str(root / "state"),
        "remote.log.manager.copy.max.bytes.per.second": bytes_a_second,
        "remote.log.manager.copy.quota.window.num": 1,
        "topics": {COPIED: {"remote.storage.enable": True}},
    }
    config.write_text(yaml.safe_dump(given))
    command = [str(Path(sys.executable).with_name("tiered-storage")), "copy", "--config", str(config)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL)


def settle() -> None:
    """Wait until the disk is quiet: what was written and removed before would be measured too."""
    os.sync()
    time.sleep(LEAD_SECONDS)


def main() -> int:
    """Measure; return 1 if a goal was missed."""
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement")
    given = parser.parse_args()
    alone: list[Latencies] = []
    beside: list[Latencies] = []
    with one_broker(given.directory, "fetch-beside-") as (root, kafka):
        servers = kafka.bootstrap_servers
        kafka.client.create_topic(COPIED, 4, {"segment.bytes": str(SEGMENT_BYTES)})
        kafka.client.create_topic(LIVE, 1)
        produce(servers, first := 600 << 20, COPIED)
        rate = int(disk_rate(root, kafka.log_dir) / SHARE_OF_DISK)
        # Twice what a copy moves while it is measured: it must not end before.
        produce(servers, max(0, int(2 * rate * (LEAD_SECONDS + given.seconds)) - first), COPIED)
        settle()
        latencies(servers, 3)
        for number in range(given.rounds):
            alone.append(latencies(servers, given.seconds))
            (place := root / str(number)).mkdir()
            copying = begin_copy(place, servers, rate)
            time.sleep(LEAD_SECONDS)
            beside.append(latencies(servers, given.seconds))
            is_over = copying.poll() is not None
            copying.terminate()
            copying.wait()
            shutil.rmtree(place)
            settle()
            if is_over:
                raise SystemExit("the copy ended before the measurement: nothing was measured")
    print(f"  the copy was limited to {rate / 1e6:.0f} MB/s")
    for name in ("acknowledged", "arrived"):
        pairs = zip(alone, beside, strict=True)
        each = (f"{Latencies.p99(getattr(one, name)) * 1e3:.1f}" for pair in pairs for one in pair)
        print(f"  p99 (ms) of each round, without and beside, {name}: {' '.join(each)}")
    return judge(
        [
            _goal("producer's p99 beside a copy by Fetch", *_p99(alone, beside, "acknowledged")),
            _goal("tail consumer's p99 beside a copy by Fetch", *_p99(alone, beside, "arrived")),
        ]
    )


def _p99(alone: list[Latencies], beside: list[Latencies], name: str) -> tuple[float, float]:
    """Return the median p99 of the rounds (s) beside the copy, and alone."""
    return (
        median(Latencies.p99(getattr(each, name)) for each in beside),
        median(Latencies.p99(getattr(each, name)) for each in alone),
    )


def _goal(what: str, ours: float, alone: float) -> Goal:
    return Goal(what, f"{ours * 1e3:.1f} ms", f"{alone * 1e3:.1f} ms without", ours / alone, GOAL, is_most=True)


if __name__ == "__main__":
    sys.exit(main())
