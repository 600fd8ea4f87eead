"""Measures the gateway between clients and a broker: reads of remote and of local records, and produce.

librdkafka reads the same records in turns: directly from the broker, through the gateway while the broker still has
them, and through it once only the store has them (a local directory on the same disk). A producer sends records at a
fixed rate, directly and through the gateway, and each acknowledgement is timed. The broker's files and the store's are
in the page cache. Gateway, broker and client share the cores of one machine.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING

from bench_export import PARTITIONS, produce
from measuring import Goal, judge
from one_broker import arguments, one_broker

from tiered_storage_airflow.demo_cluster.brokers import free_first_port

if TYPE_CHECKING:
    from support.gateways import RunningGateway

READ, WRITTEN = "benchmark", "gateway-produce"
SEGMENT_BYTES = 32 << 20
RECORD_BYTES = 1000
RECORDS_A_SECOND = 500
GOAL_REMOTE = 1.0
GOAL_LOCAL = 0.85
GOAL_PRODUCE = 1.6


def read_rate(servers: str, ends: dict[int, int]) -> float:
    """Read all partitions of READ from offset 0 to `ends` (exclusive) by librdkafka.

    Return bytes of values a second, from the first record on.
    """
    from confluent_kafka import Consumer, TopicPartition  # noqa: PLC0415 - the peer's

    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "bench-gateway",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "fetch.max.bytes": 50 << 20,
            "max.partition.fetch.bytes": 8 << 20,
            "queued.max.messages.kbytes": 1 << 20,
        }
    )
    consumer.assign([TopicPartition(READ, number, 0) for number in range(len(ends))])
    seen, size, begun = 0, 0, 0.0
    while seen < sum(ends.values()):
        messages = consumer.consume(10_000, 1.0)
        begun = begun or (time.perf_counter() if messages else 0.0)
        for message in messages:
            if message.error() is not None:
                raise SystemExit(f"{servers}: {message.error()}")
            number, offset, value = message.partition(), message.offset(), message.value()
            if number is not None and offset is not None and value is not None and offset < ends[number]:
                seen += 1
                size += len(value)
    seconds = time.perf_counter() - begun
    consumer.close()
    return size / seconds


def produce_p99(servers: str, seconds: float) -> float:
    """Send records at the fixed rate for `seconds`; return what 99 of 100 acknowledgements stay below (s)."""
    from confluent_kafka import Producer  # noqa: PLC0415 - the peer's

    producer = Producer({"bootstrap.servers": servers, "linger.ms": 0, "acks": "all"})
    taken: list[float] = []
    begun = time.perf_counter()
    for number in range(int(seconds * RECORDS_A_SECOND)):
        while (ahead := begun + number / RECORDS_A_SECOND - time.perf_counter()) > 0:
            producer.poll(min(ahead, 0.001))

        def acknowledged(error: object, _: object, sent: float = time.perf_counter()) -> None:
            if error is None:
                taken.append(time.perf_counter() - sent)

        producer.produce(WRITTEN, bytes(RECORD_BYTES), partition=0, on_delivery=acknowledged)
    producer.flush(30)
    return sorted(taken)[len(taken) * 99 // 100]


def main() -> int:
    """Measure; return 1 if a goal was missed."""
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--megabytes", type=int, default=1000, help="of records to read")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement of produce")
    given = parser.parse_args()
    rates: dict[str, list[float]] = {"direct": [], "local": [], "remote": []}
    latencies: dict[str, list[float]] = {"direct": [], "through": []}
    with one_broker(given.directory, "gateway-") as (root, kafka):
        from support.gateways import copied_and_trimmed, running_gateway  # noqa: PLC0415
        from support.live_sites import LiveSite, remote_ends  # noqa: PLC0415 - the path to it is made by one_broker

        site = LiveSite(kafka, root, (READ,), {"gateway.port": free_first_port([1])})
        kafka.client.create_topic(READ, PARTITIONS, {"segment.bytes": str(SEGMENT_BYTES)})
        kafka.client.create_topic(WRITTEN, 1)
        produce(kafka.bootstrap_servers, given.megabytes << 20, READ)
        while site.copied("--topics", READ):
            pass
        ends = remote_ends(site, READ)
        with running_gateway(site.config, site.settings["gateway.port"]) as gateway:
            for _ in range(given.rounds):
                rates["direct"].append(read_rate(kafka.bootstrap_servers, ends))
                rates["local"].append(read_rate(gateway.bootstrap_servers, ends))
                latencies["direct"].append(produce_p99(kafka.bootstrap_servers, given.seconds))
                latencies["through"].append(produce_p99(gateway.bootstrap_servers, given.seconds))
            for number in range(PARTITIONS):
                copied_and_trimmed(site, READ, number)
            rates["remote"] += _remote(gateway, ends, given.rounds)
    show(rates)
    for name, found in latencies.items():
        print(f"  produce, {name}, p99 (ms) of each round: {' '.join(f'{each * 1e3:.2f}' for each in found)}")
    return judge(
        [
            goal_of("librdkafka: remote through the gateway", rates["remote"], rates["direct"], GOAL_REMOTE),
            goal_of("librdkafka: local through the gateway", rates["local"], rates["direct"], GOAL_LOCAL),
            _p99(latencies["through"], latencies["direct"]),
        ]
    )


def show(rates: Mapping[str, Sequence[float]]) -> None:
    """Print the rates of each round, in bytes a second, by what was measured."""
    for name, found in rates.items():
        print(f"  {name}, MB/s of each round: {' '.join(f'{each / 1e6:.0f}' for each in found)}")


def _remote(gateway: RunningGateway, ends: dict[int, int], rounds: int) -> list[float]:
    return [read_rate(gateway.bootstrap_servers, ends) for _ in range(rounds)]


def goal_of(what: str, ours: Sequence[float], theirs: Sequence[float], goal: float, peer: str = "direct local") -> Goal:
    """Compare the medians of rates, in bytes a second."""
    through, beside = median(ours), median(theirs)
    return Goal(what, f"{through / 1e6:.0f} MB/s", f"{beside / 1e6:.0f} MB/s {peer}", through / beside, goal)


def _p99(ours: list[float], direct: list[float]) -> Goal:
    through, beside = median(ours), median(direct)
    text = f"{beside * 1e3:.2f} ms direct"
    return Goal(
        "produce p99 through the gateway", f"{through * 1e3:.2f} ms", text, through / beside, GOAL_PRODUCE, is_most=True
    )


if __name__ == "__main__":
    sys.exit(main())
