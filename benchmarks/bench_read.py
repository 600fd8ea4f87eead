"""Reads a topic through the remote tier: catch-up from a local store and from an S3 server, look-ups, first bytes.

A catch-up reads everything, every batch's checksum compared, into nothing. Each one is a process of its own, so that
its largest memory (VmHWM) is its own. Peers: of the local store, reading the same files with CRC-32C; of the S3 server,
obstore reading the same objects in ranges of the same size on 8 threads, with nothing checked; of the first batches,
one read of a megabyte with CRC-32C from the same file; of a look-up, a bisection of as many numbers; of the largest
memory, what the same process had after its first batches, and what a reader may take: its libraries, and the room that
the settings give it for chunks, for those read ahead, and for indexes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple

import obstore
import yaml
from measuring import STATE, Goal, checked_read, judge, print_machine
from obstore.store import S3Store
from sample_site import SampleLog, SampleSite

from tiered_storage.clock import wall_clock
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.kafka_log.kernels.checksum import crc32c
from tiered_storage.remote_log.context import store_options
from tiered_storage.remote_log.copy.job import run_copy_groups
from tiered_storage.remote_log.coverage import Coverage
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.model import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    SegmentState,
    TopicIdPartition,
)
from tiered_storage.remote_log.read.partition_snapshot import PartitionSnapshot
from tiered_storage.settings.settings import Settings, load_settings

CATCH_UP_GOAL = 0.25
OBSTORE_GOAL = 0.8
MEMORY_GOAL = 1.7
ALLOWED_MEMORY_GOAL = 1.6
LOOK_UP_GOAL = 2.3
FIRST_BATCHES_GOAL = 5.1
SEGMENTS = 100_000
FIRST_READS = 300
CHUNK = 1 << 20
THREADS = 8
BUCKET, KEY = "bench", "bench"


class Memory(NamedTuple):
    """The memory of a process that catches up, in MiB: at most, after its first batches, and what it may take."""

    most: int
    first: int
    allowed: int


def opened(config: Path) -> RemoteLogManager:
    """Open the remote log of a settings file; use it in a `with`."""
    settings = load_settings(config, environ={})
    return RemoteLogManager.open(settings, wall_clock, store_options(settings), create=True)


def memory_of(name: str) -> int:
    """Return the memory of this process that /proc has under `name`, in MiB."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith(name)) >> 10


async def catch_up(remote_log: RemoteLogManager) -> tuple[int, float, int]:
    """Read every partition from its start to its end; return the bytes, the seconds, and the MiB at its beginning."""
    size = 0
    with remote_log.open_log_reader() as reader:
        partitions = remote_log.context.segments.list_partitions()
        async for fetched in reader.batches(partitions[0], 0, end_offset=1):
            size -= len(fetched.content)  # what is compiled or opened at first use is no part of a catch-up
            size += len(fetched.content)
        memory = memory_of("VmRSS")
        begun = time.perf_counter()
        for partition in partitions:
            async for fetched in reader.batches(partition, 0):
                size += len(fetched.content)
        return size, time.perf_counter() - begun, memory


def measure_catch_up(config: Path) -> None:
    """Be the process that catches up: print bytes, seconds, and its Memory."""
    libraries = memory_of("VmRSS")
    with opened(config) as remote_log:
        size, seconds, first = asyncio.run(catch_up(remote_log))
        room = room_of(remote_log.context.settings) >> 20
    print(json.dumps({"size": size, "seconds": seconds, "memory": Memory(memory_of("VmHWM"), first, libraries + room)}))


def room_of(settings: Settings) -> int:
    """Return the bytes that a reader may hold by `settings`: cached chunks, as many read ahead, and indexes."""
    cached = settings.remote_log_reader_cache_memory_bytes
    ahead = max(settings.remote_log_reader_read_ahead_bytes, cached)
    return cached + ahead + settings.remote_log_index_file_cache_total_size_bytes


def run_catch_up(config: Path, rounds: int) -> tuple[list[float], Memory]:
    """Return GB/s of each round, and the memory of the one with the largest."""
    rates, most = [], Memory(0, 0, 0)
    for _ in range(rounds):
        command = [sys.executable, __file__, "--catch-up", str(config)]
        report = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
        rates.append(report["size"] / report["seconds"] / 1e9)
        most = max(most, Memory(*report["memory"]))
    return rates, most


def run_checked_read(directory: Path, rounds: int) -> list[float]:
    """Return GB/s of each round of reading the segments below `directory` with CRC-32C."""
    objects = sorted(directory.rglob("*.log"))
    return [size / seconds / 1e9 for size, seconds in (checked_read(objects) for _ in range(rounds))]


def copy_all(site: SampleSite) -> None:
    """Copy every closed segment into the site's store, and let the local log go."""
    with site.open() as remote_log:
        begun = remote_log.begin_copy(remote_log.plan_copy(), "bench")
        job = remote_log.write_copy_job("runs/bench", begun)
        for group in range(job.groups):
            run_copy_groups(remote_log.context.access(job.files), [group])
        if not remote_log.commit_copy(job.outcomes()).is_whole:
            raise SystemExit("nothing was measured: the copy failed")


def settings_of(root: Path, state: Path, **properties: object) -> Path:
    """Write settings of a remote log without local logs whose state is in `state`."""
    path = root / f"read-{len(list(root.glob('read-*')))}.yaml"
    named = {name.replace("_", "."): value for name, value in properties.items()}
    path.write_text(yaml.safe_dump({"state.directory": str(state), **named}))
    return path


SERVER = """
import sys
from http.server import ThreadingHTTPServer
from pathlib import Path
from localbucket import S3Handler
handler = type("Handler", (S3Handler,), {"data_root": Path(sys.argv[1]), "disable_nagle_algorithm": True})
server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
print(server.server_address[1], flush=True)
server.serve_forever()
"""


@contextmanager
def s3_server(buckets: Path) -> Iterator[str]:
    """Serve the folders of `buckets` as buckets, in a process of its own; give its URL."""
    command = [sys.executable, "-c", SERVER, str(buckets)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        assert server.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(server.stdout.readline())}"
        finally:
            server.terminate()


def peer_rate(url: str, prefix: str, objects: list[tuple[str, int]]) -> float:
    """Return GB/s of obstore's ranged reads on THREADS threads."""
    store = S3Store(
        BUCKET, endpoint=url, region="us-east-1", access_key_id=KEY, secret_access_key=KEY,
        client_options={"allow_http": True},
    )  # fmt: skip
    ranges = [
        (f"{prefix}/{name}", start, min(CHUNK, size - start))
        for name, size in objects
        for start in range(0, size, CHUNK)
    ]
    with ThreadPoolExecutor(THREADS) as threads:
        begun = time.perf_counter()
        read = sum(
            threads.map(lambda each: len(obstore.get_range(store, each[0], start=each[1], length=each[2])), ranges)
        )
        return read / (time.perf_counter() - begun) / 1e9


def first_bytes(config: Path) -> list[float]:
    """Return the ms from each request for an offset to its batches, each time at another place."""

    async def ask() -> list[float]:
        taken = []
        with opened(config) as remote_log:
            partition = remote_log.context.segments.list_partitions()[0]
            segments = list(remote_log.context.segments.list_remote_log_segments(partition))
            end = segments[-1].end_offset
            for number in range(FIRST_READS + 5):
                with remote_log.open_log_reader() as reader:
                    await reader.snapshot(partition)
                    begun = time.perf_counter()
                    batches = reader.batches(partition, number * 7919 % end)
                    await anext(batches)
                    taken.append((time.perf_counter() - begun) * 1e3)
                    await batches.aclose()
        return taken[5:]

    return asyncio.run(ask())


def plain_first_reads(objects: list[Path]) -> list[float]:
    """Return the ms of opening a file and reading CHUNK bytes of it with CRC-32C, each time of another place."""
    taken = []
    for number in range(FIRST_READS):
        begun = time.perf_counter()
        with objects[number % len(objects)].open("rb", buffering=0) as file:
            file.seek(number * 7919 * 1024 % (64 << 20))
            crc32c(file.read(CHUNK))
        taken.append((time.perf_counter() - begun) * 1e3)
    return taken


def look_up_times() -> tuple[list[float], list[float]]:
    """Return the microseconds of look-ups among SEGMENTS segments, and of bisections of as many numbers."""
    partition = TopicIdPartition("bench", "A" * 22, 0, "bench")
    epochs = (EpochEntry(0, 0),)
    segments = [_segment(partition, number, epochs) for number in range(SEGMENTS)]
    snapshot = PartitionSnapshot(partition, None, Coverage.of(segments, epochs), 0, epochs)
    starts = [segment.start_offset for segment in segments]

    def by_view(offset: int) -> int:
        return snapshot.existing_remote_range(offset).start_offset

    def by_bisection(offset: int) -> int:
        return starts[bisect_right(starts, offset) - 1]

    return _look_up(by_view), _look_up(by_bisection)


def _look_up(find: Callable[[int], int]) -> list[float]:
    taken = []
    for number in range(20_000):
        offset = number * 104_729 % (SEGMENTS * 1000)
        begun = time.perf_counter()
        found = find(offset)
        taken.append((time.perf_counter() - begun) * 1e6)
        assert found <= offset < found + 1000
    return taken


def _segment(partition: TopicIdPartition, number: int, epochs: tuple[EpochEntry, ...]) -> RemoteLogSegmentMetadata:
    return RemoteLogSegmentMetadata(
        segment_id=RemoteLogSegmentId(partition, f"{number:022}"),
        start_offset=number * 1000,
        end_offset=number * 1000 + 999,
        max_timestamp=1,
        event_timestamp=1,
        size=CHUNK,
        leader_epochs=epochs,
        state=SegmentState.COPY_SEGMENT_FINISHED,
    )


def percentile(values: list[float], share: float) -> float:
    """Return the value below which `share` of them lie."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", type=Path, default=STATE, help="where log and stores are (7 GB; %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="how often each way reads all (%(default)s)")
    parser.add_argument("--mebibytes", type=int, default=2048, help="how much a catch-up reads (%(default)s)")
    parser.add_argument("--catch-up", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.catch_up:
        measure_catch_up(arguments.catch_up)
        return 0
    directory = arguments.directory.resolve()
    directory.mkdir(parents=True, exist_ok=True)
    print_machine(directory)
    with tempfile.TemporaryDirectory(dir=directory, prefix="read-") as folder:
        return contest(Path(folder), arguments.rounds, arguments.mebibytes)


def contest(root: Path, rounds: int, mebibytes: int) -> int:
    """Run all of it; return the exit code."""
    site = SampleSite(root / "site")
    site.root.mkdir()
    site.write(SampleLog(partitions=1, segments=max(1, mebibytes // 256), segment_bytes=256 << 20, batch_records=16))
    copy_all(site)
    local = settings_of(root, site.root / "state")
    objects = sorted(site.store.rglob("*.log"))
    checked = run_checked_read(site.store, rounds)
    rates, local_memory = run_catch_up(local, rounds)
    print(f"catch-up of {mebibytes} MiB from a local store: {show(rates)}, at most {local_memory.most} MiB of memory")
    over_s3, s3_memory = contest_with_obstore(root, site, rounds)
    memory = max(local_memory, s3_memory)
    firsts, plain_firsts = first_bytes(local), plain_first_reads(objects)
    looked_up, bisected = look_up_times()
    print(f"first batches of an offset: {show_times(firsts, 'ms')}")
    print(f"an offset among {SEGMENTS:,} segments: {show_times(looked_up, 'us')}")
    print_machine(root)
    return judge(
        [
            Goal(
                "catch-up from a local store",
                f"{median(rates):.2f} GB/s",
                f"{median(checked):.2f} read with CRC-32C",
                median(rates) / median(checked),
                CATCH_UP_GOAL,
            ),
            over_s3,
            Goal(
                "catch-up, memory",
                f"{memory.most} MiB",
                f"{memory.first} MiB after its first batches",
                memory.most / memory.first,
                MEMORY_GOAL,
                is_most=True,
            ),
            Goal(
                "catch-up, memory allowed",
                f"{memory.most} MiB",
                f"{memory.allowed} MiB by libraries and settings",
                memory.most / memory.allowed,
                ALLOWED_MEMORY_GOAL,
                is_most=True,
            ),
            Goal(
                "first batches of an offset, p99",
                f"{percentile(firsts, 0.99):.2f} ms",
                f"{percentile(plain_firsts, 0.99):.2f} ms read of 1 MiB",
                percentile(firsts, 0.99) / percentile(plain_firsts, 0.99),
                FIRST_BATCHES_GOAL,
                is_most=True,
            ),
            Goal(
                f"look-up among {SEGMENTS:,} segments",
                f"{median(looked_up):.2f} us",
                f"{median(bisected):.2f} us bisection",
                median(looked_up) / median(bisected),
                LOOK_UP_GOAL,
                is_most=True,
            ),
        ]
    )


def contest_with_obstore(root: Path, site: SampleSite, rounds: int) -> tuple[Goal, Memory]:
    """Catch up from an S3 server beside obstore's own ranged reads; return the memory as run_catch_up does too."""
    buckets = root / "buckets"
    (buckets / BUCKET).mkdir(parents=True)
    moved = site.store.rename(buckets / BUCKET / "remote")
    objects = [(str(path.relative_to(moved)), path.stat().st_size) for path in sorted(moved.rglob("*.log"))]
    ours: list[float] = []
    theirs: list[float] = []
    memory = Memory(0, 0, 0)
    with s3_server(buckets) as url:
        os.environ |= {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": KEY}
        settings = settings_of(
            root, site.root / "state", rsm_config_url=f"s3://{BUCKET}/remote", rsm_config_endpoint=url,
            rsm_config_allow_http=True, rsm_config_region="us-east-1",
        )  # fmt: skip
        peer_rate(url, "remote", objects[:1])  # the first requests that the server gets are slow
        for _ in range(rounds):
            theirs.append(peer_rate(url, "remote", objects))
            rates, used = run_catch_up(settings, 1)
            ours, memory = ours + rates, max(memory, used)
    moved.rename(site.store)
    print(f"from an S3 server: {show(ours)}, at most {memory.most} MiB of memory")
    print(f"  obstore on {THREADS} threads: {show(theirs)}")
    ratio = median(ours) / median(theirs)
    rate, their_rate = f"{median(ours):.2f} GB/s", f"{median(theirs):.2f} obstore, {THREADS} threads"
    return Goal("catch-up from an S3 server", rate, their_rate, ratio, OBSTORE_GOAL), memory


def show_times(times: list[float], unit: str) -> str:
    """Return the median and the 99th of 100."""
    return f"median {median(times):.2f} {unit}, p99 {percentile(times, 0.99):.2f} {unit}"


def show(rates: list[float]) -> str:
    """Return the best and the median of them."""
    return f"{max(rates):.2f} GB/s at best, median {median(rates):.2f}"


if __name__ == "__main__":
    sys.exit(main())
