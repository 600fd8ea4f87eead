"""Measures what the gateway itself can do: Fetch answers that nobody decodes, of two processes and from an S3 server.

A raw client sends Fetch requests and looks at the headers of batches alone. One connection reads local records directly
from the broker; two processes read remote records, each through a gateway of one process, from a directory on the same
disk. (Two workers on one port would both take one of the connections or not, by chance.) Then one
process reads them through a gateway whose store is an S3 server on this machine, and our own reader does without it.
"""

from __future__ import annotations

import os
import struct
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

from bench_export import PARTITIONS, produce
from bench_gateway import READ, SEGMENT_BYTES, goal_of, show
from measuring import judge
from one_broker import arguments, one_broker

from tiered_storage.clock import wall_clock
from tiered_storage.kafka_wire.cluster import ClusterClient
from tiered_storage.kafka_wire.fetch import FetchBuffer, FetchedPartition, FetchLimits, FetchPosition
from tiered_storage.remote_log.context import store_options
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.read.blocking_reader import BlockingLogReader
from tiered_storage.settings.settings import load_settings
from tiered_storage_airflow.demo_cluster.brokers import free_first_port, free_ports
from tiered_storage_airflow.demo_cluster.s3_server import ACCESS_KEY, BUCKET, REGION, SECRET_KEY, S3Server

if TYPE_CHECKING:
    from support.live_sites import LiveSite

GOAL_OF_TWO = 2.0
GOAL_OF_READER = 0.8
BUFFER_BYTES = 64 << 20
PARTITION_BYTES = 8 << 20
_BATCH_HEADER = struct.Struct(">qi11xi")
"""Base offset, length of what follows it, and last offset delta, of format v2."""
_BEFORE_LENGTH_ENDS = 12


def fetch_raw(servers: str, ends: dict[int, int]) -> int:
    """Fetch whole partitions of READ from offset 0 to `ends` (exclusive); return how many bytes came."""
    at, size, buffer = dict.fromkeys(ends, 0), 0, FetchBuffer(BUFFER_BYTES)
    with ClusterClient.by_properties({"bootstrap.servers": servers}) as client:
        while asked := [
            FetchPosition(READ, number, offset, max_bytes=PARTITION_BYTES)
            for number, offset in at.items()
            if offset < ends[number]
        ]:
            for found in client.fetch(asked, buffer, FetchLimits()).partitions:
                at[found.partition], whole = _end_of(found, at[found.partition])
                size += whole
    return size


def _end_of(found: FetchedPartition, offset: int) -> tuple[int, int]:
    """Return the offset after the last whole batch, and the bytes of all whole ones."""
    if found.error_code:
        raise SystemExit(f"{READ}-{found.partition}: error {found.error_code} at offset {offset}")
    place, records = 0, found.records
    while place + _BATCH_HEADER.size <= len(records):
        base, length, delta = _BATCH_HEADER.unpack_from(records, place)
        if place + _BEFORE_LENGTH_ENDS + length > len(records):
            break
        offset, place = base + delta + 1, place + _BEFORE_LENGTH_ENDS + length
    return offset, place


def rate_of(pool: ProcessPoolExecutor, servers: Sequence[str], shares: Sequence[dict[int, int]]) -> float:
    """Fetch each share of the partitions from its servers by a process, all at once; return bytes a second of all."""
    begun = time.perf_counter()
    size = sum(pool.map(fetch_raw, servers, shares))
    return size / (time.perf_counter() - begun)


def reader_rate(config: Path, ends: dict[int, int]) -> float:
    """Read the same by our reader, without the gateway; return bytes a second."""
    settings, size = load_settings(config), 0
    with (
        RemoteLogManager.open(settings, wall_clock, store_options(settings)) as remote_log,
        BlockingLogReader(remote_log.open_log_reader()) as reader,
    ):
        begun = time.perf_counter()
        for partition in remote_log.context.segments.list_partitions():
            for found in reader.batches(partition, 0, end_offset=ends[partition.partition]):
                size += len(found.content)
    return size / (time.perf_counter() - begun)


@contextmanager
def s3_site(site: LiveSite, root: Path) -> Iterator[LiveSite]:
    """Run an S3 server, and yield a remote log of the same topic in it."""
    os.environ |= {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}
    with S3Server(root / "buckets", free_ports(1)[0]) as s3:
        store = {
            "rsm.config.url": f"s3://{BUCKET}/remote",
            "rsm.config.endpoint": s3.url,
            "rsm.config.region": REGION,
            "rsm.config.allow.http": True,
            "gateway.port": free_first_port([1]),
        }
        (root / "s3").mkdir()
        yield replace(site, root=root / "s3", settings={**site.settings, **store})


def main() -> int:
    """Measure; return 1 if a goal was missed."""
    parser = arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--megabytes", type=int, default=1000, help="of records to read")
    given = parser.parse_args()
    rates: dict[str, list[float]] = {"direct": [], "two": [], "s3": [], "reader": []}
    with ExitStack() as running:
        root, kafka = running.enter_context(one_broker(given.directory, "gateway-raw-"))
        from support.gateways import copied_and_trimmed, running_gateway  # noqa: PLC0415
        from support.live_sites import LiveSite, remote_ends  # noqa: PLC0415 - the path to it is made by one_broker

        site = LiveSite(kafka, root, (READ,), {"gateway.port": free_first_port([1])})
        # Another gateway of the same remote log.
        (root / "second").mkdir()
        shared = {"state.directory": str(root / "state"), "gateway.port": free_first_port([1])}
        second = replace(site, root=root / "second", settings=shared)
        on_s3 = running.enter_context(s3_site(site, root))
        kafka.client.create_topic(READ, PARTITIONS, {"segment.bytes": str(SEGMENT_BYTES)})
        produce(kafka.bootstrap_servers, given.megabytes << 20, READ)
        for each in (site, on_s3):
            while each.copied("--topics", READ):
                pass
        ends = remote_ends(on_s3, READ)
        halves = [{number: ends[number] for number in ends if number % 2 == half} for half in range(2)]
        pool = running.enter_context(ProcessPoolExecutor(2, get_context("spawn")))
        # The processes start, and the broker compiles what it runs often.
        list(pool.map(fetch_raw, [kafka.bootstrap_servers] * 2, halves))
        for _ in range(given.rounds):
            rates["direct"].append(rate_of(pool, [kafka.bootstrap_servers], [ends]))
        for number in range(PARTITIONS):
            copied_and_trimmed(site, READ, number)
        with ExitStack() as both:
            two = [
                both.enter_context(running_gateway(each.config, each.settings["gateway.port"])).bootstrap_servers
                for each in (site, second)
            ]
            for _ in range(given.rounds):
                rates["two"].append(rate_of(pool, two, halves))
        with running_gateway(on_s3.config, on_s3.settings["gateway.port"]) as gateway:
            for _ in range(given.rounds):
                rates["s3"].append(rate_of(pool, [gateway.bootstrap_servers], [ends]))
                rates["reader"].append(pool.submit(reader_rate, on_s3.config, ends).result())
    show(rates)
    return judge(
        [
            goal_of(
                "raw client, two processes, remote", rates["two"], rates["direct"], GOAL_OF_TWO, "one direct local"
            ),
            goal_of("raw client, remote from S3", rates["s3"], rates["reader"], GOAL_OF_READER, "our reader"),
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
