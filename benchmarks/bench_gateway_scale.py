"""Local readers of a gateway of two processes beside 200 readers from offset 0, with 1,000 connections.

2,000 partitions have their older half only remotely. Local readers ask for the last batch of a partition at a fixed
rate, without the 200 and beside them, in turns. The goal is the ratio of the two p99. The 200 read as fast as they can,
at a low priority, as if they were on another machine; all else is on this one. Memory is the most that one process of
the gateway had after its start, beside what docs/gateway.md allows.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from statistics import median

from measuring import Goal, judge
from one_broker import arguments, one_broker

GOAL_P99 = 1.5
NICE = 10
WARM_SECONDS = 5.0


def main() -> int:
    """Measure; return 1 if a goal was missed."""
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement")
    given = parser.parse_args()
    alone: list[float] = []
    beside: list[float] = []
    rates: list[float] = []
    with ExitStack() as running:
        root, kafka = running.enter_context(one_broker(given.directory, "gateway-scale-"))
        # The path to both is made by one_broker.
        from integration.gateway import gateway_scale  # noqa: PLC0415
        from integration.gateway.gateway_crowd import CONNECTIONS, READERS, Crowd, LocalReaders, p99  # noqa: PLC0415

        site = gateway_scale.scale_site(kafka, root)
        topic = gateway_scale.filled_and_trimmed(site)
        gateway = running.enter_context(gateway_scale.scale_gateway(site))
        before = gateway.memory()
        local = running.enter_context(LocalReaders(topic, gateway.broker_port))
        crowd = running.enter_context(Crowd(topic, gateway.broker_port, NICE))
        for _ in range(given.rounds):
            alone.append(p99(local.latencies(given.seconds)))
            crowd.start_reading()
            local.latencies(WARM_SECONDS)
            begun = sum(each.records for each in crowd.progress())
            beside.append(p99(local.latencies(given.seconds)))
            rates.append((sum(each.records for each in crowd.progress()) - begun) / given.seconds)
            crowd.stop_reading()
        most = max(now - then for then, now in zip(before, gateway.most_memory(), strict=True))
        allowed = gateway_scale.allowed_memory(CONNECTIONS)
    for name, found in {"alone": alone, "beside": beside}.items():
        print(f"  local readers {name}, p99 (ms) of each round: {' '.join(f'{each * 1e3:.2f}' for each in found)}")
    print(f"  records a second of all {READERS} readers: {' '.join(f'{each:,.0f}' for each in rates)}")
    ours, peer = median(beside), median(alone)
    return judge(
        [
            Goal(
                f"local p99 beside {READERS} remote readers",
                f"{ours * 1e3:.2f} ms",
                f"{peer * 1e3:.2f} ms without them",
                ours / peer,
                GOAL_P99,
                is_most=True,
            ),
            Goal(
                f"memory of a process, {CONNECTIONS:,} connections",
                f"{most / 1e6:.0f} MB",
                f"{allowed / 1e6:.0f} MB allowed",
                most / allowed,
                1.0,
                is_most=True,
            ),
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
