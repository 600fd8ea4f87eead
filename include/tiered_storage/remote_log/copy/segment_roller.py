"""Roll the segments of a copy from what a running cluster sends, and copy each (source/fetched_log.py).

Beside the disks of brokers most segments are files of the leader already (source/leader_log.py). All tasks of a
partition share one log in a folder of its own, which is removed after the last of them, or the first that fails. A
segment's file in that folder is deleted, or written over by the next one, as soon as it is copied. So there is one file
for each copy under way (COPIES_AT_ONCE), however many logs are copied.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from threading import Lock, local

from tiered_storage.clock import Clock
from tiered_storage.errors import (
    CorruptLogError,
    EncryptionKeyError,
    ForkedLogError,
    InvalidLogDirectoryError,
    RemoteObjectCorruptError,
    RemoteObjectNotFoundError,
    SourceClusterError,
    TieredStorageError,
)
from tiered_storage.kafka_log.files.directory_lock import DirectoryLock, ensure_unlocked
from tiered_storage.kafka_log.kernels.constants import BATCH_OVERHEAD
from tiered_storage.kafka_log.producers.producer_history import KnownProducers, follow
from tiered_storage.kafka_log.producers.producer_snapshot import ProducerSnapshotEntry, parse_producer_snapshot
from tiered_storage.kafka_log.records.batch_header import LEAST_BATCH_BYTES, read_batch_header
from tiered_storage.kafka_wire.cluster import ClusterClient
from tiered_storage.kafka_wire.connections.error_codes import OFFSET_OUT_OF_RANGE
from tiered_storage.kafka_wire.fetch import FetchBuffer, FetchPosition
from tiered_storage.remote_log.copy.batch_comparison import is_same_batch
from tiered_storage.remote_log.copy.forked_log import remote_batch
from tiered_storage.remote_log.copy.tasks import CopyOutcome, CopyTask, RollOrder
from tiered_storage.remote_log.jobs.groups import JobFailure
from tiered_storage.remote_log.lineage import up_to
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata, RolledSegment, TopicIdPartition
from tiered_storage.remote_log.source.fetched_log import FetchedLog, RolledPartition, RollRange
from tiered_storage.remote_log.source.leader_log import LeaderLog
from tiered_storage.remote_log.source.partition_log import LocalSegment, epochs_within
from tiered_storage.remote_log.storage.batch_stream import BatchStream
from tiered_storage.remote_log.storage.remote_storage_manager import IndexKind, RemoteStorageManager

_FOLDER = "remote-log-cut-"
"""Earlier releases named the folders so too: those of their killed processes are removed as well."""
_ABANDONED_SECONDS = 3600
"""How old a folder must be to count as abandoned: a new one is not locked yet."""

_UNEXPECTED = JobFailure("Exception", "the copy of it ended by an unexpected error", retriable=False)
LARGEST_ANSWER = 256 << 20
"""The largest accepted answer (bytes): a broker returns the first batch whole, even if it exceeds the limit of the
request."""


@dataclass(slots=True)
class _OpenLog:
    """The log of one partition and the lock of its folder; one thread rolls at a time."""

    log: FetchedLog | LeaderLog
    held: DirectoryLock
    lock: Lock = field(default_factory=Lock)

    def close(self) -> None:
        with self.lock:
            self.log.close()
            shutil.rmtree(self.held.directory, ignore_errors=True)
            self.held.release()


@dataclass(slots=True)
class _Share:
    """What the tasks of one partition share; guarded by the roller's lock, and `unrolled` by that of the log."""

    after: RemoteLogSegmentMetadata | None = None
    """The remote segment that the range begins after. One task names it, and any may be the first that begins."""
    left: int = 0
    """How many tasks have not ended."""
    unrolled: int = 0
    """How many tasks have not rolled their segment."""
    busy: int = 0
    """How many tasks are under way."""
    failure: JobFailure | None = None
    """The first one."""
    opened: _OpenLog | None = None


class _Connections:
    """A client of the cluster and a buffer for each thread."""

    def __init__(self, access: Mapping[str, str]) -> None:
        """Connect nothing yet; `access` are the properties of the clients."""
        self._access = access
        self._of_thread = local()
        self._clients: list[ClusterClient] = []

    def of_thread(self, cluster_id: str) -> tuple[ClusterClient, FetchBuffer]:
        """Return this thread's client of the cluster with this id, that of all tasks, and buffer.

        On this host the addresses may lead to another cluster than the planned one: the client refuses it.
        """
        known: tuple[ClusterClient, FetchBuffer] | None = getattr(self._of_thread, "known", None)
        if known is None:
            client = ClusterClient.by_properties(self._access, cluster_id)
            known = self._of_thread.known = (client, FetchBuffer(LARGEST_ANSWER))
            self._clients.append(client)
        return known

    def close(self) -> None:
        """Close the clients of all threads."""
        for client in self._clients:
            client.close()


class SegmentRoller:
    """Rolls the segments of `tasks`, those of one worker. Thread-safe; `close` it after all copies have ended."""

    def __init__(
        self,
        tasks: Iterable[CopyTask],
        access: Mapping[str, str],
        storage: RemoteStorageManager,
        clock: Clock,
        fetched: Callable[[int], None] = lambda _: None,
        window: int = LARGEST_ANSWER,
    ) -> None:
        """Open nothing yet; `access` are the properties of the cluster's client.

        `fetched` is called with the bytes of each answer, which has at most `window` bytes or one batch. Folders that a
        killed process left are removed.
        """
        self._shares: dict[TopicIdPartition, _Share] = {}
        for task in tasks:
            share = self._shares.setdefault(task.metadata.topic_id_partition, _Share())
            share.after = task.after or share.after
            if task.roll is not None:
                share.left, share.unrolled = share.left + 1, share.unrolled + 1
        self._connections = _Connections(access)
        self._storage = storage
        self._clock = clock
        self._fetched = fetched
        self._window = window
        self._lock = Lock()
        if any(share.left for share in self._shares.values()):
            _remove_abandoned(Path(tempfile.gettempdir()))

    def copy(self, task: CopyTask, copy: Callable[[CopyTask], CopyOutcome]) -> CopyOutcome:
        """Roll the next segment of the partition of `task`, and `copy` it; a task without `roll` is just copied."""
        if task.roll is None:
            return copy(task)
        share = self._shares[task.metadata.topic_id_partition]
        with self._lock:
            if share.failure is not None:
                # Its log may be closed: another one would copy again what the tasks before this one copied.
                return CopyOutcome(task, None, left_out(share.failure))
            share.busy += 1
        failure: JobFailure | None = _UNEXPECTED
        try:
            outcome = self._roll_and_copy(task, task.roll, share, copy)
            failure = outcome.failure
        except (TieredStorageError, OSError) as error:
            failure = JobFailure.of(error)
            outcome = CopyOutcome(task, None, failure)
        finally:
            self._count(share, failure)
        return outcome

    def close(self) -> None:
        """Close all logs and connections, and remove the folders."""
        for share in self._shares.values():
            if share.opened is not None:
                share.opened.close()
        self._connections.close()

    def _roll_and_copy(
        self, task: CopyTask, order: RollOrder, share: _Share, copy: Callable[[CopyTask], CopyOutcome]
    ) -> CopyOutcome:
        client, buffer = self._connections.of_thread(task.metadata.topic_id_partition.cluster_id)
        opened = self._opened(task, order, share, client, buffer)
        self._drop_spares_beside(opened)
        with opened.lock:
            share.unrolled -= 1
            segment = opened.log.next_segment(client, buffer, self._fetched)
        if segment is None:
            return CopyOutcome(task, None, is_unused=True)
        whole = _known(task, segment)
        outcome = copy(whole)
        with opened.lock:
            changed = opened.log.why_changed(segment)
            opened.log.release(segment, is_reused=outcome.failure is None and share.unrolled > 0)
        if outcome.failure is not None and changed is not None:
            # The broker changed the file: report that in place of the copy's error.
            outcome = replace(outcome, failure=JobFailure.of(SourceClusterError(changed)))
        begun = whole.metadata
        rolled = RolledSegment(begun.start_offset, begun.end_offset, begun.size, begun.leader_epochs)
        return replace(outcome, task=task, rolled=rolled)

    def _opened(
        self, task: CopyTask, order: RollOrder, share: _Share, client: ClusterClient, buffer: FetchBuffer
    ) -> _OpenLog:
        if not order.rules.has_topic_id and share.after is not None and share.opened is None:
            # Outside of the lock: the leader may answer late, and other partitions continue meanwhile.
            _ensure_same_topic(share.after, order.from_offset, client, buffer, self._storage)
        with self._lock:
            if share.opened is None:
                share.opened = self._open(task, order, share.after)
            return share.opened

    def _open(self, task: CopyTask, order: RollOrder, after: RemoteLogSegmentMetadata | None) -> _OpenLog:
        rules = replace(order.rules, fetch_bytes=min(order.rules.fetch_bytes, self._window))
        wanted = RollRange(order.from_offset, task.metadata.end_offset + 1)
        # Before the folder: what this raises leaves none.
        known = self._producers(order, after) if rules.files is None else None
        folder = Path(tempfile.mkdtemp(prefix=_FOLDER))
        held = DirectoryLock.acquire(folder)
        place = RolledPartition(task.metadata.topic_id_partition, rules, folder, self._clock)
        log = (
            FetchedLog(place, wanted, known)
            if rules.files is None
            else LeaderLog(place, rules.files, wanted, partial(self._producers, order, after))
        )
        return _OpenLog(log, held)

    def _producers(
        self, order: RollOrder, after: RemoteLogSegmentMetadata | None
    ) -> tuple[ProducerSnapshotEntry, ...] | None:
        """Return the producers at the first offset of the range; None if they are unknown."""
        if order.from_offset == 0:
            return ()
        with suppress(RemoteObjectNotFoundError, EncryptionKeyError, CorruptLogError, RemoteObjectCorruptError):
            if after is not None and after.end_offset + 1 == order.from_offset:
                return self._producers_after(after)
            if order.truncated:
                *earlier, truncated = order.truncated
                known = self._producers_after(earlier[0]) if earlier else ()
                return _producers_at(order.from_offset, truncated, known, self._storage)
        return None

    def _producers_after(self, segment: RemoteLogSegmentMetadata) -> tuple[ProducerSnapshotEntry, ...]:
        return parse_producer_snapshot(
            self._storage.fetch_index(segment, IndexKind.PRODUCER_SNAPSHOT), f"the snapshot after {segment.segment_id}"
        )

    def _drop_spares_beside(self, opened: _OpenLog) -> None:
        """Remove the files that other logs keep for their next segments: this thread has left them for another one."""
        with self._lock:
            others = [share.opened for share in self._shares.values() if share.opened is not opened]
        for other in others:
            # Not under its lock, which a thread holds for as long as a broker takes to answer.
            if other is not None:
                other.log.drop_spare()

    def _count(self, share: _Share, failure: JobFailure | None) -> None:
        """Close the partition's log after its last task, or once one has failed: none of the later ones is begun."""
        with self._lock:
            share.left -= 1
            share.busy -= 1
            share.failure = share.failure or failure
            is_over = not share.left or (share.failure is not None and not share.busy)
            ended = share.opened if is_over else None
            if is_over:
                share.opened = None
        if ended is not None:
            ended.close()


def left_out(failure: JobFailure) -> JobFailure:
    """Return why a segment is not copied after `failure` of an earlier one of its partition."""
    message = f"left out because an earlier segment of the partition failed: {failure.message}"
    return JobFailure(failure.error, message, failure.retriable)


def _ensure_same_topic(
    before: RemoteLogSegmentMetadata,
    from_offset: int,
    client: ClusterClient,
    buffer: FetchBuffer,
    storage: RemoteStorageManager,
) -> None:
    """Raise ForkedLogError if the leader has another batch than the last one of `before` that precedes `from_offset`.

    Without topic ids, a topic that was deleted and created again has the same key. A later leader may have truncated
    the rest of the remote segment `before`. If the leader deleted the batch, or the remote one is damaged, nothing is
    compared.
    """
    partition, offset = before.topic_id_partition, min(before.end_offset, from_offset - 1)
    position = FetchPosition(partition.topic, partition.partition, offset, max_bytes=1)
    [found] = client.fetch([position], buffer).partitions
    if found.error_code == OFFSET_OUT_OF_RANGE:
        return
    if found.error is not None:
        raise found.error.as_exception()
    if len(found.records) < LEAST_BATCH_BYTES:
        raise SourceClusterError(f"{partition}: the leader sent no batch at offset {offset}: the next run asks again")
    ours = read_batch_header(found.records[:BATCH_OVERHEAD], source=str(partition))
    with suppress(RemoteObjectNotFoundError, EncryptionKeyError, CorruptLogError, RemoteObjectCorruptError):
        theirs = remote_batch(before, offset, storage)
        # A batch of a later epoch: its leader truncated the remote one, which the lineage decides about.
        if not is_same_batch(ours, theirs) and ours.partition_leader_epoch <= theirs.partition_leader_epoch:
            raise ForkedLogError(
                f"{partition}: at offset {offset} the brokers have another batch than the remote log, and they give "
                "the topic no id, so it was probably deleted and created again. Nothing of the partition is copied. "
                "Brokers whose inter.broker.protocol.version is 2.8 or later give topics ids: the new topic is then "
                "copied as another one"
            )


def _known(task: CopyTask, segment: LocalSegment) -> CopyTask:
    """Return `task` for a segment that lies in a file."""
    start, end = segment.base_offset, segment.base_offset if segment.end_offset is None else segment.end_offset
    metadata = replace(
        task.metadata,
        start_offset=start,
        end_offset=end,
        size=segment.size,
        leader_epochs=epochs_within(task.lineage, start, end),
    )
    return replace(
        task, metadata=metadata, location=segment.location, lineage=up_to(task.lineage, end), after=None, roll=None
    )


def _producers_at(
    offset: int,
    segment: RemoteLogSegmentMetadata,
    producers: tuple[ProducerSnapshotEntry, ...],
    storage: RemoteStorageManager,
) -> tuple[ProducerSnapshotEntry, ...] | None:
    """Return the producers at `offset` of a remote segment; `producers` are those at its start.

    Reads its batches up to there. None if `offset` lies within a batch. Raises as RemoteStorageManager does, and
    CorruptRecordError.
    """
    name = str(segment.segment_id)
    state = KnownProducers(segment.start_offset, producers).state()
    stream = BatchStream(name, segment.start_offset, segment.size)
    for piece in storage.fetch_log_segment(segment):
        for window, batches in stream.windows(piece):
            count = int(batches.last_offset.searchsorted(offset))
            if count:
                before = batches.rows(0, count)
                size = int(before.position[-1] + before.size[-1] - before.position[0])
                follow(state, name, window[:size], before)
            if count < len(batches):
                return state.snapshot() if int(batches.base_offset[count]) >= offset else None
    return state.snapshot()


def _remove_abandoned(parent: Path) -> None:
    """Remove the folders of processes that were killed: a live one holds the lock of each of its own."""
    for folder in parent.glob(f"{_FOLDER}*"):
        with suppress(OSError, InvalidLogDirectoryError):
            if time.time() - folder.stat().st_mtime > _ABANDONED_SECONDS:
                ensure_unlocked(folder)
                shutil.rmtree(folder, ignore_errors=True)
