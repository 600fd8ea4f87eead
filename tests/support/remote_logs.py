"""A small remote log for tests: a log directory that LocalLog wrote, settings, a RemoteLogManager, a stopped clock.

Segments have ten offsets, in two batches of five records. Record n has timestamp NOW + n seconds and value "value n".
"""

from __future__ import annotations

import atexit
import hashlib
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import yaml

from support.clocks import ManualClock, stamped
from support.plain_reader import PlainReader
from tiered_storage.kafka_log.files.kafka_uuid import encode_uuid
from tiered_storage.kafka_log.files.log_segment import LogSegment, list_segments
from tiered_storage.kafka_log.log.local_log import LocalLog
from tiered_storage.kafka_log.log.log_config import LogConfig
from tiered_storage.kafka_log.log.log_directory_writer import LogDirectoryWriter
from tiered_storage.kafka_log.records.compression import Compression
from tiered_storage.kafka_log.records.record import Record
from tiered_storage.kafka_log.records.record_batch import encode_batch
from tiered_storage.remote_log.context import store_options
from tiered_storage.remote_log.copy.copier import CopySizes
from tiered_storage.remote_log.copy.start import BegunCopy
from tiered_storage.remote_log.copy.tasks import CommitReport, CopyOutcome
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.metadata.manifest_sync import StoredState, write_partition_state
from tiered_storage.remote_log.metadata.sql.database.sqlite_database import file_identity
from tiered_storage.remote_log.metadata.sql.store import open_metadata_store
from tiered_storage.remote_log.model import Lease, RemoteLogSegmentMetadata, TopicIdPartition
from tiered_storage.remote_log.read.blocking_reader import BlockingLogReader
from tiered_storage.remote_log.source.partition_log import PartitionLog, SegmentLocation
from tiered_storage.remote_log.source.segment_source import configured_partitions
from tiered_storage.remote_log.storage.clients.local_directory import RESERVE
from tiered_storage.remote_log.storage.documents.object_names import STORE_CLOCK, STORE_GENERATION
from tiered_storage.settings.settings import Settings, load_settings

CLUSTER_ID = "test-cluster"
NOW = 1_700_000_000_000
BATCH_RECORDS = 5
SEGMENT_OFFSETS = 2 * BATCH_RECORDS
SIZES = CopySizes(window=64 << 10, index_interval=100, remote_index_chunk=400)
"""Small enough that every segment has several entries in each of its indexes."""

Partitions = dict[tuple[str, int], int]
"""How many closed segments each (topic, partition) has; the active one has one batch more."""


def topic_id(topic: str) -> str:
    """Return the id that the topic has in every test."""
    return encode_uuid(hashlib.sha256(topic.encode()).digest()[:16])


def partition_of(topic: str = "orders", number: int = 0) -> TopicIdPartition:
    """Return a partition of the test cluster."""
    return TopicIdPartition(CLUSTER_ID, topic_id(topic), number, topic)


ORDERS_0 = partition_of()


def record(offset: int) -> Record:
    """Return the record that every log here has at `offset`."""
    return Record(offset, NOW + 1000 * offset, b"key", f"value {offset}".encode().ljust(60, b"."), (("trace", b"1"),))


def records(start: int, end: int) -> list[Record]:
    """Return the records from `start` to `end` (exclusive)."""
    return [record(offset) for offset in range(start, end)]


BATCH_BYTES = len(encode_batch(records(0, BATCH_RECORDS)))
SEGMENT_BYTES = 2 * BATCH_BYTES
LOG_CONFIG = LogConfig(segment_bytes=SEGMENT_BYTES, index_interval_bytes=100)


def append_batches(log: LocalLog, count: int = 1, compression: Compression = Compression.NONE) -> None:
    """Append so many batches of the records that belong at the log's end."""
    for _ in range(count):
        end = log.log_end_offset
        log.append(records(end, end + BATCH_RECORDS), compression)


@cache
def _written(partitions: tuple[tuple[tuple[str, int], int], ...]) -> Path:
    """Write a log directory once; every test copies it."""
    root = _temporary_directory() / "logs"
    with unsynced(), LogDirectoryWriter.create(root, CLUSTER_ID, clock=lambda: NOW) as writer:
        for (topic, number), closed in partitions:
            append_batches(writer.create_log(topic, number, topic_id(topic), LOG_CONFIG), 2 * closed + 1)
    return root


@cache
def _new_metadata_store() -> Path:
    path = _temporary_directory() / "remote_log_metadata.db"
    open_metadata_store(f"sqlite:///{path}", lambda: NOW).close()
    return path


@contextmanager
def unsynced() -> Iterator[None]:
    """Sync no file: it only matters when a machine crashes, and is nearly all of the time that a small log takes."""
    with mock.patch.object(os, "fsync", lambda _descriptor: None):
        yield


def _temporary_directory() -> Path:
    directory = tempfile.mkdtemp(prefix="remote-log-test-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return Path(directory)


@dataclass
class RemoteLogFiles:
    """All that a remote log is on the disk, below `root`; `properties` go into its settings file."""

    root: Path
    clock: ManualClock = field(default_factory=lambda: ManualClock(NOW + 10_000_000))
    """The store has the same one."""
    properties: dict[str, Any] = field(default_factory=dict)

    @property
    def log_directory(self) -> Path:
        return self.root / "logs"

    @property
    def store(self) -> Path:
        """Where the objects are."""
        return self.root / "state" / "remote"

    @property
    def config(self) -> Path:
        """Write the settings file and return its path. Another thread that reads it finds a whole one."""
        path = self.root / "settings.yaml"
        standard = {
            "log.dirs": [str(self.log_directory)],
            "state.directory": str(self.root / "state"),
            "remote.log.deletion.grace.ms": 0,
        }
        content = yaml.safe_dump({**standard, **self.properties})
        if not path.exists() or path.read_text("utf-8") != content:
            with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=self.root, delete=False) as written:
                written.write(content)
            Path(written.name).replace(path)
        return path

    def settings(self) -> Settings:
        return load_settings(self.config, environ={})

    def open(self, *, outdated: bool = False) -> RemoteLogManager:
        """Open it; use it in a `with`."""
        settings = self.settings()
        opened = RemoteLogManager.open(
            settings,
            self.clock,
            store_options(settings, {}),
            create=True,
            outdated=outdated,
            boot_clock=self.clock.boot_time,
        )
        return stamped(opened)

    def append(self, batches: int = 1, topic: str = "orders", number: int = 0, **options: Any) -> None:
        """Start a broker, append so many batches, and stop it cleanly."""
        with unsynced(), LogDirectoryWriter.open(self.log_directory, LOG_CONFIG, clock=lambda: NOW) as writer:
            append_batches(writer.log(topic, number), batches, **options)

    def partition_directory(self, topic: str = "orders", number: int = 0) -> Path:
        return self.log_directory / f"{topic}-{number}"

    def local_segments(self, topic: str = "orders", number: int = 0) -> list[LogSegment]:
        return list_segments(self.partition_directory(topic, number))

    def local_starts(self, topic: str = "orders", number: int = 0) -> list[int]:
        """Return the base offsets of the local segments."""
        return [segment.base_offset for segment in self.local_segments(topic, number)]

    def objects(self, suffix: str = "") -> list[Path]:
        """Return the files of segments in the store whose names end so, in order."""
        found = self.store.rglob(f"*{suffix}")
        return sorted(
            path for path in found if path.is_file() and path.suffix != ".json" and not is_kept_by_the_store(path)
        )


def is_kept_by_the_store(path: Path) -> bool:
    """Whether `path` is what a store keeps for itself, and every run may change: its generation, clock and reserve."""
    return path.parent.name in {STORE_GENERATION, STORE_CLOCK} or path.name == RESERVE


ENABLED = {
    "remote.storage.enable": True,
    "local.deletion.allowed": True,
    "remote.deletion.allowed": True,
    "retention.ms": -1,
}


def a_remote_log(
    root: Path, partitions: Partitions | None = None, *, topics: dict[str, Any] | None = None, **properties: Any
) -> RemoteLogFiles:
    """Make a remote log below `root`: by default orders-0 with three closed segments, enabled, deletable.

    `topics` are the settings of each topic; other `properties` are named with underscores for dots.
    """
    partitions = {("orders", 0): 3} if partitions is None else partitions
    shutil.copytree(_written(tuple(partitions.items())), root / "logs")
    (root / "state").mkdir(mode=0o700)
    shutil.copy(_new_metadata_store(), root / "state")
    return RemoteLogFiles(root, properties=_properties(partitions, topics, properties))


def a_copied_remote_log(
    root: Path, partitions: Partitions | None = None, *, topics: dict[str, Any] | None = None, **properties: Any
) -> RemoteLogFiles:
    """Make the same with every closed segment copied already, at the clock's first time."""
    partitions = {("orders", 0): 3} if partitions is None else partitions
    copied = _copied(tuple(partitions.items()))
    shutil.copytree(copied / "logs", root / "logs")
    shutil.copytree(copied / "state", root / "state")
    be_the_original(root / "state" / "remote_log_metadata.db")
    return RemoteLogFiles(root, properties=_properties(partitions, topics, properties))


def be_the_original(database: Path) -> None:
    """Let a copied metadata file count as the original, so that it is not refused."""
    with closing(sqlite3.connect(database)) as connection, connection:
        connection.execute("UPDATE generation SET place = ?", (file_identity(database),))


@cache
def _copied(partitions: tuple[tuple[tuple[str, int], int], ...]) -> Path:
    files = a_remote_log(_temporary_directory(), dict(partitions))
    with unsynced(), files.open() as remote_log:
        assert copy(remote_log).is_whole
    shutil.rmtree(files.root / "state" / "work")
    return files.root


def _properties(partitions: Partitions, topics: dict[str, Any] | None, others: dict[str, Any]) -> dict[str, Any]:
    enabled = {topic: dict(ENABLED) for topic, _ in partitions} if topics is None else topics
    return {"topics": enabled, **{name.replace("_", "."): value for name, value in others.items()}}


def begin(remote_log: RemoteLogManager, owner: str = "copy", **selection: Any) -> BegunCopy:
    """Plan and begin a copy run."""
    return remote_log.begin_copy(remote_log.plan_copy(**selection), owner)


def carry_out(remote_log: RemoteLogManager, begun: BegunCopy, folder: str = "runs/test/1") -> list[CopyOutcome]:
    """Do a job's work in this thread and return how every task ended."""
    with unsynced():
        job = remote_log.write_copy_job(folder, begun)
        for number in range(job.groups):
            job.run_group(number, remote_log.context.storage, SIZES, remote_log.context.clock)
    return list(job.outcomes())


def copy(remote_log: RemoteLogManager, owner: str = "copy", **selection: Any) -> CommitReport:
    """Carry a whole copy run out."""
    return remote_log.commit_copy(carry_out(remote_log, begin(remote_log, owner, **selection)))


def with_context(remote_log: RemoteLogManager, **parts: Any) -> RemoteLogManager:
    """Return `remote_log` with other parts of its context, such as a storage."""
    return replace(remote_log, context=replace(remote_log.context, **parts))


def local_log(remote_log: RemoteLogManager, partition: TopicIdPartition = ORDERS_0) -> PartitionLog:
    """Return the partition's local log, which must be there."""
    log = remote_log.context.source.partition(partition)
    assert log is not None
    return log


def segments_of(remote_log: RemoteLogManager, partition: TopicIdPartition = ORDERS_0) -> list[RemoteLogSegmentMetadata]:
    """Return the partition's remote segments in every state but the deleted ones."""
    return list(remote_log.context.segments.list_remote_log_segments(partition))


def ranges(segments: Iterable[RemoteLogSegmentMetadata]) -> list[tuple[int, int]]:
    """Return first and last offset of each segment."""
    return [(segment.start_offset, segment.end_offset) for segment in segments]


def states_of(remote_log: RemoteLogManager, partition: TopicIdPartition = ORDERS_0) -> list[tuple[int, str]]:
    """Return start offset and state of the partition's remote segments."""
    return [(segment.start_offset, segment.state.name) for segment in segments_of(remote_log, partition)]


def offsets_read(remote_log: RemoteLogManager, start: int, partition: TopicIdPartition = ORDERS_0) -> list[int]:
    """Read to the end and return the offsets; each record must be the one that was written."""
    found = list(PlainReader(remote_log).records(partition, start))
    assert found == [record(each.offset) for each in found]
    return [each.offset for each in found]


def assert_clean(remote_log: RemoteLogManager, expected: Callable[[int], Record] | None = record) -> None:
    """Assert that a deep audit finds nothing, and that every partition can be read from its start to its end.

    By both readers no offset is missing, none is there twice, and each record is what `expected` makes of its offset
    (None: not asked).
    """
    audited = remote_log.checks.audit(deep=True)
    assert audited.anomalies == (), audited.anomalies
    logs = configured_partitions(remote_log.context.source)
    local = [log.topic_id_partition for log in logs if isinstance(log, PartitionLog)]
    for partition in {*local, *remote_log.context.segments.list_partitions()}:
        reader = PlainReader(remote_log).open(partition)
        found = list(reader.records(reader.log_start_offset))
        assert [each.offset for each in found] == list(range(reader.log_start_offset, reader.log_end_offset))
        assert expected is None or found == [expected(each.offset) for each in found]
        with BlockingLogReader(remote_log.open_log_reader()) as log_reader:
            start, end = reader.log_start_offset, reader.log_end_offset
            assert list(log_reader.records(partition, start, end_offset=end)) == found


def location_of(log_path: Path) -> SegmentLocation:
    """Return the location of a segment that is a file in a log directory."""
    return SegmentLocation(str(log_path))


def flip_bit(path: Path, position: int) -> None:
    """Turn one bit of a file over."""
    content = bytearray(path.read_bytes())
    content[position] ^= 0x10
    path.write_bytes(content)


def end_below(
    remote_log: RemoteLogManager,
    offset: int,
    partition: TopicIdPartition = ORDERS_0,
    to_mark: Sequence[RemoteLogSegmentMetadata] = (),
) -> None:
    """Move the global log start; the store's manifest marks `to_mark` for deletion before the metadata do."""
    lease = held_by(remote_log, "test", partition)
    move_log_start(remote_log, offset, lease, to_mark)
    remote_log.context.leases.release(lease)


def held_by(remote_log: RemoteLogManager, owner: str, partition: TopicIdPartition = ORDERS_0) -> Lease:
    """Take the partition's lease for another holder."""
    return remote_log.context.leases.acquire(partition, owner, remote_log.context.settings.lease_duration_ms)


def move_log_start(
    remote_log: RemoteLogManager, offset: int, lease: Lease, to_mark: Sequence[RemoteLogSegmentMetadata] = ()
) -> None:
    """Move the global log start under `lease`, in the store's manifest first."""
    partition = lease.topic_id_partition
    state = replace(remote_log.context.segments.partition_state(partition), log_start_offset=offset)
    stored = StoredState.of(state, remote_log.context.segments.list_remote_log_segments(partition), to_mark)
    write_partition_state(
        remote_log.context.storage, remote_log.context.leases, lease, stored, remote_log.context.clock()
    )
    remote_log.context.segments.advance_log_start_offset(partition, offset, lease)


def rewrite_segment(path: Path, batches: Sequence[bytes]) -> None:
    """Put other batches in a segment's place."""
    path.write_bytes(b"".join(batches))


def batches_in(path: Path) -> Iterator[bytes]:
    """Yield the batches of a segment as LocalLog wrote it here: all of one size."""
    content = path.read_bytes()
    for position in range(0, len(content), BATCH_BYTES):
        yield content[position : position + BATCH_BYTES]


def append_as_later_leader(files: RemoteLogFiles) -> None:
    """Append to orders-0 as a later leader that never had the copied offsets 25 to 29, and copy."""
    with LogDirectoryWriter.open(files.log_directory, LOG_CONFIG, clock=lambda: NOW) as writer:
        log = writer.log("orders", 0)
        log.truncate_to(25)
        log.roll()
        for _ in range(3):
            log.append(_later_leaders_records(log.log_end_offset, BATCH_RECORDS), leader_epoch=4)
    with files.open() as remote_log:
        assert copy(remote_log).is_whole


def records_after_later_leader() -> list[Record]:
    """Return what the remote log has of orders-0 after that."""
    return [*records(0, 25), *_later_leaders_records(25, 2 * BATCH_RECORDS)]


def _later_leaders_records(start: int, count: int) -> list[Record]:
    return [replace(record(offset + 1000), offset=offset) for offset in range(start, start + count)]
