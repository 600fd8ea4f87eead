"""Copies and ranged reads of encrypted and compressed segments, against plain ones and the bare cipher and codec.

The peer of a copy is the slower of two: the same copy without encoding, and the cipher or codec alone, in one thread,
on the same bytes in chunks of 1 MiB. The values of the records compress to about half.

The ranged read that counts is what a user gets: a reader without a cache reads each chunk of a segment, in random
order, and checks it. The storage manager's bare fetch of one chunk, unchecked and from a local directory, is not
judged. It is about half as fast encrypted as plain, and cannot reach more: reading a MiB from the page cache takes
0.09 ms, decrypting it 0.07 to 0.09 ms more. The rest is no longer there to save: key and chunk table are kept after
the first read, and a fetch is one request (test_encoded_segments.py counts it). From a store over HTTP, the request
takes far longer than the cipher.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from bench_copy import Contest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from measuring import STATE, Goal, Timings, judge, print_machine
from sample_site import FIRST_TIMESTAMP, SampleLog, SampleSite

from tiered_storage.kafka_log.records.record import Record
from tiered_storage.remote_log.copy.start import BegunCopy
from tiered_storage.remote_log.indexes.remote_log_index import RemoteLogIndexEntry, iterate_entries
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata
from tiered_storage.remote_log.read.blocking_reader import BlockingLogReader
from tiered_storage.remote_log.read.log_reader import RemoteLogReader
from tiered_storage.remote_log.storage.remote_storage_manager import IndexKind
from tiered_storage.remote_log.storage.transforms.zstd import compress

SAMPLE = SampleLog(partitions=2, segments=2, segment_bytes=64 << 20, batch_records=15)
ENCRYPTED = {"remote.encryption.enabled": True}
COMPRESSED = {"remote.compression.enabled": True}
CHUNK = 1 << 20
COPY_ENCRYPTED, COPY_COMPRESSED, RANGED = 0.7, 0.8, 0.7


def records() -> Iterator[Record]:
    """Yield records of 1 KiB that zstd makes about half as large."""
    chance = random.Random(1)  # noqa: S311 - content, no secret
    number = 0
    while True:
        value = b'{"order":%012d,"trace":"%s"}' % (number, chance.randbytes(490).hex().encode())
        yield Record(0, FIRST_TIMESTAMP + number, b"key-%012d" % number, value)
        number += 1


def alone(site: SampleSite, encode: Callable[[bytes], object], rounds: int) -> Timings:
    """Return the timings of `encode` alone over all chunks of the site's closed segments."""
    content = [(site.logs / path).read_bytes() for path in site.closed_segments()]
    chunks = [each[start : start + CHUNK] for each in content for start in range(0, len(each), CHUNK)]
    seconds = []
    for _ in range(rounds):
        begun = time.perf_counter()
        for chunk in chunks:
            encode(chunk)
        seconds.append(time.perf_counter() - begun)
    return Timings(encode.__name__, sum(map(len, content)), seconds)


def encrypt(chunk: bytes) -> bytes:
    """Encrypt a chunk, as the chain does."""
    return _CIPHER.encrypt(b"\0" * 12, chunk, b"bound to")


_CIPHER = AESGCM(bytes(32))


def sites(root: Path) -> dict[str, SampleSite]:
    """Write one log directory, and a remote log on it for each way to store segments."""
    plain = SampleSite(root / "plain")
    plain.write(SAMPLE, records())
    ring = root / "key-ring.yaml"
    (root / "key").write_bytes(os.urandom(32))
    ring.write_text('keys: {"one": {key.file: key}}\n')
    keys = {"rsm.config.encryption.key.ring.file": str(ring), "rsm.config.encryption.key.pair.id": "one"}
    found = {"plain": plain}
    for name, properties in {"encrypted": ENCRYPTED, "compressed": COMPRESSED}.items():
        site = found[name] = SampleSite(root / name)
        site.root.mkdir()
        site.logs.symlink_to(plain.logs)
        site.configure(properties, keys)
    return found


def copies(found: dict[str, SampleSite], opened: dict[str, RemoteLogManager], rounds: int) -> dict[str, Timings]:
    """Return the timings of a copy of all segments each way, in turns."""
    contests = {name: Contest(found[name], opened[name]) for name in found}
    seconds: dict[str, list[float]] = {name: [] for name in found}
    for contest in contests.values():
        contest.one_worker()
    for number in range(rounds):
        for name in sorted(found, reverse=bool(number % 2)):
            seconds[name].append(contests[name].one_worker())
    return {name: Timings(name, contests[name].size, each) for name, each in seconds.items()}


def reads(opened: dict[str, RemoteLogManager], rounds: int) -> dict[str, Timings]:
    """Return the timings of a read of each chunk of a segment by a reader, in random order, each way in turns."""
    seconds: dict[str, list[float]] = {name: [] for name in opened}
    with ExitStack() as readers:
        ways = {name: _Ranges.of(remote_log, readers) for name, remote_log in opened.items()}
        for ranges in ways.values():
            ranges.read()
        for number in range(rounds):
            for name in sorted(ways, reverse=bool(number % 2)):
                begun = time.perf_counter()
                ways[name].read()
                seconds[name].append(time.perf_counter() - begun)
    return {name: Timings(name, ways[name].segment.size, each) for name, each in seconds.items()}


@dataclass(frozen=True, slots=True)
class _Ranges:
    """The chunks of a remote segment in random order, and a reader that caches nothing."""

    reader: BlockingLogReader
    segment: RemoteLogSegmentMetadata
    entries: list[RemoteLogIndexEntry]

    @classmethod
    def of(cls, remote_log: RemoteLogManager, readers: ExitStack) -> Self:
        segment = _copied(remote_log)
        entries = list(iterate_entries(remote_log.storage.fetch_index(segment, IndexKind.REMOTE_LOG_INDEX), "index"))
        random.Random(2).shuffle(entries)  # noqa: S311 - an order, no secret
        of_remote = {"log_dirs": (), "remote_log_reader_cache_memory_bytes": 0}
        settings = remote_log.settings.model_copy(update=of_remote)
        inner = RemoteLogReader(replace(remote_log, settings=settings))
        return cls(readers.enter_context(BlockingLogReader(inner)), segment, entries)

    def read(self) -> None:
        """Read each chunk once."""
        size = 0
        for entry in self.entries:
            partition, end = self.segment.topic_id_partition, entry.last_offset + 1
            size += sum(
                len(each.content) for each in self.reader.batches(partition, entry.first_offset, end_offset=end)
            )
        if size != self.segment.size:
            raise SystemExit(f"{size} bytes came of {self.segment.size}: nothing was measured")


def _copied(remote_log: RemoteLogManager) -> RemoteLogSegmentMetadata:
    begun: BegunCopy = remote_log.begin_copy(remote_log.plan_copy(), "benchmark")
    job = remote_log.write_copy_job("runs/read", begun)
    for number in range(job.groups):
        job.run_group(number, remote_log.storage, job.read(remote_log.work, "runs/read")[1].sizes, remote_log.clock)
    return remote_log.commit_copy(list(job.outcomes())).committed[0]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", type=Path, default=STATE, help="where source and copies go (2 GB; %(default)s)")
    parser.add_argument("--rounds", type=int, default=7, help="how often each way does all (%(default)s)")
    arguments = parser.parse_args()
    directory = arguments.directory.resolve()
    directory.mkdir(parents=True, exist_ok=True)
    print_machine(directory)
    with tempfile.TemporaryDirectory(dir=directory, prefix="encoding-") as root:
        found = sites(Path(root))
        cipher = alone(found["plain"], encrypt, arguments.rounds)
        codec = alone(found["plain"], compress, arguments.rounds)
        opened = {name: site.open() for name, site in found.items()}
        try:
            copied = copies(found, opened, arguments.rounds)
            read = reads({name: opened[name] for name in ("plain", "encrypted")}, arguments.rounds)
        finally:
            for remote_log in opened.values():
                remote_log.close()
    print_machine(directory)
    return judge(
        [
            _goal("copy, encrypted", copied["encrypted"], [copied["plain"], cipher], COPY_ENCRYPTED),
            _goal("copy, compressed by zstd", copied["compressed"], [copied["plain"], codec], COPY_COMPRESSED),
            _goal("ranged read, encrypted", read["encrypted"], [read["plain"]], RANGED),
        ]
    )


def _goal(what: str, ours: Timings, peers: list[Timings], goal: float) -> Goal:
    peer = min(peers, key=lambda each: each.median)
    name = f"{peer.median:.2f} {peer.name}{' alone' if peer.name in {'encrypt', 'compress'} else ''}"
    return Goal(what, f"{ours.median:.2f} GB/s", name, ours.median / peer.median, goal)


if __name__ == "__main__":
    sys.exit(main())
