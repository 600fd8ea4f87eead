"""Measure the read service against what its own server does with plain files, and under 200 clients at once.

One uvicorn with one worker serves both, with Airflow's logins, in a process of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import quantiles
from urllib.parse import urlsplit

import httpx
import yaml
from measuring import STATE, Goal, Timings, judge, print_comparison, print_machine
from sample_site import SampleLog, SampleSite

from tiered_storage.remote_log.copy.copier import CopySizes

SEGMENT_BYTES = 256 << 20
SAMPLE = SampleLog(1, 1, SEGMENT_BYTES, 95)
PARTITION = "/v1/topics/benchmark/partitions/0"
ROUNDS = 5
CLIENTS = 200
BYTES_OF_A_CLIENT = 32 << 20
METADATA_CALLS = 300
LEAST_OF_A_PLAIN_FILE = 0.8
MOST_TIMES_IDLE = 6.1
SERVER = Path(__file__).with_name("read_service_server.py")


@dataclass(frozen=True, slots=True)
class Server:
    """Where it answers, and the header that logs in."""

    url: str
    headers: dict[str, str]


def main() -> int:
    """Measure; return 1 where a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--directory", type=Path, default=STATE, help="where to work")
    directory = parser.parse_args().directory
    directory.mkdir(parents=True, exist_ok=True)
    print_machine(directory)
    root = Path(tempfile.mkdtemp(prefix="read-service-", dir=directory))
    try:
        segment_id, data = lay_out(root)
        with served(root) as server:
            stream = measure_stream(server, segment_id, data)
            return judge([stream, *asyncio.run(measure_clients(server))])
    finally:
        shutil.rmtree(root, ignore_errors=True)


def lay_out(root: Path) -> tuple[str, Path]:
    """Write and copy a segment; return its id and its object."""
    site = SampleSite(root)
    site.write(SAMPLE)
    (root / "rights.yaml").write_text(yaml.safe_dump({"users": {"bench": {"read": ["*"]}}}))
    with (root / "tiered_storage.yaml").open("a") as settings:
        settings.write(yaml.safe_dump({"read.service.rights.file": str(root / "rights.yaml")}))
    with site.open() as remote_log:
        job = site.begin_copy(remote_log)
        sizes = CopySizes(8 << 20, 4096, 1 << 20)
        for number in range(job.groups):
            job.run_group(number, remote_log.context.storage, sizes, remote_log.context.clock)
        assert remote_log.commit_copy(job.outcomes()).is_whole
    [data] = site.store.rglob("*.log")
    return data.stem.partition("-")[2], data


@contextmanager
def served(root: Path) -> Iterator[Server]:
    """Run the server; it says its address and a token in one line."""
    home = root / "airflow"
    home.mkdir()
    environment = {**os.environ, "AIRFLOW_HOME": str(home), "TIERED_STORAGE_CONFIG": str(root / "tiered_storage.yaml")}
    log = (root / "server.log").open("w")
    process = subprocess.Popen(
        [sys.executable, str(SERVER), str(root / "state")],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
    )
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("ready "):
                _, url, token = line.split()
                break
        else:
            raise RuntimeError((root / "server.log").read_text()[-2000:])
        yield Server(url, {"Authorization": f"Bearer {token}"})
    finally:
        process.terminate()
        process.wait()
        log.close()


def measure_stream(server: Server, segment_id: str, data: Path) -> Goal:
    """Read a whole segment, and the same file as the server gives any file."""
    plain = f"{server.url}/v1/plain/{data.name}"
    ours = f"{server.url}{PARTITION}/segments/{segment_id}/data"
    batches = f"{server.url}{PARTITION}/records?format=batches&max_bytes={1 << 30}&offset=0"
    seconds: dict[str, list[float]] = {plain: [], ours: [], batches: []}
    with httpx.Client(headers=server.headers, timeout=120, trust_env=False) as client:
        for address in seconds:
            _read(client, address)
        for _ in range(ROUNDS):
            for address, taken in seconds.items():
                taken.append(_read(client, address))
    size = data.stat().st_size
    peer = Timings("a plain file of the same server", size, seconds[plain])
    segment = Timings("a segment's bytes", size, seconds[ours])
    print_comparison([segment, Timings("records as Kafka's batches", size, seconds[batches])], peer)
    ratio = segment.median / peer.median
    ours, theirs = f"{segment.median:.2f} GB/s", f"{peer.median:.2f} a plain file"
    return Goal("read service, a segment's bytes", ours, theirs, ratio, LEAST_OF_A_PLAIN_FILE)


def _read(client: httpx.Client, address: str) -> float:
    begun = time.perf_counter()
    with client.stream("GET", address) as answer:
        assert answer.status_code == 200, answer.read()
        for _ in answer.iter_raw(1 << 20):
            pass
    return time.perf_counter() - begun


async def measure_clients(server: Server) -> list[Goal]:
    """Ask for metadata idle, and while CLIENTS, in a process of their own, read records all at once."""
    async with httpx.AsyncClient(headers=server.headers, timeout=300, trust_env=False) as client:
        idle = await _metadata(client, server.url)
        with ProcessPoolExecutor(1, get_context("spawn")) as process:
            process.submit(_warm).result()
            reading = process.submit(_read_at_once, server)
            await asyncio.sleep(0.5)
            busy = await _metadata(client, server.url)
            is_over = reading.done()
            statuses = reading.result()
    answered = statuses.count(b"200")
    before, under = _p99(idle), _p99(busy)
    print(f"  metadata calls, p99: {before * 1000:.1f} ms idle, {under * 1000:.1f} ms while {CLIENTS} clients read")
    if is_over:
        print("  the clients were done before the calls: nothing is proven")
    ours, idle_time = f"{under * 1000:.1f} ms", f"{before * 1000:.1f} ms idle"
    return [
        Goal("read service, clients at once", f"{answered} served", f"{CLIENTS} asked", answered / CLIENTS, 1),
        Goal("read service, metadata under them, p99", ours, idle_time, under / before, MOST_TIMES_IDLE, is_most=True),
    ]


def _warm() -> None:
    """Have this module loaded in the process."""


async def _metadata(client: httpx.AsyncClient, url: str) -> list[float]:
    taken = []
    for _ in range(METADATA_CALLS):
        begun = time.perf_counter()
        answer = await client.get(f"{url}{PARTITION}")
        assert answer.status_code == 200, answer.text
        taken.append(time.perf_counter() - begun)
    return taken


def _read_at_once(server: Server) -> list[bytes]:
    """Read with all clients; return the status of each answer that came whole, as little work as may be."""

    async def read_all() -> list[bytes]:
        return await asyncio.gather(*(_records(server, number) for number in range(CLIENTS)))

    return asyncio.run(read_all())


async def _records(server: Server, number: int) -> bytes:
    url = urlsplit(server.url)
    path = f"{PARTITION}/records?format=batches&max_bytes={BYTES_OF_A_CLIENT}&offset={number * 1000}"
    lines = [f"GET {path} HTTP/1.1", f"Host: {url.netloc}", "Connection: close"]
    lines += [f"{name}: {value}" for name, value in server.headers.items()]
    reader, writer = await asyncio.open_connection(url.hostname, url.port)
    writer.write(("\r\n".join(lines) + "\r\n\r\n").encode())
    status, end = (await reader.readline()).split()[1], b""
    while piece := await reader.read(1 << 20):
        end = (end + piece[-5:])[-5:]
    writer.close()
    return status if end == b"0\r\n\r\n" else b"broken off"


def _p99(seconds: list[float]) -> float:
    return quantiles(seconds, n=100)[98]


if __name__ == "__main__":
    sys.exit(main())
