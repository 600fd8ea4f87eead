"""Brokers that replicate one partition, each with a log directory of its own, and what their readers should see.

Every record's value has its leader and offset. A batch has BATCH_RECORDS records, and a segment has two batches,
wherever its log begins. Between calls a broker is stopped, and its whole log is stable.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from support.remote_logs import BATCH_RECORDS, CLUSTER_ID, LOG_CONFIG, NOW, topic_id, unsynced
from support.transactions import split
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry, write_leader_epochs
from tiered_storage.kafka_log.files.log_segment import has_segment
from tiered_storage.kafka_log.log.local_log import LocalLog
from tiered_storage.kafka_log.log.log_directory_writer import LogDirectoryWriter
from tiered_storage.kafka_log.records.record import Record
from tiered_storage.remote_log.follower.moving import move_partition
from tiered_storage.remote_log.lineage import epoch_at

PADDING = 60


def value_of(epoch: int, offset: int) -> bytes:
    """Return what a leader writes at an offset."""
    return f"{epoch}/{offset}".encode().ljust(PADDING, b".")


def epoch_in(value: bytes | None) -> int:
    """Return the epoch of the leader that wrote a value."""
    return int((value or b"").split(b"/")[0])


@dataclass
class Brokers:
    """Broker n has its log directory in `root`/broker-n; `logs` has the epoch of each offset of each broker's log."""

    root: Path
    topic: str = "orders"
    topic_id: str = topic_id("orders")
    count: int = 2
    leader: int = 0
    epoch: int = 0
    logs: list[list[int]] = field(default_factory=list)
    moved: set[int] = field(default_factory=set)
    """The brokers whose log is in their other log directory."""

    def __post_init__(self) -> None:
        self.logs = [[] for _ in range(self.count)]
        for number in range(self.count):
            with unsynced(), LogDirectoryWriter.create(self.directory(number), CLUSTER_ID, clock=lambda: NOW) as writer:
                writer.create_log(self.topic, 0, self.topic_id, LOG_CONFIG)

    def directory(self, number: int) -> Path:
        """Return the log directory that has a broker's log."""
        return self.places(number)[number in self.moved]

    def places(self, number: int) -> tuple[Path, Path]:
        """Return a broker's two log directories; it begins with the first."""
        return self.root / f"broker-{number}", self.root / f"broker-{number}-other"

    def partition_directory(self, number: int) -> Path:
        """Return where a broker's log of the partition is."""
        return self.directory(number) / f"{self.topic}-0"

    @property
    def written_by(self) -> list[int]:
        """The epoch of each offset of the leader's log, from offset 0 on, whatever was trimmed since."""
        return self.logs[self.leader]

    @property
    def end(self) -> int:
        """The end of the leader's log."""
        return len(self.written_by)

    def values(self, start: int = 0) -> list[bytes]:
        """Return what a reader should see from offset `start` to the end."""
        return [value_of(epoch, offset) for offset, epoch in enumerate(self.written_by) if offset >= start]

    @contextmanager
    def log(self, number: int) -> Iterator[LocalLog]:
        """Let a broker start, and stop at the end of the block."""
        with unsynced(), LogDirectoryWriter.open(self.directory(number), LOG_CONFIG, clock=lambda: NOW) as writer:
            log = writer.log(self.topic, 0)
            yield log
            end, epochs = log.log_end_offset, log.leader_epochs
            log.update_high_watermark(end)
        # A reopened log forgets an epoch without records; its leader begins it again.
        if number == self.leader and (not epochs or epochs[-1].epoch < self.epoch):
            self._begin_epoch(epochs, end)

    def append(self, batches: int = 1) -> None:
        """Let the leader take so many batches."""
        with self.log(self.leader) as log:
            for _ in range(batches):
                end = log.log_end_offset
                offsets = range(end, end + BATCH_RECORDS)
                log.append(
                    [Record(at, NOW + 1000 * at, b"key", value_of(self.epoch, at)) for at in offsets],
                    leader_epoch=self.epoch,
                )
                self.written_by.extend([self.epoch] * BATCH_RECORDS)

    def replicate(self, number: int, batches: int | None = None) -> None:
        """Let a follower truncate what its leader lacks, then fetch so many batches, or all of them."""
        if number == self.leader:
            return
        with self.log(self.leader) as leader, self.log(number) as follower:
            agreed = min(follower.log_end_offset, leader.log_end_offset)
            for entry in reversed(follower.leader_epochs):
                end = leader.end_offset_for_epoch(entry.epoch)
                if end is not None and end[0] == entry.epoch:
                    agreed = min(agreed, end[1])
                    break
                agreed = min(agreed, entry.start_offset)
            if agreed < max(leader.log_start_offset, follower.log_start_offset):
                follower.truncate_fully_and_start_at(leader.log_start_offset)
                self.logs[number] = []
            else:
                follower.truncate_to(agreed)
            while follower.log_end_offset < leader.log_end_offset and (batches is None or batches > 0):
                follower.append_as_follower(leader.read(follower.log_end_offset, 1))
                batches = None if batches is None else batches - 1
            agreed = min(agreed, follower.log_end_offset) if self.logs[number] else 0
            self.logs[number] = self.logs[number][:agreed] + self.written_by[agreed : follower.log_end_offset]

    def elect(self, number: int) -> None:
        """Let a broker lead a new epoch with its log: the cluster loses what it lacks and regains what only it has."""
        self.epoch += 1
        self.leader = number
        with self.log(number):
            pass

    def _begin_epoch(self, epochs: Sequence[EpochEntry], end: int) -> None:
        checkpoint = self.partition_directory(self.leader) / "leader-epoch-checkpoint"
        before = (entry for entry in epochs if entry.start_offset < end)
        write_leader_epochs(checkpoint, [*before, EpochEntry(self.epoch, end)])

    def learn(self, number: int) -> None:
        """Learn what is in a broker's log, to which another program wrote: a part of what it had, or of its leader's.

        If that program was killed before the log had a segment, the broker starts with an empty one.
        """
        directory = self.partition_directory(number)
        if not directory.is_dir() or not has_segment(directory):
            self.empty(number)
            return
        with self.log(number) as log:
            start, end = max(log.segments[0].base_offset, log.log_start_offset), log.log_end_offset
            found = [epoch_in(each.value) for each in _records(log, start) if each.offset >= start]
            before = epoch_at(log.leader_epochs, start - 1)
        for known in (self.written_by, self.logs[number]):
            # Whoever has the same leader at one offset has the same records below it.
            if known[start:end] == found and len(known) >= end and (found or before in {None, *known[:start][-1:]}):
                self.logs[number] = known[:end]
                return
        raise AssertionError(f"offsets {start} to {end} of {found} are neither of the leader nor of {number}")

    def empty(self, number: int) -> None:
        """Let a broker lose its log."""
        shutil.rmtree(self.partition_directory(number), ignore_errors=True)
        with unsynced(), LogDirectoryWriter.open(self.directory(number), LOG_CONFIG, clock=lambda: NOW) as writer:
            writer.create_log(self.topic, 0, self.topic_id, LOG_CONFIG)
        self.logs[number] = []

    def move(self, number: int) -> None:
        """Move a broker's log to its other log directory."""
        here, there = self.directory(number), self.places(number)[number not in self.moved]
        move_partition(self.topic, 0, here, there)
        self.moved ^= {number}

    def recreate(self, topic_id: str) -> None:
        """Delete the topic and create it again under its name, with another id and empty."""
        self.topic_id, self.epoch, self.logs = topic_id, 0, [[] for _ in range(self.count)]
        for number in range(self.count):
            shutil.rmtree(self.partition_directory(number))
            with unsynced(), LogDirectoryWriter.open(self.directory(number), clock=lambda: NOW) as writer:
                writer.create_log(self.topic, 0, topic_id, LOG_CONFIG)

    def delete_records(self, before: int) -> None:
        """Let the leader's own retention delete what is before an offset; its log forgets those leader epochs."""
        with self.log(self.leader) as log:
            log.delete_records(before)
            log.delete_old_segments()


def _records(log: LocalLog, offset: int) -> Iterator[Record]:
    while batches := log.read(offset, 1):
        for _, records in split(batches):
            yield from records
            offset = records[-1].offset + 1
