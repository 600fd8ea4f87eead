"""Uploads an object to an S3 server, against obstore's plain put of the same bytes.

Ours computes CRC-32C, sends each part with its SHA-256 and looks at the size afterwards; the peer sends the parts. The
server is a process of its own on this machine, so both share its cost.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import obstore
from measuring import STATE, Goal, Timings, judge, print_comparison, print_machine
from obstore.store import S3Store

from tiered_storage.remote_log.storage.clients.object_store import MAX_CONCURRENT_PARTS, PART_BYTES, ObjectStore
from tiered_storage.remote_log.storage.clients.options import ObjectStoreOptions
from tiered_storage_airflow.embedded.environment import PROJECT_ROOT

GOAL = 0.8
MIB = 1 << 20
SERVER = """
import sys, time
from pathlib import Path
from support.object_stores import localbucket_server

with localbucket_server(Path(sys.argv[1])) as endpoint:
    print(endpoint.url, endpoint.bucket, flush=True)
    sys.stdin.read()
"""


@contextmanager
def server(folder: Path) -> Iterator[tuple[str, str]]:
    """Serve a bucket in `folder`; yield URL and bucket."""
    command = [sys.executable, "-c", SERVER, str(folder)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=PROJECT_ROOT / "tests"
    ) as process:
        assert process.stdout is not None
        url, bucket = process.stdout.readline().split()
        try:
            yield url, bucket
        finally:
            process.terminate()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=128, help="MiB of the object (%(default)s)")
    parser.add_argument("--rounds", type=int, default=9, help="how often each way goes (%(default)s)")
    arguments = parser.parse_args()
    size = arguments.size * MIB
    piece = bytes(range(256)) * (MIB // 256)
    STATE.mkdir(parents=True, exist_ok=True)
    print_machine(STATE)
    with tempfile.TemporaryDirectory(dir=STATE, prefix="upload-") as folder, server(Path(folder)) as (url, bucket):
        reached = ObjectStoreOptions(url, "us-east-1", "key", "secret", allow_http=True)
        ours = ObjectStore(f"s3://{bucket}/ours", reached)
        plain = S3Store(
            bucket,
            endpoint=url,
            region="us-east-1",
            access_key_id="key",
            secret_access_key="secret",  # noqa: S106 -- of a server that checks none
            client_options={"allow_http": True},
        )
        content = piece * arguments.size
        ways: dict[str, Callable[[], object]] = {
            "ours": lambda: ours.put("object", size, (memoryview(piece) for _ in range(arguments.size))),
            "obstore": lambda: obstore.put(
                plain, "object", content, chunk_size=PART_BYTES, max_concurrency=MAX_CONCURRENT_PARTS
            ),
        }
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(arguments.rounds + 1):
            for name, way in ways.items():
                begun = time.perf_counter()
                way()
                if number:  # the first round warms everything up
                    seconds[name].append(time.perf_counter() - begun)
    mine, peer = (Timings(name, size, taken) for name, taken in seconds.items())
    print(f"{arguments.size} MiB, {arguments.rounds} rounds")
    print_comparison([mine], peer)
    ratio = mine.median / peer.median
    return judge([Goal("upload to S3", f"{mine.median:.2f} GB/s", f"{peer.median:.2f} obstore", ratio, GOAL)])


if __name__ == "__main__":
    sys.exit(main())
