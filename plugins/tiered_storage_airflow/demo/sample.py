"""The demo's own log directory: three topics of six partitions in every codec, and one compacted topic.

A record's content follows from its topic, partition and number alone, so that the comparison can rebuild each one and
need not trust any file. Sizes, keys, headers and nulls vary as in real topics.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path

from tiered_storage.kafka_log.files.directory_lock import LOCK_FILE, ensure_unlocked
from tiered_storage.kafka_log.files.kafka_uuid import random_uuid
from tiered_storage.kafka_log.files.log_directory import read_log_directory
from tiered_storage.kafka_log.files.offset_checkpoint import HIGH_WATERMARK_CHECKPOINT
from tiered_storage.kafka_log.log.log_config import LogConfig
from tiered_storage.kafka_log.log.log_directory_writer import LogDirectoryWriter
from tiered_storage.kafka_log.records.compression import Compression
from tiered_storage.kafka_log.records.record import Record
from tiered_storage.private_files import make_private_folder
from tiered_storage_airflow.demo.expectation import DemoError, ExpectedPartition, expect_directory

BATCH_RECORDS = 64
COMPACTED_TOPIC = "customers"
_HOURS = 3_600_000


@dataclass(frozen=True, slots=True)
class SamplePartition:
    """How one partition is written: its codec, number of records, and the size of its segments in bytes."""

    topic: str
    partition: int
    compression: Compression
    records: int
    segment_bytes: int

    def content(self, start_time: int) -> Iterator[Record]:
        """Yield its records; their timestamps (ms) rise from `start_time` over six hours."""
        # Seeded, so that the comparison can rebuild the same records.
        chance = random.Random(f"{self.topic}-{self.partition}")  # noqa: S311 - a sample, no secret
        for offset in range(self.records):
            yield _record(chance, offset, start_time + offset * 6 * _HOURS // self.records)


SAMPLE = (
    SamplePartition("orders", 0, Compression.NONE, 60_000, 8 << 20),
    SamplePartition("orders", 1, Compression.LZ4, 60_000, 6 << 20),
    SamplePartition("orders", 2, Compression.ZSTD, 55_000, 4 << 20),
    SamplePartition("payments", 0, Compression.SNAPPY, 55_000, 5 << 20),
    SamplePartition("payments", 1, Compression.NONE, 50_000, 7 << 20),
    SamplePartition("clicks", 0, Compression.GZIP, 55_000, 4 << 20),
)


def write_sample(root: Path, now: int) -> list[ExpectedPartition]:
    """Write the log directory `root`, as a cleanly stopped broker would leave it; return what must be read back."""
    start_time = now - 7 * _HOURS
    topic_ids = {sample.topic: random_uuid() for sample in SAMPLE}
    with LogDirectoryWriter.create(root, random_uuid()) as writer:
        for sample in SAMPLE:
            config = LogConfig(segment_bytes=sample.segment_bytes)
            log = writer.create_log(sample.topic, sample.partition, topic_ids[sample.topic], config)
            content = sample.content(start_time)
            while batch := list(islice(content, BATCH_RECORDS)):
                log.append(batch, sample.compression)
        compacted = writer.create_log(COMPACTED_TOPIC, 0, random_uuid(), LogConfig(segment_bytes=1 << 16))
        for number in range(200):
            compacted.append([Record(0, start_time, b"customer-%d" % (number % 20), b"x" * 1000)] * 4)
    return [
        ExpectedPartition(sample.topic, sample.partition, 0, partial(sample.content, start_time)) for sample in SAMPLE
    ]


def _record(chance: random.Random, offset: int, timestamp: int) -> Record:
    kind = offset % 16
    half = chance.randbytes(chance.randrange(300, 600))
    # Half of each value repeats, so that codecs have something to do.
    value = None if kind == 15 else half + b'{"event":"sample","sequence":%012d}' % offset + half
    key = None if kind in (3, 11) else b"key-%08d" % (offset % 5000)
    headers: tuple[tuple[str, bytes | None], ...] = ()
    if kind % 5 == 0:
        headers = (("trace", b"%016x" % offset), ("trace", None), ("source", b"demo"))
    return Record(offset, timestamp, key, value, headers)


@dataclass(frozen=True, slots=True)
class PrivateCopy:
    """The records that must be read back from a copy, and notices for the user."""

    expected: tuple[ExpectedPartition, ...]
    notices: tuple[str, ...]


def copy_log_directory(original: Path, copy: Path) -> PrivateCopy:
    """Copy what can be tiered of `original` to `copy`.

    Skips Kafka's own topics, the controllers' log, and partition directories being moved or deleted. Skips the high
    watermarks too: they lag if the broker was killed, and no replica will truncate a copy. Raises
    InvalidLogDirectoryError if `original` is not a log directory, LogDirectoryLockedError if a broker holds it, and
    DemoError if it has nothing to copy or the disk has no room for it.
    """
    ensure_unlocked(original)
    found = read_log_directory(original)
    for error in found.damaged.values():
        raise error
    chosen = [partition for partition in found.partitions if not partition.is_internal]
    if not chosen:
        raise DemoError(f"{original} holds no partition but Kafka's own: there is nothing to show")
    make_private_folder(copy)
    wanted = sum(path.stat().st_blocks * 512 for partition in chosen for path in partition.path.iterdir())
    free = shutil.disk_usage(copy).free
    # Room for the copy, for its remote part, and a reserve.
    if free < 2.2 * wanted:
        raise DemoError(f"{copy} needs {2.2 * wanted:,.0f} bytes for a private copy and its store; {free:,} are free")
    for path in sorted(original.iterdir()):
        if path.is_file() and path.name not in {LOCK_FILE, HIGH_WATERMARK_CHECKPOINT}:
            shutil.copy2(path, copy / path.name)
    for partition in chosen:
        shutil.copytree(partition.path, copy / partition.path.name)
    expectations = [expect_directory(found, partition) for partition in chosen]
    notices = [
        *found.warnings,
        *(f"{name} is left out: {why}" for name, why in found.skipped.items()),
        *(notice for _, notice in expectations if notice is not None),
    ]
    return PrivateCopy(tuple(expected for expected, _ in expectations), tuple(notices))
