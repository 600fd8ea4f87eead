"""Measures a consumer at the end of a topic, straight from its brokers, while the store or the database hangs.

A producer sends records to one topic at a fixed rate, and each record is timed from its sending to its arrival. Beside
it, another topic is copied again and again into an S3 server, with its metadata in PostgreSQL. Both with servers that
answer and with one that hangs, in turns. Local reads keep their latency: the brokers know nothing of either server.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from statistics import median

from bench_fetch_beside import LIVE, Latencies, latencies
from measuring import Goal, judge, print_machine
from one_broker import arguments

from tiered_storage_airflow.embedded.environment import PROJECT_ROOT

COPIED = "copied"
GOAL = 1.5
LEAD_SECONDS = 3.0
"""What copies take to begin, or to wait for the server that hangs."""


def measured(
    what: str, rounds: int, seconds: float, servers: str, outage: Callable[[], AbstractContextManager[None]]
) -> Goal:
    """Return the goal for consumers' latency beside the outage of `what`, measured in so many rounds."""

    def p99() -> float:
        arrived = latencies(servers, seconds).arrived
        # The consumer connects while the first of them are sent.
        return Latencies.p99(arrived[len(arrived) // 4 :])

    without: list[float] = []
    beside: list[float] = []
    for _ in range(rounds):
        without.append(p99())
        with outage():
            time.sleep(LEAD_SECONDS)
            beside.append(p99())
        time.sleep(LEAD_SECONDS)
    each = " ".join(f"{one * 1e3:.1f}" for pair in zip(without, beside, strict=True) for one in pair)
    alone, worse = median(without), median(beside)
    print(f"  p99 (ms) of each round, without and while the {what} hangs: {each}")
    return Goal(
        f"tail consumer's p99 while the {what} hangs",
        f"{worse * 1e3:.1f} ms",
        f"{alone * 1e3:.1f} ms without",
        worse / alone,
        GOAL,
        is_most=True,
    )


def main() -> int:
    """Measure; return 1 if a goal was missed."""
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement")
    given = parser.parse_args()
    from integration.remote_servers import database_hangs, running_servers, store_hangs  # noqa: PLC0415 - as above
    from servers.kafka_programs import KafkaPrograms  # noqa: PLC0415 - the path to it is made by one_broker
    from support.live_cluster import SMALL_SEGMENTS, CopyLoop, producer  # noqa: PLC0415 - as above
    from tiered_storage_airflow.demo_cluster.ledger import Ledger  # noqa: PLC0415 - slow to import

    directory: Path = given.directory
    directory.mkdir(parents=True, exist_ok=True)
    print_machine(directory)
    with (
        tempfile.TemporaryDirectory(dir=directory, prefix="reads-beside-outages-") as folder,
        running_servers(KafkaPrograms.fetched(PROJECT_ROOT / ".state"), Path(folder) / "servers") as remote,
    ):
        site = remote.site(Path(folder), COPIED)
        remote.brokers.create_topic(COPIED, 3, SMALL_SEGMENTS)
        remote.brokers.create_topic(LIVE, 1, {})
        servers = remote.brokers.bootstrap_servers
        with producer(site, COPIED, Ledger(Path(folder) / "ledger.csv")), CopyLoop(site) as copies:
            copies.wait_for_segments()
            latencies(servers, 3)
            goals: list[Goal] = []
            for what, outage in (("store", store_hangs), ("database", database_hangs)):
                ended = len(copies.results)
                goals.append(measured(what, given.rounds, given.seconds, servers, partial(outage, remote)))
                print(f"  {len(copies.results) - ended} copies ended meanwhile")
    return judge(goals)


if __name__ == "__main__":
    sys.exit(main())
