"""Copies and ranged reads of encrypted and compressed segments, against plain ones and the bare cipher and codec.

The peer of a copy is the slower of two: the same copy without encoding, and the cipher or codec alone, in one thread,
on the same bytes in chunks of 1 MiB. All take turns. Ours also reads the log, checks and indexes its batches, and syncs
the objects. The values of the records compress to about half.

Ranged reads are judged twice, by the chunks of a segment (1 MiB) in random order: the storage manager's bare fetch from
an S3 server, and the read by a reader without a cache, which checks each chunk too.

Two figures are only printed. The goal of ranged reads is judged where segments are kept and by what users run: on S3,
and on a reader.

- The bare fetch from a local directory has no goal. There, decryption costs about as much as the read from the page
  cache: 0.07 to 0.09 ms a MiB, and 0.09 ms. So it cannot be much more than half as fast as a plain fetch. Nothing else
  is left to save: key and chunk table are kept after the first read, and a fetch is one request
  (test_encoded_segments.py counts it). A reader on the same directory is judged.
- The bare fetch from S3 of ranges of 1 MiB that ignore where chunks end. A chunk is decrypted as a whole, so each range
  costs two chunks. Nothing here reads so: readers fetch the chunks that the remote log index names.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Self

from bench_copy import Contest
from bench_upload import server
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
SAMPLE_ON_S3 = SampleLog(partitions=1, segments=1, segment_bytes=32 << 20, batch_records=15)
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


def chunks_of(site: SampleSite) -> list[bytes]:
    """Return all chunks of the site's closed segments."""
    content = [(site.logs / path).read_bytes() for path in site.closed_segments()]
    return [each[start : start + CHUNK] for each in content for start in range(0, len(each), CHUNK)]


def alone(chunks: list[bytes], encode: Callable[[bytes], object]) -> float:
    """Encode all chunks in one thread; return the seconds."""
    begun = time.perf_counter()
    for chunk in chunks:
        encode(chunk)
    return time.perf_counter() - begun


def in_turns(ways: dict[str, Callable[[], float]], size: int, rounds: int) -> dict[str, Timings]:
    """Return the timings of each way, which does `size` bytes and returns its seconds; the first round is dropped."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name in sorted(ways, reverse=bool(number % 2)):
            seconds[name].append(ways[name]())
    return {name: Timings(name, size, each[1:]) for name, each in seconds.items()}


def encrypt(chunk: bytes) -> bytes:
    """Encrypt a chunk, as the chain does."""
    return _CIPHER.encrypt(b"\0" * 12, chunk, b"bound to")


_CIPHER = AESGCM(bytes(32))


def sites(root: Path, sample: SampleLog, store: Mapping[str, object] | None = None) -> dict[str, SampleSite]:
    """Write one log directory, and a remote log on it for each way to store segments.

    Each keeps them in a directory of its own, or in a folder of rsm.config.url in the settings `store`.
    """
    ring = root / "key-ring.yaml"
    (root / "key").write_bytes(os.urandom(32))
    ring.write_text('keys: {"one": {key.file: key}}\n')
    keys = {"rsm.config.encryption.key.ring.file": str(ring), "rsm.config.encryption.key.pair.id": "one"}
    found = {}
    for name, properties in {"plain": {}, "encrypted": ENCRYPTED, "compressed": COMPRESSED}.items():
        site = found[name] = SampleSite(root / name)
        if name == "plain":
            site.write(sample, records())
        else:
            site.root.mkdir()
            site.logs.symlink_to(found["plain"].logs)
        own = {**store, "rsm.config.url": f"{store['rsm.config.url']}/{name}"} if store else {}
        site.configure(properties, {**keys, **own})
    return found


@contextmanager
def opened_all(found: dict[str, SampleSite]) -> Iterator[dict[str, RemoteLogManager]]:
    """Open the remote logs of all sites."""
    with ExitStack() as stack:
        yield {name: stack.enter_context(site.open()) for name, site in found.items()}


def copies(found: dict[str, SampleSite], opened: dict[str, RemoteLogManager], rounds: int) -> dict[str, Timings]:
    """Return the timings of a copy of all segments each way, and of cipher and codec alone."""
    contests = {name: Contest(found[name], opened[name]) for name in found}
    chunks = chunks_of(found["plain"])
    ways: dict[str, Callable[[], float]] = {name: contest.one_worker for name, contest in contests.items()}
    alone_ways = {each.__name__: partial(alone, chunks, each) for each in (encrypt, compress)}
    return in_turns({**ways, **alone_ways}, contests["plain"].size, rounds)


def reads(opened: dict[str, RemoteLogManager], rounds: int) -> tuple[dict[str, Timings], dict[str, Timings]]:
    """Return the timings of a read of all of a segment: chunk by chunk by a reader, and by bare fetches."""
    with ExitStack() as readers:
        copied = {name: _copied(remote_log) for name, remote_log in opened.items()}
        read = {name: _Ranges.of(opened[name], copied[name], readers) for name in opened}
        by_reader = in_turns({name: each.read for name, each in read.items()}, copied["plain"].size, rounds)
    return by_reader, fetches(opened, copied, chunk_ranges(opened["plain"], copied["plain"]), rounds)


def chunk_ranges(remote_log: RemoteLogManager, segment: RemoteLogSegmentMetadata) -> list[tuple[int, int]]:
    """Return the ranges (inclusive) of the chunks of `segment`, in random order."""
    return [(each.position, each.position + each.length - 1) for each in _chunks_of(remote_log, segment)]


def any_ranges(segment: RemoteLogSegmentMetadata) -> list[tuple[int, int]]:
    """Return ranges (inclusive) of CHUNK bytes of `segment` that ignore where chunks end, in random order."""
    ranges = [(start, min(start + CHUNK, segment.size) - 1) for start in range(0, segment.size, CHUNK)]
    random.Random(3).shuffle(ranges)  # noqa: S311 - an order, no secret
    return ranges


def fetches(
    opened: dict[str, RemoteLogManager],
    copied: dict[str, RemoteLogSegmentMetadata],
    ranges: list[tuple[int, int]],
    rounds: int,
) -> dict[str, Timings]:
    """Return the timings of bare fetches of `ranges`, which are all of a segment."""

    def fetch(name: str) -> float:
        segment, storage, size = copied[name], opened[name].context.storage, 0
        begun = time.perf_counter()
        for start, end in ranges:
            size += sum(len(piece) for piece in storage.fetch_log_segment(segment, start, end))
        seconds = time.perf_counter() - begun
        _ensure_all(size, segment)
        return seconds

    return in_turns({name: partial(fetch, name) for name in opened}, copied["plain"].size, rounds)


def fetches_from_s3(root: Path, rounds: int) -> tuple[dict[str, Timings], dict[str, Timings]]:
    """Return the timings of bare fetches of chunks, and of other ranges, from an S3 server, a process of its own."""
    with server(root / "buckets") as (url, bucket):
        os.environ |= {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
        reached = {"rsm.config.endpoint": url, "rsm.config.region": "us-east-1", "rsm.config.allow.http": True}
        found = sites(root, SAMPLE_ON_S3, {"rsm.config.url": f"s3://{bucket}", **reached})
        del found["compressed"]
        with opened_all(found) as opened:
            copied = {name: _copied(each) for name, each in opened.items()}
            of_chunks = chunk_ranges(opened["plain"], copied["plain"])
            return (
                fetches(opened, copied, of_chunks, rounds),
                fetches(opened, copied, any_ranges(copied["plain"]), rounds),
            )


@dataclass(frozen=True, slots=True)
class _Ranges:
    """The chunks of a remote segment in random order, and a reader that caches nothing."""

    reader: BlockingLogReader
    segment: RemoteLogSegmentMetadata
    entries: list[RemoteLogIndexEntry]

    @classmethod
    def of(cls, remote_log: RemoteLogManager, segment: RemoteLogSegmentMetadata, readers: ExitStack) -> Self:
        of_remote = {"log_dirs": (), "remote_log_reader_cache_memory_bytes": 0}
        settings = remote_log.context.settings.model_copy(update=of_remote)
        inner = RemoteLogReader(replace(remote_log.context, settings=settings))
        reader = readers.enter_context(BlockingLogReader(inner))
        return cls(reader, segment, _chunks_of(remote_log, segment))

    def read(self) -> float:
        """Read each chunk once; return the seconds."""
        begun, size = time.perf_counter(), 0
        for entry in self.entries:
            partition, end = self.segment.topic_id_partition, entry.last_offset + 1
            size += sum(
                len(each.content) for each in self.reader.batches(partition, entry.first_offset, end_offset=end)
            )
        seconds = time.perf_counter() - begun
        _ensure_all(size, self.segment)
        return seconds


def _chunks_of(remote_log: RemoteLogManager, segment: RemoteLogSegmentMetadata) -> list[RemoteLogIndexEntry]:
    """Return the chunks of `segment` by its remote log index, in random order."""
    entries = list(
        iterate_entries(remote_log.context.storage.fetch_index(segment, IndexKind.REMOTE_LOG_INDEX), "index")
    )
    random.Random(2).shuffle(entries)  # noqa: S311 - an order, no secret
    return entries


def _ensure_all(size: int, segment: RemoteLogSegmentMetadata) -> None:
    if size != segment.size:
        raise SystemExit(f"{size} bytes came of {segment.size}: nothing was measured")


def _copied(remote_log: RemoteLogManager) -> RemoteLogSegmentMetadata:
    begun: BegunCopy = remote_log.begin_copy(remote_log.plan_copy(), "benchmark")
    job = remote_log.write_copy_job("runs/read", begun)
    for number in range(job.groups):
        job.run_group(
            number,
            remote_log.context.storage,
            job.read(remote_log.context.work, "runs/read")[1].sizes,
            remote_log.context.clock,
        )
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
        found = sites(Path(root), SAMPLE)
        with opened_all(found) as opened:
            copied = copies(found, opened, arguments.rounds)
            del opened["compressed"]
            read, local = reads(opened, arguments.rounds)
    with tempfile.TemporaryDirectory(dir=directory, prefix="encoding-") as root:
        from_s3, across_chunks = fetches_from_s3(Path(root), arguments.rounds)
    print_machine(directory)
    for what, found_so in {"chunks from a local directory": local, "other ranges from S3": across_chunks}.items():
        plain, encrypted = found_so["plain"].median, found_so["encrypted"].median
        print(f"bare fetch of {what}: {encrypted:.2f} GB/s encrypted, {plain:.2f} GB/s plain (no goal)")
    return judge(
        [
            _goal("copy, encrypted", copied["encrypted"], [copied["plain"], copied["encrypt"]], COPY_ENCRYPTED),
            _goal(
                "copy, compressed by zstd", copied["compressed"], [copied["plain"], copied["compress"]], COPY_COMPRESSED
            ),
            _goal("ranged fetch from S3, encrypted", from_s3["encrypted"], [from_s3["plain"]], RANGED),
            _goal("ranged read by a reader, encrypted", read["encrypted"], [read["plain"]], RANGED),
        ]
    )


def _goal(what: str, ours: Timings, peers: list[Timings], goal: float) -> Goal:
    peer = min(peers, key=lambda each: each.median)
    name = f"{peer.median:.2f} {peer.name}{' alone' if peer.name in {'encrypt', 'compress'} else ''}"
    return Goal(what, f"{ours.median:.2f} GB/s", name, ours.median / peer.median, goal)


if __name__ == "__main__":
    sys.exit(main())
