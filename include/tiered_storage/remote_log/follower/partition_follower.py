"""Follows the leader of one partition: fetches what it has, and truncates what it does not have.

Every step fetches once. Before the first one, and whenever another leader epoch leads, the log is compared with the
leader's (OffsetForLeaderEpoch) and truncated to where both agree (KIP-101, KIP-279). The log starts again, by start.py,
while it never began, when it would be truncated below its first local offset, and when the leader lacks its end.

A consumer's Fetch shows records below the high watermark only, so what is fetched is truncated only after an unclean
election. Records that the leader no longer has are discarded only if all of them are remote, or below the log start
over both tiers. The log also rolls where remote segments end: then its segments are those of the remote tier, and a
copy from this log continues where the remote log ends.

Source: KIP-101, KIP-279, KIP-405; AbstractFetcherThread of released Kafka.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tiered_storage.errors import (
    LineageContradictedError,
    RemoteObjectNotFoundError,
    UnexpectedAppendOffsetError,
)
from tiered_storage.kafka_log.files.log_segment import producer_snapshot_path
from tiered_storage.kafka_log.kernels.constants import LOG_OVERHEAD
from tiered_storage.kafka_log.log.local_log import LocalLog
from tiered_storage.kafka_wire.connections.error_codes import (
    FENCED_LEADER_EPOCH,
    OFFSET_OUT_OF_RANGE,
    PartitionError,
)
from tiered_storage.kafka_wire.fetch import FetchAnswer, FetchBuffer, FetchedPartition, FetchLimits, FetchPosition
from tiered_storage.kafka_wire.fetch_layout import NO_EPOCH, EpochEnd
from tiered_storage.kafka_wire.metadata import TopicPartition
from tiered_storage.remote_log.coverage import Coverage
from tiered_storage.remote_log.follower.start import FollowerStart
from tiered_storage.remote_log.model import TopicIdPartition
from tiered_storage.remote_log.read.partition_snapshot import NO_REMOTE

_BASE_AND_SIZE = struct.Struct(">qi")
WAIT_SECONDS = 0.5
_MOST_OUT_OF_RANGE = 5
"""A leader may trim its log again while a follower starts."""


class Leader(Protocol):
    """What a follower asks of the cluster: a ClusterClient."""

    def fetch(
        self, positions: Sequence[FetchPosition], buffer: FetchBuffer, limits: FetchLimits | None = None
    ) -> FetchAnswer: ...

    def offsets_for_leader_epochs(
        self, wanted: Mapping[TopicPartition, int]
    ) -> Mapping[TopicPartition, EpochEnd | PartitionError]: ...


@dataclass(slots=True)
class FollowedSoFar:
    """What a follower did: bytes fetched, truncations, and how often its log started at another offset."""

    fetched_bytes: int = 0
    truncations: int = 0
    starts: list[FollowerStart] = field(default_factory=list)
    high_watermark: int = -1
    leader_start: int = -1


@dataclass(frozen=True, slots=True)
class FollowedTopic:
    """The partition that is followed; `topic_id` is None if the cluster knows the topic only by its name."""

    partition: TopicIdPartition
    topic_id: str | None
    fetch_bytes: int

    @property
    def name(self) -> TopicPartition:
        """The partition as Kafka's requests name it."""
        return TopicPartition(self.partition.topic, self.partition.partition)


class PartitionFollower:
    """Keeps `log` like its leader's. For one thread."""

    def __init__(
        self,
        topic: FollowedTopic,
        log: LocalLog,
        leader: Leader,
        plan: Callable[[], FollowerStart],
        on_start: Callable[[], object] = lambda: None,
    ) -> None:
        """Ask nothing yet.

        `plan` returns where the log starts now (see plan_start), after a call of `learn_remote`. `on_start` is called
        when the log was started again.
        """
        self.log = log
        self.done = FollowedSoFar()
        self._topic = topic
        self._leader = leader
        self._plan = plan
        self._on_start = on_start
        self._buffer = FetchBuffer(2 * topic.fetch_bytes)
        self._led_by: int | None = None
        """The leader epoch that the log was compared with; None: it was not."""
        self._out_of_range = 0
        """How many answers in a row said that the leader does not have the log's end."""
        self._ends: list[int] = []
        self._coverage = NO_REMOTE
        self._global_log_start = 0

    @property
    def is_empty(self) -> bool:
        """Whether the log has no record."""
        return self.log.segments[0].base_offset == self.log.log_end_offset

    def _was_started(self) -> bool:
        """Return whether an empty log has epochs and producers at its end: local retention deleted the rest."""
        return (
            bool(self.log.leader_epochs)
            and producer_snapshot_path(self.log.directory, self.log.log_end_offset).exists()
        )

    @property
    def has_caught_up(self) -> bool:
        """Whether the log has all that the leader showed at the last step."""
        return 0 <= self.done.high_watermark <= self.log.log_end_offset

    def learn_remote(self, coverage: Coverage, global_log_start: int) -> None:
        """Learn what is remote: from now on another segment begins after the end of each remote one."""
        self._coverage, self._global_log_start = coverage, global_log_start
        self._ends = [covered.end_offset + 1 for covered in coverage.ranges]

    def step(self) -> int:
        """Fetch once and append; return how many bytes came.

        Raises SourceClusterError, LineageContradictedError if log and leader cannot agree, what `plan` raises, and
        OSError.
        """
        if self.is_empty and not self.done.starts and not self._was_started():
            self._start()
        found = self._fetch()
        if found.error_code == OFFSET_OUT_OF_RANGE and self._out_of_range < _MOST_OUT_OF_RANGE:
            self._out_of_range += 1
            self._led_by = None
            if not self._agree():
                self._start(keeps_records=True)
            return 0
        if found.error_code == FENCED_LEADER_EPOCH:
            # Until the end of its call, the leader's client asked for the current epoch.
            self._led_by = None
        if found.error is not None:
            raise found.error.as_exception()
        self._out_of_range = 0
        if self._led_by is None or found.leader_epoch != self._led_by:
            if self._agree():
                self._led_by = None
                return 0
            self._led_by = found.leader_epoch
        return self._take(found)

    def _start(self, *, keeps_records: bool = False) -> None:
        """Empty the log and start it where the remote log and the leader's disk let it.

        Raises RemoteObjectNotFoundError if it `keeps_records` and would discard any that may be nowhere else.
        """
        start = self._plan()
        if keeps_records:
            self._refuse_to_lose(start)
        self.log.restart_after_remote(start.producers, start.epochs, start.log_start_offset)
        self.done.starts.append(start)
        # The earlier one is of before: the log is not caught up before the next answer.
        self.done.high_watermark = -1
        self._on_start()

    def _refuse_to_lose(self, start: FollowerStart) -> None:
        log = self.log
        first, last = log.segments[0].base_offset, log.log_end_offset - 1
        missing = self._coverage.missing(max(first, self._global_log_start), last)
        if missing:
            lost = ", ".join(f"{begin} to {end}" for begin, end in missing)
            raise RemoteObjectNotFoundError(
                f"{self._topic.partition}: {log.directory} has offsets {first} to {last}, the leader deleted those "
                f"that follow, and this log would begin again at offset {start.offset}; but no finished remote segment "
                f"holds offsets {lost}. Nothing was changed. Copy them from this directory (log.dirs), or remove it if "
                "nobody needs them, and follow again"
            )

    def _fetch(self) -> FetchedPartition:
        topic = self._topic
        position = FetchPosition(
            topic.partition.topic,
            topic.partition.partition,
            self.log.log_end_offset,
            topic.fetch_bytes,
            topic_id=topic.topic_id,
        )
        limits = FetchLimits(WAIT_SECONDS, max_bytes=topic.fetch_bytes)
        [found] = self._leader.fetch([position], self._buffer, limits).partitions
        return found

    def _agree(self) -> bool:
        """Truncate the log to where it agrees with the leader's; return whether it changed.

        Raises LineageContradictedError if the leader knows none of the log's epochs, or contradicts the remote tier.
        """
        is_changed = False
        while self.log.leader_epochs:
            asked = self.log.leader_epochs[-1].epoch
            found = self._leader.offsets_for_leader_epochs({self._topic.name: asked})[self._topic.name]
            if isinstance(found, PartitionError):
                raise found.as_exception()
            if found.epoch == NO_EPOCH:
                raise LineageContradictedError(
                    f"{self._topic.partition}: this log has records of leader epoch {asked}, and its leader knows no "
                    "epoch up to that: its cluster was set back to an earlier state, or is another one"
                )
            own = self.log.end_offset_for_epoch(found.epoch)
            agreed = min(found.end_offset, self.log.log_end_offset if own is None else own[1])
            if agreed >= self.log.log_end_offset:
                return is_changed
            self.done.truncations += 1
            is_changed = True
            if agreed <= self.log.segments[0].base_offset:
                self._start_again()
                return True
            self.log.truncate_to(agreed)
        return is_changed

    def _start_again(self) -> None:
        """Start the log again: the leader contradicts what the remote tier had when it was started."""
        before = (self.log.log_end_offset, self.log.leader_epochs) if self.is_empty else None
        self._start()
        if before == (self.log.log_end_offset, self.log.leader_epochs):
            raise LineageContradictedError(
                f"{self._topic.partition}: the remote tier has offsets up to {self.log.log_end_offset - 1} of leader "
                f"epoch {self.log.leader_epochs[-1].epoch}, and the leader's log disagrees with them: "
                "'tiered-storage plan' says what is wrong with the lineage"
            )

    def _take(self, found: FetchedPartition) -> int:
        """Append what came, and learn the leader's offsets."""
        self.done.high_watermark, self.done.leader_start = found.high_watermark, found.log_start_offset
        size = len(found.records)
        if size:
            self._append(bytes(found.records), found.leader_epoch)
        self.log.update_high_watermark(found.high_watermark)
        self.done.fetched_bytes += size
        return size

    def _append(self, records: bytes, leader_epoch: int) -> None:
        for part in self._parts(records):
            self._roll_before(part)
            epoch = None if leader_epoch == NO_EPOCH else leader_epoch
            try:
                self.log.append_as_follower(part, leader_epoch=epoch)
            except UnexpectedAppendOffsetError:
                if not self.is_empty or self.log.leader_epochs:
                    raise
                # Nothing is remote, and the leader's log start lies within its first batch.
                log_start = self.log.log_end_offset
                self.log.truncate_fully_and_start_at(_BASE_AND_SIZE.unpack_from(part)[0])
                self.log.append_as_follower(part, leader_epoch=epoch)
                # An earlier answer may have set it to less.
                self.log.update_high_watermark(self.log.log_end_offset)
                self.log.delete_records(log_start)

    def _parts(self, records: bytes) -> Iterator[bytes]:
        """Split `records` before each batch that begins at or after the end of a remote segment."""
        begun, at, part_of = 0, 0, None
        while at + LOG_OVERHEAD <= len(records):
            base, size = _BASE_AND_SIZE.unpack_from(records, at)
            number = bisect_right(self._ends, base)
            if part_of is not None and number != part_of:
                yield records[begun:at]
                begun = at
            part_of = number
            at += LOG_OVERHEAD + size
        yield records[begun:]

    def _roll_before(self, part: bytes) -> None:
        """Roll if a remote segment ends between the active segment's first offset and the first one of `part`."""
        if len(part) < LOG_OVERHEAD:
            return
        base, _ = _BASE_AND_SIZE.unpack_from(part)
        if bisect_right(self._ends, base) != bisect_right(self._ends, self.log.segments[-1].base_offset):
            self.log.roll()
