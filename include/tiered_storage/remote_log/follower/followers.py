"""Followers of several partitions in one log directory, which take turns: what a service follows with.

    followers = Followers.open(context, root, node_id)
    RemoteLogService(remote_log, owner, follow=followers, unfollow=followers.release)

A turn ends when the follower has caught up and has the remote log's index, or after TURN_SECONDS. A follower stays open
between its turns until it is released; each thread has connections and a buffer of its own, for whichever follower's
turn it is. So a leader that hangs holds up one thread, for CALL_SECONDS a call, and neither copies nor other followers.
What a follower reports is logged once, until it changes or is gone.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Self

from tiered_storage.errors import ConfigurationError, TieredStorageError
from tiered_storage.kafka_wire.cluster import ClusterClient
from tiered_storage.kafka_wire.connections.error_codes import PartitionError
from tiered_storage.kafka_wire.fetch import FetchAnswer, FetchBuffer, FetchLimits, FetchPosition
from tiered_storage.kafka_wire.fetch_layout import EpochEnd
from tiered_storage.kafka_wire.metadata import TopicPartition
from tiered_storage.remote_log.context import RemoteLogContext
from tiered_storage.remote_log.follower.followed_directory import FollowedDirectory
from tiered_storage.remote_log.follower.follower import Follower, ensure_may_follow_into
from tiered_storage.remote_log.follower.partition_follower import Leader
from tiered_storage.remote_log.model import Finding, TopicIdPartition
from tiered_storage.remote_log.source.fetch_source import open_fetch_source
from tiered_storage.remote_log.source.segment_source import SegmentSource

_log = logging.getLogger(__name__)

TURN_SECONDS: Final = 10.0
CALL_SECONDS: Final = 30.0
"""For one call to the cluster, as Kafka's replica.socket.timeout.ms."""


class Followers:
    """Followers in one directory, from whichever threads: one partition is in one of them at a time.

    Local segments are deleted as `follow` deletes them, but only if scheduled.deletion.enable is true.
    """

    def __init__(
        self,
        context: RemoteLogContext,
        directory: FollowedDirectory,
        leader: Leader,
        is_wanted: Callable[[], bool] = lambda: True,
        now: Callable[[], float] = time.monotonic,
        source: Callable[[], SegmentSource] | None = None,
    ) -> None:
        """Use `open`. A turn ends early once `is_wanted` returns False; `now` is in seconds.

        `source` returns what this thread looks at leaders with; None: the source of `context`.
        """
        self._context = context
        self._source = source or (lambda: context.source)
        self._directory = directory
        self._leader = leader
        self._is_wanted = is_wanted
        self._now = now
        self._lock = threading.Lock()
        self._open: dict[TopicIdPartition, Follower] = {}
        self._found: dict[TopicIdPartition, frozenset[Finding]] = {}

    @classmethod
    def open(
        cls, context: RemoteLogContext, root: Path, node_id: int, is_wanted: Callable[[], bool] = lambda: True
    ) -> Self:
        """Lock `root`, which is made if it is new, then of the node `node_id`; follow nothing yet.

        Raises ConfigurationError as Follower.open, SourceClusterError, and as FollowedDirectory.open.
        """
        ensure_may_follow_into(root, context)
        access = context.source.access
        cluster_id = context.settings.cluster_id or _cluster_id(access)
        directory = FollowedDirectory.open(root, cluster_id, context.clock, node_id)
        clients = _ThreadsClients(
            access, cluster_id, lambda: open_fetch_source(context.settings, access, call_seconds=CALL_SECONDS)
        )
        return cls(context, directory, clients, is_wanted, source=clients.source)

    def __call__(self, partition: TopicIdPartition) -> bool:
        """Follow `partition` for one turn; return whether its leader, or the remote log's index, has more.

        After an error that no retry helps with, its log is recovered at the next turn. Raises as Follower.step and
        Follower.maintain.
        """
        try:
            follower = self._follower(partition)
            has_more = self._turn(follower)
        except TieredStorageError as error:
            if not error.retriable:
                self._abandon(partition)
            raise
        except BaseException:
            self._abandon(partition)
            raise
        found = frozenset(follower.findings)
        for each in sorted(found - self._found.get(partition, frozenset()), key=str):
            _log.warning("%s", each)
        self._found[partition] = found
        return has_more

    def release(self, partition: TopicIdPartition) -> None:
        """Write the partition's log to disk and close it, if it is open; a later turn opens it again.

        No turn of it may be under way. Raises as LocalLog.close: then the log is closed all the same, and a later turn
        recovers it.
        """
        with self._lock:
            follower = self._open.pop(partition, None)
        self._found.pop(partition, None)
        if follower is not None:
            self._directory.close_log(partition)

    def close(self) -> None:
        """Write everything to disk, and release the directory. No turn may be under way."""
        try:
            self._directory.close()
        finally:
            if isinstance(self._leader, _ThreadsClients):
                self._leader.close()

    def _turn(self, follower: Follower) -> bool:
        until = self._now() + TURN_SECONDS

        def goes_on() -> bool:
            return self._is_wanted() and self._now() < until

        follower.look()
        while self._is_wanted():
            follower.step()
            if follower.has_caught_up or not goes_on():
                break
        if not self._is_wanted():
            # No store or broker that hangs may hold the end up.
            follower.write_checkpoints()
            return True
        is_indexed = follower.maintain(goes_on)
        return not (follower.has_caught_up and is_indexed)

    def _follower(self, partition: TopicIdPartition) -> Follower:
        with self._lock:
            found = self._open.get(partition)
        source = self._source()
        if found is None:
            context, deletes = replace(self._context, source=source), self._context.settings.scheduled_deletion_enable
            found = Follower(context, partition, self._directory, self._leader, deletes=deletes)
            with self._lock:
                self._open[partition] = found
        found.look_by(source)
        return found

    def _abandon(self, partition: TopicIdPartition) -> None:
        with self._lock:
            self._open.pop(partition, None)
        self._directory.abandon_log(partition)


def _cluster_id(access: Mapping[str, str]) -> str:
    """Ask the cluster for its id. Raises SourceClusterError, and ConfigurationError if it has none."""
    with ClusterClient.by_properties(access) as client:
        found = client.metadata(()).cluster_id
    if found is None:
        raise ConfigurationError("the cluster has no id: set cluster.id")
    return found


@dataclass(slots=True)
class _OfThread:
    client: ClusterClient
    buffer: FetchBuffer
    source: SegmentSource


class _ThreadsClients:
    """The leaders of the cluster, asked by a client of each thread's own."""

    def __init__(self, access: Mapping[str, str], cluster_id: str, opens: Callable[[], SegmentSource]) -> None:
        self._access = access
        self._cluster_id = cluster_id
        self._opens = opens
        self._lock = threading.Lock()
        self._by_thread: dict[int, _OfThread] = {}

    def fetch(
        self, positions: Sequence[FetchPosition], buffer: FetchBuffer, limits: FetchLimits | None = None
    ) -> FetchAnswer:
        """As ClusterClient. Waits for no records, and uses a buffer for all that this thread follows."""
        own = self._own(buffer.most)
        at_once = replace(limits or FetchLimits(), max_wait_seconds=0.0)
        return own.client.fetch(positions, own.buffer, at_once, seconds=CALL_SECONDS)

    def offsets_for_leader_epochs(
        self, wanted: Mapping[TopicPartition, int]
    ) -> Mapping[TopicPartition, EpochEnd | PartitionError]:
        """As ClusterClient."""
        return self._own(0).client.offsets_for_leader_epochs(wanted, seconds=CALL_SECONDS)

    def source(self) -> SegmentSource:
        """Return the source of this thread's own: others wait while a thread asks with a shared one."""
        return self._own(0).source

    def close(self) -> None:
        """Close all connections."""
        for each in self._by_thread.values():
            each.client.close()
            each.source.close()

    def _own(self, most: int) -> _OfThread:
        with self._lock:
            own = self._by_thread.get(threading.get_ident())
            if own is None:
                client = ClusterClient.by_properties(self._access, self._cluster_id)
                own = self._by_thread[threading.get_ident()] = _OfThread(client, FetchBuffer(most), self._opens())
        own.buffer.most = max(own.buffer.most, most)
        return own
