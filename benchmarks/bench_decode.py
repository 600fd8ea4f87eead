"""Decodes segments into Arrow columns, against aiokafka's compiled parser and against a copy of the same bytes.

Ours checks every batch's checksum and returns all columns. The peer checks it too; the benchmark reads its records'
offset, timestamp, timestamp type, key, value and headers into lists, chunk by chunk, which is less work than columns.
It also prints the peer's speed when nothing of the records is read. The peer of a codec is its library, which
decompresses the same batches one by one.

The segments are in memory, and the ways take turns, each on one core unless its name has two threads or two processes.
Before a round of those both cores are warmed up, so that their figures are of steady work. A figure is that of the best
round, because other work, on the machine or its host, can only add to the time; so the rounds are spread over several
passes. GB are 10^9 bytes, after decompression if there is a codec.
"""

from __future__ import annotations

import argparse
import multiprocessing
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import cramjam
import lz4.frame
import numpy as np
import zstandard
from aiokafka.record._crecords import MemoryRecords
from isal import isal_zlib
from measuring import STATE, Goal, judge, print_machine
from sample_segments import SampleSegment, kib_records, one_kib_record_batches, one_record_batches, small_records

from tiered_storage.kafka_log.columnar.decoder import (
    CHUNK_BYTES,
    STRICT,
    Checks,
    ColumnDecoder,
    chunk_bytes_of,
    iterate_columns,
)
from tiered_storage.kafka_log.kernels.constants import BATCH_OVERHEAD
from tiered_storage.kafka_log.records.batch_table import BatchTable
from tiered_storage.kafka_log.records.record_batch import Compression
from tiered_storage.kafka_log.records.segment_scan import WINDOW_BYTES, SegmentScanner

MB = 10**6
_ZSTD = zstandard.ZstdDecompressor()
TIMES_A_THREAD = 6
KIB_SEGMENT_BYTES = 64 * MB
OURS, AIOKAFKA = "ours", "aiokafka, fields in lists"
CODEC_GOALS = {Compression.LZ4: 0.38, Compression.ZSTD: 0.6, Compression.SNAPPY: 0.46, Compression.GZIP: 0.65}
HEADERS_GOAL = 1.3
SMALL_SCAN_GOAL = 0.85
LARGE_SCAN_GOAL = 0.85
COPIED_VALUES_GOAL = 0.59
VIEWS_GOAL = 0.85
KIB_AIOKAFKA_GOAL = 4.7
SMALL_AIOKAFKA_GOAL = 16
THIRTY_BYTES_GOAL = 31
IMPORT_GOAL = 2.5
FIRST_DECODE_GOAL = 2.8
LIBRARIES = "import time; begun = time.perf_counter(); import numpy, pyarrow; print(time.perf_counter() - begun)"
IMPORT = (
    "import time; begun = time.perf_counter();"
    "import tiered_storage.kafka_log.log.local_log, tiered_storage.kafka_log.records.segment_scan,"
    " tiered_storage.kafka_log.records.record_batch, tiered_storage.kafka_log.columnar.decoder;"
    "print(time.perf_counter() - begun)"
)
FIRST_DECODE = (
    "import sys, time; begun = time.perf_counter(); from pathlib import Path;"
    "from tiered_storage.kafka_log.columnar.decoder import iterate_columns;"
    "assert next(iterate_columns(Path(sys.argv[1]), 0)).num_rows;"
    "print(time.perf_counter() - begun)"
)

Way = Callable[[], object]
Pair = tuple[SampleSegment, SampleSegment]


@dataclass
class Contest:
    """Ways that take turns; `compare` returns the goals from the seconds of the best round of each."""

    ways: dict[str, Way]
    compare: Callable[[dict[str, float]], Sequence[Goal]]
    times: int = 1
    """How many rounds it has for each round of the others."""
    warms_up: bool = False
    """Whether each way runs once before it is measured: a core that was idle is slow for some milliseconds."""
    best: dict[str, float] = field(default_factory=dict)

    def run(self, rounds: int) -> None:
        """Run the ways in turns for `rounds` more rounds."""
        for way in self.ways.values():
            way()
        for number in range(rounds * self.times):
            for name in list(self.ways) if number % 2 else list(reversed(self.ways)):
                if self.warms_up:
                    self.ways[name]()
                begun = time.perf_counter()
                self.ways[name]()
                seconds = time.perf_counter() - begun
                self.best[name] = min(seconds, self.best.get(name, seconds))


def windows(
    content: bytes, window_bytes: int = CHUNK_BYTES, *, verify_crc: bool = False
) -> Iterator[tuple[memoryview, BatchTable]]:
    """Scan a segment in memory in windows that fit the cache, as iterate_columns scans a file."""
    scanner = SegmentScanner("a segment", 0, verify_crc=verify_crc)
    view = memoryview(content)
    while scanner.position < len(view):
        begin = scanner.position
        table, consumed = scanner.feed(view[begin : begin + window_bytes])
        yield view[begin : begin + consumed], table


def scan(segment: SampleSegment, *, verify_crc: bool) -> int:
    return sum(len(table) for _, table in windows(segment.content, WINDOW_BYTES, verify_crc=verify_crc))


def decode(segment: SampleSegment, checks: Checks = STRICT, *, value_views: bool = False) -> int:
    """Decode all of `segment`, chunk by chunk."""
    decoder = ColumnDecoder("a segment", checks=checks, value_views=value_views)
    rows = 0
    for window, table in windows(segment.content, chunk_bytes_of(value_views=value_views)):
        for batch in decoder.decode(window, table):
            rows += batch.num_rows
    assert rows == segment.records
    return rows


def decode_file(path: Path, *, value_views: bool = False) -> int:
    return sum(batch.num_rows for batch in iterate_columns(path, 0, value_views=value_views))


def decode_often(segment: SampleSegment) -> None:
    """Decode it as often as each of two threads does: rounds of the same length are disturbed equally."""
    for _ in range(TIMES_A_THREAD):
        decode(segment)


def decode_pair(pair: Pair, pool: ThreadPoolExecutor) -> None:
    """Let each of two threads decode a segment of its own, long enough to be side by side most of the time."""
    for done in [pool.submit(decode_often, segment) for segment in pair]:
        done.result()


def decode_held_twice(processes: ProcessPoolExecutor) -> None:
    """Let each of two processes decode the segment that it holds."""
    for done in [processes.submit(_decode_held) for _ in range(2)]:
        done.result()


_held: list[SampleSegment] = []


def _hold() -> None:
    """Create the records of `kib_records` again: too many to send to a process that may die before it reads them."""
    _held.append(kib_records(Compression.NONE, KIB_SEGMENT_BYTES))


def _decode_held() -> None:
    decode_often(*_held)


def parse_by_aiokafka(segment: SampleSegment) -> None:
    """Let aiokafka yield its records, and use none of them."""
    assert sum(1 for _ in _aiokafka_records(segment.content)) == segment.records


def decode_by_aiokafka(segment: SampleSegment) -> None:
    """Read the fields of aiokafka's records into lists of one chunk each, which are not columns yet."""
    rows = 0
    for window, _ in windows(segment.content):
        fields = [
            (record.offset, record.timestamp, record.timestamp_type, record.key, record.value, record.headers)
            for record in _aiokafka_records(bytes(window))
        ]
        rows += len(fields)
    assert rows == segment.records


def _aiokafka_records(content: bytes) -> Iterator[Any]:
    batches = MemoryRecords(content)
    while batches.has_next():
        batch = batches.next_batch()
        assert batch.validate_crc()
        yield from batch


def scans() -> Contest:
    small, large = one_record_batches(200_000), one_kib_record_batches(60_000)
    copies = {segment.title: copy_of(segment) for segment in (small, large)}

    def compare(seconds: dict[str, float]) -> list[Goal]:
        goals = []
        for way, segment, goal in (
            ("headers", small, HEADERS_GOAL),
            ("with CRC", small, SMALL_SCAN_GOAL),
            ("with CRC", large, LARGE_SCAN_GOAL),
        ):
            ours, copy = seconds[f"{way}, {segment.title}"], seconds[segment.title]
            goals.append(of_a_copy(f"scan, {way}, {segment.title}", len(segment.content), ours, copy, goal))
        return goals

    return Contest(
        {
            f"headers, {small.title}": lambda: scan(small, verify_crc=False),
            f"with CRC, {small.title}": lambda: scan(small, verify_crc=True),
            f"with CRC, {large.title}": lambda: scan(large, verify_crc=True),
            **copies,
        },
        compare,
    )


def of_a_copy(what: str, size: int, ours: float, copy: float, goal: float) -> Goal:
    """Return the goal of a way that took `ours` seconds for `size` bytes, beside a memory copy of them."""
    return Goal(what, f"{size / ours / 1e9:.2f} GB/s", f"{size / copy / 1e9:.2f} memory copy", copy / ours, goal)


def copy_of(segment: SampleSegment) -> Way:
    """Return a function that copies the bytes of `segment` to allocated memory."""
    source = np.frombuffer(segment.content, np.uint8)
    target = source.copy()
    return lambda: np.copyto(target, source)


def small_batches() -> Contest:
    segment = one_record_batches(200_000)

    def compare(seconds: dict[str, float]) -> list[Goal]:
        for name, each in seconds.items():
            print(f"{segment.title}: {name} {segment.records / each / 1e6:.2f} million/s")
        return [of_aiokafka(segment, seconds, SMALL_AIOKAFKA_GOAL)]

    return Contest(
        {
            OURS: lambda: decode(segment),
            AIOKAFKA: lambda: decode_by_aiokafka(segment),
            "aiokafka, records alone": lambda: parse_by_aiokafka(segment),
        },
        compare,
    )


def of_aiokafka(segment: SampleSegment, seconds: dict[str, float], goal: float) -> Goal:
    """Return the goal of decoding `segment` beside aiokafka."""
    ours, theirs = (segment.records / seconds[name] / 1e6 for name in (OURS, AIOKAFKA))
    what = f"decode, {segment.title}"
    return Goal(what, f"{ours:.2f} million/s", f"{theirs:.2f} {AIOKAFKA}", ours / theirs, goal)


def small_records_in_large_batches() -> Contest:
    segment = small_records(32 * MB)
    return Contest(
        {OURS: lambda: decode(segment), AIOKAFKA: lambda: decode_by_aiokafka(segment)},
        lambda seconds: [of_aiokafka(segment, seconds, THIRTY_BYTES_GOAL)],
    )


def kib_values(segment: SampleSegment, path: Path) -> Contest:
    path.write_bytes(segment.content)
    return Contest(
        {
            OURS: lambda: decode(segment),
            "ours, values as views": lambda: decode(segment, value_views=True),
            "ours, without checksums": lambda: decode(segment, Checks(crc=False)),
            "ours, from a file in the page cache": lambda: decode_file(path),
            "ours, from such a file, values as views": lambda: decode_file(path, value_views=True),
            "copy of the same bytes": copy_of(segment),
            "copy of the same bytes to new memory": np.frombuffer(segment.content, np.uint8).copy,
            AIOKAFKA: lambda: decode_by_aiokafka(segment),
            "aiokafka, records alone": lambda: parse_by_aiokafka(segment),
        },
        partial(_tell_of_kib_values, segment),
    )


def _tell_of_kib_values(segment: SampleSegment, seconds: dict[str, float]) -> list[Goal]:
    size, what, copy = len(segment.content), f"decode, {segment.title}", seconds["copy of the same bytes"]
    for name, each in seconds.items():
        print(f"{segment.title}: {name} {size / each / 1e9:.2f} GB/s")
    return [
        of_a_copy(what, size, seconds[OURS], copy, COPIED_VALUES_GOAL),
        of_a_copy(f"{what}, values as views", size, seconds["ours, values as views"], copy, VIEWS_GOAL),
        of_aiokafka(segment, seconds, KIB_AIOKAFKA_GOAL),
    ]


def threads(segment: SampleSegment, pool: ThreadPoolExecutor, processes: ProcessPoolExecutor) -> Contest:
    """One thread against two, each with a segment of its own, and two processes, which share the machine alone.

    Two cores are less often undisturbed than one, so all have more rounds.
    """
    pair = segment, replace(segment, content=bytes(bytearray(segment.content)))

    def compare(seconds: dict[str, float]) -> list[Goal]:
        what, size = f"decode, {segment.title}", TIMES_A_THREAD * len(segment.content) / 1e9
        one = size / seconds["one thread"]
        two, apart = (2 * size / seconds[name] for name in ("two threads", "two processes"))
        print(f"{segment.title}: one thread {one:.2f} GB/s, two threads {two:.2f} GB/s, two processes {apart:.2f} GB/s")
        print(f"{what}, two processes: {apart / one:.2f} times one, with an interpreter each")
        return [Goal(f"{what}, two threads", f"{two:.2f} GB/s", f"{one:.2f} one thread", two / one, 1.6)]

    return Contest(
        {
            "one thread": lambda: pool.submit(decode_often, segment).result(),
            "two threads": lambda: decode_pair(pair, pool),
            "two processes": lambda: decode_held_twice(processes),
        },
        compare,
        times=4,
        warms_up=True,
    )


def compressed(codec: Compression, goal: float) -> Contest:
    segment = kib_records(codec, 32 * MB)
    payloads = [segment.content[begin:end] for begin, end in _payloads(segment)]
    bare = BARE[codec]

    def decompress() -> None:
        for payload in payloads:
            bare(payload)

    def compare(seconds: dict[str, float]) -> list[Goal]:
        share = len(segment.content) / segment.decompressed
        what = f"decode, {segment.title} (to {share:.2f} of its size)"
        ours, theirs = (segment.decompressed / seconds[name] / 1e9 for name in (OURS, "decompressed"))
        return [Goal(what, f"{ours:.2f} GB/s", f"{theirs:.2f} decompressing alone", ours / theirs, goal)]

    return Contest({OURS: lambda: decode(segment), "decompressed": decompress}, compare)


def _payloads(segment: SampleSegment) -> Iterator[tuple[int, int]]:
    """Yield where the compressed records of each batch begin and end."""
    position = 0
    for _, table in windows(segment.content):
        for size in table.size.tolist():
            yield position + BATCH_OVERHEAD, position + size
            position += size


def _unsnappy(payload: bytes) -> None:
    """Decompress the blocks of xerial's framing: a header of 16 bytes, then each block after its size."""
    position = 16
    while position < len(payload):
        start = position + 4
        position = start + int.from_bytes(payload[position:start], "big")
        cramjam.snappy.decompress_raw(payload[start:position])


BARE: Mapping[Compression, Callable[[bytes], object]] = {
    Compression.LZ4: lz4.frame.decompress,
    Compression.ZSTD: lambda payload: _ZSTD.decompress(payload, max_output_size=1 << 20),
    Compression.SNAPPY: _unsnappy,
    Compression.GZIP: lambda payload: isal_zlib.decompress(payload, 31),
}
"""The libraries that we decompress with, called as their users do."""


def measure_start(path: Path) -> list[Goal]:
    path.write_bytes(one_record_batches(1000).content)
    libraries = _seconds_of(LIBRARIES)
    ours, first = _seconds_of(IMPORT), _seconds_of(FIRST_DECODE, str(path))
    peer = f"{libraries:.2f} s numpy and pyarrow"
    return [
        Goal("import without decoding", f"{ours:.2f} s", peer, ours / libraries, IMPORT_GOAL, is_most=True),
        Goal("import and first decode", f"{first:.2f} s", peer, first / libraries, FIRST_DECODE_GOAL, is_most=True),
    ]


def _seconds_of(program: str, *arguments: str) -> float:
    """Return the seconds that the fastest of several new processes printed."""
    command = [sys.executable, "-c", program, *arguments]
    return min(float(subprocess.run(command, check=True, capture_output=True).stdout) for _ in range(5))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", type=Path, default=STATE, help="where a segment of 64 MB goes (%(default)s)")
    parser.add_argument("--rounds", type=int, default=4, help="how often each way decodes all (%(default)s)")
    parser.add_argument("--passes", type=int, default=6, help="how often all of that is done (%(default)s)")
    arguments = parser.parse_args()
    arguments.directory.mkdir(parents=True, exist_ok=True)
    print("Decode to Arrow: CRC of every batch, all columns, one core; segments in memory")
    print_machine(arguments.directory)
    goals: list[Goal] = []
    with (
        tempfile.TemporaryDirectory(dir=arguments.directory, prefix="decode-") as root,
        ThreadPoolExecutor(2) as pool,
        ProcessPoolExecutor(2, multiprocessing.get_context("spawn"), _hold) as processes,
    ):
        path = Path(root) / "00000000000000000000.log"
        kib_segment = kib_records(Compression.NONE, KIB_SEGMENT_BYTES)
        contests = [scans(), small_batches(), small_records_in_large_batches(), kib_values(kib_segment, path)]
        contests += [threads(kib_segment, pool, processes)]
        contests += [compressed(codec, goal) for codec, goal in CODEC_GOALS.items()]
        for _ in range(arguments.passes):
            for contest in contests:
                contest.run(arguments.rounds)
        for contest in contests:
            goals += contest.compare(contest.best)
        goals += measure_start(path)
    print_machine(arguments.directory)
    return judge(goals)


if __name__ == "__main__":
    sys.exit(main())
