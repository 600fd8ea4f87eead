"""What clients deleted at the brokers is deleted from the remote log too, by the rules of every other deletion.

    DeleteRecords   the global log start moves to the offset, as by 'tiered-storage delete-records'
    DeleteTopics    what is remote of the topic's id is marked, as by 'tiered-storage delete-topic'

Permissions, the stop of all deletions, leases and the generation of the metadata decide here too. These calls block.
RemoteDeletions runs a few of them at once, and completes what has begun even if the client has disconnected. What stays
remotely is always logged and counted.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final, TypeVar

from tiered_storage.errors import (
    RemoteMetadataError,
    SourceClusterError,
    TieredStorageError,
    UnknownPartitionError,
)
from tiered_storage.gateway.operation.metrics import GatewayMetrics
from tiered_storage.kafka_log.files.kafka_uuid import random_uuid
from tiered_storage.remote_log.context import RemoteLogContext
from tiered_storage.remote_log.model import TopicIdPartition
from tiered_storage.remote_log.read.partition_snapshot import PartitionSnapshot, snapshot_partition
from tiered_storage.remote_log.retention.deletions import RemoteLogDeletions
from tiered_storage.remote_log.retention.expiry import ExpiryPlan
from tiered_storage.remote_log.source.partition_log import NamedPartition

_log = logging.getLogger(__name__)

AT_ONCE: Final = 2
"""Requests of all clients whose deletions run at the same time; further ones wait."""
MOST_WAITING: Final = 100
"""Requests of all clients whose deletions run or wait."""
_SHOWN_SECONDS: Final = 10.0
_CHECK_SECONDS: Final = 0.2
_RECORDS, _TOPICS = "DeleteRecords", "DeleteTopics"
_TOO_MANY: Final = "too many deletions wait in this gateway"
_ENDING: Final = "the gateway ends"
Result = TypeVar("Result")

LogStart = int | TieredStorageError | None
"""A partition's first offset now, or why it did not move; None: nothing of it was ever remote."""


class RemoteDeletions:
    """The deletions of one process. For one event loop."""

    def __init__(self, context: RemoteLogContext, metrics: GatewayMetrics) -> None:
        """Delete from the remote log of `context`."""
        self._is_ending = threading.Event()
        self._work = RemoteLogChanges(context, self._is_ending)
        self._metrics = metrics
        self._threads = ThreadPoolExecutor(AT_ONCE, "gateway-deletion")
        self._running: set[Future[Any]] = set()

    async def delete_records(self, wanted: Mapping[TopicIdPartition, int]) -> Mapping[TopicIdPartition, LogStart]:
        """Delete the remote records before an offset of each partition.

        If the caller is cancelled before it is their turn, they stay.
        """
        running = self._submit(lambda: self._delete_records(wanted), lambda why: self._left_records(wanted, why))
        if running is None:
            return dict.fromkeys(wanted, RemoteMetadataError(_TOO_MANY))
        return await asyncio.wrap_future(running)

    async def delete_topics(self, topics: Sequence[TopicIdPartition]) -> None:
        """Mark what is remote of topics, each by any of its partitions; what prevents it is logged."""
        running = self._submit(lambda: self._delete_topics(topics), lambda why: self._left_topics(topics, why))
        if running is not None:
            # It is logged.
            with suppress(TieredStorageError, OSError):
                await asyncio.shield(asyncio.wrap_future(running))

    def lose_sight(self, topics: Collection[str], why: str) -> None:
        """Log which of `topics` (names or ids), whose deletion at the brokers is unclear, have remote data."""
        self._submit(
            lambda: self._left_topics(self._work.remote(topics), f"{why}: run it if the topic is gone"),
            lambda reason: self._left(_TOPICS, f"topics {', '.join(sorted(topics))}: {why}; {reason}"),
        )

    def close(self) -> None:
        """Wait for what runs, which ends soon; what has not begun yet stays."""
        self._is_ending.set()
        self._threads.shutdown(cancel_futures=True)

    def _submit(self, work: Callable[[], Result], on_left: Callable[[str], object]) -> Future[Result] | None:
        """Begin `work` once it is its turn; call `on_left` with the reason if that never comes, and return None."""
        if len(self._running) >= MOST_WAITING:
            on_left(_TOO_MANY)
            return None
        try:
            running = self._threads.submit(work)
        except RuntimeError:
            on_left(_ENDING)
            return None
        self._running.add(running)

        def ended(done: Future[Result]) -> None:
            self._running.discard(done)
            if done.cancelled():
                on_left("it was not its turn in time")
            elif (error := done.exception()) is not None:
                on_left(str(error))

        running.add_done_callback(ended)
        return running

    def _delete_records(self, wanted: Mapping[TopicIdPartition, int]) -> Mapping[TopicIdPartition, LogStart]:
        found = self._work.delete_records(wanted)
        for partition, log_start in found.items():
            if isinstance(log_start, TieredStorageError):
                self._left_records({partition: wanted[partition]}, str(log_start))
            elif log_start is not None:
                self._metrics.deletes_remotely(_RECORDS, "done")
        return found

    def _delete_topics(self, topics: Sequence[TopicIdPartition]) -> None:
        for topic, outcome in self._work.delete_topics(topics).items():
            if outcome is None:
                self._metrics.deletes_remotely(_TOPICS, "done")
            else:
                self._left_topics([topic], str(outcome))

    def _left_records(self, wanted: Mapping[TopicIdPartition, int], why: str) -> None:
        for partition, before in wanted.items():
            self._left(
                _RECORDS,
                f"{partition}: a client deleted the records before offset {before} at the broker, and the remote ones "
                f"stay: {why}",
            )

    def _left_topics(self, topics: Sequence[TopicIdPartition], why: str) -> None:
        for each in topics:
            self._left(
                _TOPICS,
                f"topic {each.topic} ({each.topic_id}): a client deleted it at the brokers, and its remote data stay "
                f"until 'tiered-storage delete-topic {each.topic} --topic-id {each.topic_id}' deletes them: {why}",
            )

    def _left(self, api: str, message: str) -> None:
        self._metrics.deletes_remotely(api, "left")
        _log.error("%s", message)


class RemoteLogChanges:
    """Blocking deletions; threads may share it."""

    def __init__(
        self,
        context: RemoteLogContext,
        is_ending: threading.Event | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Delete from the remote log of `context`, until `is_ending` is set; `sleep` waits for seconds."""
        self._context = context
        self._is_ending = is_ending or threading.Event()
        self._deletions = RemoteLogDeletions(context)
        self._sleep = sleep

    def delete_records(self, wanted: Mapping[TopicIdPartition, int]) -> dict[TopicIdPartition, LogStart]:
        """Move global log starts to the offsets of `wanted`, up to which brokers deleted, and mark what is below.

        Where the log begins at the offset or later already, nothing changes.
        """
        found: dict[TopicIdPartition, LogStart] = {}
        plans: list[ExpiryPlan] = []
        for partition, before in wanted.items():
            try:
                self._ensure_not_ending()
                snapshot = self._snapshot(partition)
                if snapshot is None:
                    found[partition] = None
                    continue
                found[partition] = snapshot.log_start_offset
                if snapshot.log_start_offset < before or not snapshot.is_log_start_known:
                    plan = self._deletions.plan_record_deletion(partition, before, snapshot)
                    plans.extend([] if plan is None else [plan])
            except (TieredStorageError, OSError) as error:
                found[partition] = _as_ours(error)
        if plans:
            found |= self._marked(plans)
        return found

    def delete_topics(self, topics: Sequence[TopicIdPartition]) -> dict[TopicIdPartition, TieredStorageError | None]:
        """Mark all that is remote of the topics' ids; return those that have something, with what prevents it or None.

        Raises RemoteMetadataError if the metadata cannot be read.
        """
        known = self._remote_topics()
        wanted = [each for each in topics if (each.cluster_id, each.topic_id) in known]
        found: dict[TopicIdPartition, TieredStorageError | None] = {}
        checks = round(_SHOWN_SECONDS / _CHECK_SECONDS)
        for topic in wanted:
            try:
                checks = self._wait_until_gone(topic, checks)
                self._ensure_not_ending()
                self._mark(topic)
                found[topic] = None
            except (TieredStorageError, OSError) as error:
                found[topic] = _as_ours(error)
        return found

    def remote(self, topics: Collection[str]) -> list[TopicIdPartition]:
        """Return a partition of each topic with one of these names or ids that has remote data not marked yet."""
        return [each for each in self._remote_topics().values() if each.topic in topics or each.topic_id in topics]

    def _remote_topics(self) -> dict[tuple[str, str], TopicIdPartition]:
        """Return a partition of each topic with remote data that are not being deleted, by its cluster and id."""
        states = self._context.segments.partition_states()
        return {
            (each.cluster_id, each.topic_id): each
            for each in (*states, *self._context.segments.list_partitions())
            if each not in states or states[each].delete_state is None
        }

    def _mark(self, topic: TopicIdPartition) -> None:
        """Mark a topic. Raises as plan_topic_deletion and mark_topic_deleted, RemoteMetadataError for what is left."""
        plan = self._deletions.plan_topic_deletion(topic.topic, topic.topic_id)
        _, left = self._deletions.mark_topic_deleted(plan, self._owner())
        if left:
            raise RemoteMetadataError("; ".join(map(str, left)))

    def _owner(self) -> str:
        """Return the owner of one run's leases: two threads never share one."""
        return f"tiered-storage gateway {socket.gethostname()}/{os.getpid()} {random_uuid()}"

    def _ensure_not_ending(self) -> None:
        if self._is_ending.is_set():
            raise RemoteMetadataError(_ENDING)

    def _snapshot(self, partition: TopicIdPartition) -> PartitionSnapshot | None:
        """Return what of the partition is in which tier; None if nothing of it is remote, and no copy is under way.

        Raises what snapshot_partition raises.
        """
        segments = self._context.segments
        if segments.log_start_offset(partition) is None and not any(
            True for _ in segments.list_remote_log_segments(partition)
        ):
            return None
        snapshot = snapshot_partition(partition, self._context.source, segments)
        if snapshot.local is None:
            raise UnknownPartitionError(
                f"{partition}: the brokers no longer have it under the topic id {partition.topic_id}"
            )
        return snapshot

    def _marked(self, plans: list[ExpiryPlan]) -> dict[TopicIdPartition, LogStart]:
        try:
            _, left = self._deletions.mark_expired(plans, self._owner())
        except (TieredStorageError, OSError) as error:
            return dict.fromkeys((plan.topic_id_partition for plan in plans), _as_ours(error))
        found: dict[TopicIdPartition, LogStart] = {}
        for plan in plans:
            partition = plan.topic_id_partition
            # Segments may wait to be marked; readers see nothing below the log start.
            start = self._context.segments.log_start_offset(partition) or 0
            why = "; ".join(each.reason for each in left if each.partition == str(partition))
            is_done = start >= plan.new_log_start
            found[partition] = start if is_done else RemoteMetadataError(why or "another run works on the partition")
        return found

    def _wait_until_gone(self, topic: TopicIdPartition, checks: int) -> int:
        """Wait a little until the brokers that are asked have heard of the deletion, too.

        Check `checks` times at most, and return how many are left for further topics.
        """
        for left in range(checks, 0, -1):
            shown = self._context.source.named(topic.topic, 0)
            if self._is_ending.is_set() or all(
                isinstance(each, NamedPartition) and each.topic_id_partition.topic_id != topic.topic_id
                for each in shown
            ):
                return left
            self._sleep(_CHECK_SECONDS)
        return 1


def _as_ours(error: TieredStorageError | OSError) -> TieredStorageError:
    return error if isinstance(error, TieredStorageError) else SourceClusterError(str(error))
