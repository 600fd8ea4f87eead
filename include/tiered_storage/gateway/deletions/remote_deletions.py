"""What clients deleted at the brokers is deleted from the remote log too, by the rules of every other deletion.

    DeleteRecords   the global log start moves to the offset, as by 'tiered-storage delete-records'
    DeleteTopics    what is remote of the topic's id is marked, as by 'tiered-storage delete-topic'

Permissions, the stop of all deletions, leases and the generation of the metadata decide here too. These calls block;
RemoteDeletions runs a few of them at once, and to their end even if the client that asked is gone.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

from tiered_storage.errors import (
    RemoteMetadataError,
    SourceClusterError,
    TieredStorageError,
    UnknownPartitionError,
)
from tiered_storage.gateway.operation.metrics import GatewayMetrics
from tiered_storage.remote_log.context import RemoteLogContext
from tiered_storage.remote_log.model import TopicIdPartition
from tiered_storage.remote_log.read.partition_snapshot import PartitionSnapshot, snapshot_partition
from tiered_storage.remote_log.retention.deletions import RemoteLogDeletions
from tiered_storage.remote_log.retention.expiry import ExpiryPlan
from tiered_storage.remote_log.source.partition_log import NamedPartition

_log = logging.getLogger(__name__)

AT_ONCE: Final = 2
"""Requests of all clients whose deletions run at the same time; further ones wait."""
_SHOWN_SECONDS: Final = 10.0
_LOOK_SECONDS: Final = 0.2
_RECORDS, _TOPICS = "DeleteRecords", "DeleteTopics"
Result = TypeVar("Result")

LogStart = int | TieredStorageError | None
"""A partition's first offset now, or why it did not move; None: nothing of it was ever remote."""


class RemoteDeletions:
    """The deletions of one process. For one event loop."""

    def __init__(self, context: RemoteLogContext, metrics: GatewayMetrics) -> None:
        """Delete from the remote log of `context`."""
        self._work = RemoteLogChanges(context)
        self._metrics = metrics
        self._threads = ThreadPoolExecutor(AT_ONCE, "gateway-deletion")
        self._running: set[asyncio.Future[Any]] = set()

    async def delete_records(self, wanted: Mapping[TopicIdPartition, int]) -> Mapping[TopicIdPartition, LogStart]:
        """Delete the remote records before an offset of each partition."""
        return await self._run(lambda: self._delete_records(wanted))

    async def delete_topic(self, topic: TopicIdPartition) -> None:
        """Mark what is remote of the topic of any of its partitions; what prevents it is logged."""
        await self._run(lambda: self._delete_topic(topic))

    def close(self) -> None:
        """Wait for what runs; what has not begun yet is left out."""
        self._threads.shutdown(cancel_futures=True)

    async def _run(self, work: Callable[[], Result]) -> Result:
        running = asyncio.get_running_loop().run_in_executor(self._threads, work)
        self._running.add(running)
        running.add_done_callback(self._running.discard)
        return await asyncio.shield(running)

    def _delete_records(self, wanted: Mapping[TopicIdPartition, int]) -> Mapping[TopicIdPartition, LogStart]:
        found = self._work.delete_records(wanted)
        for partition, log_start in found.items():
            if isinstance(log_start, TieredStorageError):
                self._left(
                    _RECORDS,
                    f"{partition}: a client deleted the records before offset {wanted[partition]} at the broker, and "
                    f"the remote ones stay: {log_start}",
                )
            elif log_start is not None:
                self._metrics.deletes_remotely(_RECORDS, "done")
        return found

    def _delete_topic(self, topic: TopicIdPartition) -> None:
        try:
            if self._work.delete_topic(topic):
                self._metrics.deletes_remotely(_TOPICS, "done")
        except TieredStorageError as error:
            self._left(
                _TOPICS,
                f"topic {topic.topic} ({topic.topic_id}): a client deleted it at the brokers, and its remote data "
                f"stay until 'tiered-storage delete-topic {topic.topic} --topic-id {topic.topic_id}' deletes them: "
                f"{error}",
            )

    def _left(self, api: str, message: str) -> None:
        self._metrics.deletes_remotely(api, "left")
        _log.error("%s", message)


class RemoteLogChanges:
    """Blocking deletions; threads may share it."""

    def __init__(self, context: RemoteLogContext, sleep: Callable[[float], None] = time.sleep) -> None:
        """Delete from the remote log of `context`; `sleep` waits for seconds."""
        self._context = context
        self._deletions = RemoteLogDeletions(context)
        self._sleep = sleep
        self._owner = f"tiered-storage gateway {socket.gethostname()}/{os.getpid()}"

    def delete_records(self, wanted: Mapping[TopicIdPartition, int]) -> dict[TopicIdPartition, LogStart]:
        """Move global log starts to the offsets of `wanted`, up to which brokers deleted, and mark what is below.

        Where the log begins at the offset or later already, nothing changes.
        """
        found: dict[TopicIdPartition, LogStart] = {}
        plans: list[ExpiryPlan] = []
        for partition, before in wanted.items():
            try:
                snapshot = self._snapshot(partition)
                if snapshot is None:
                    found[partition] = None
                    continue
                found[partition] = snapshot.log_start_offset
                if snapshot.log_start_offset < before or not snapshot.is_log_start_known:
                    plan = self._deletions.plan_record_deletion(partition, before)
                    plans.extend([] if plan is None else [plan])
            except (TieredStorageError, OSError) as error:
                found[partition] = _as_ours(error)
        if plans:
            found |= self._marked(plans)
        return found

    def delete_topic(self, topic: TopicIdPartition) -> bool:
        """Mark all that is remote of the topic's id; return whether there is anything.

        Raises as plan_topic_deletion and mark_topic_deleted, and RemoteMetadataError for partitions that are left.
        """
        segments = self._context.segments
        known = {*segments.partition_states(), *segments.list_partitions()}
        if not any((each.cluster_id, each.topic_id) == (topic.cluster_id, topic.topic_id) for each in known):
            return False
        self._wait_until_gone(topic)
        try:
            plan = self._deletions.plan_topic_deletion(topic.topic, topic.topic_id)
            _, left = self._deletions.mark_topic_deleted(plan, self._owner)
        except OSError as error:
            raise _as_ours(error) from error
        if left:
            raise RemoteMetadataError("; ".join(map(str, left)))
        return True

    def _snapshot(self, partition: TopicIdPartition) -> PartitionSnapshot | None:
        """Return what of the partition is in which tier; None if nothing of it is remote, and no copy may be under way.

        Raises what snapshot_partition raises.
        """
        context, segments = self._context, self._context.segments
        is_remote = segments.log_start_offset(partition) is not None or any(
            True for _ in segments.list_remote_log_segments(partition)
        )
        if not is_remote:
            topic = context.decided_topic(partition)
            if not (topic.remote_storage_enable and topic.remote_deletion_allowed):
                return None
        snapshot = snapshot_partition(partition, context.source, segments)
        if snapshot.local is None and not is_remote:
            return None
        if snapshot.local is None:
            raise UnknownPartitionError(
                f"{partition}: the brokers no longer have it under the topic id {partition.topic_id}"
            )
        return snapshot

    def _marked(self, plans: list[ExpiryPlan]) -> dict[TopicIdPartition, LogStart]:
        try:
            _, left = self._deletions.mark_expired(plans, self._owner)
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

    def _wait_until_gone(self, topic: TopicIdPartition) -> None:
        """Wait a little until the brokers that are asked have heard of the deletion, too."""
        for _ in range(round(_SHOWN_SECONDS / _LOOK_SECONDS)):
            shown = self._context.source.named(topic.topic, 0)
            if all(
                isinstance(each, NamedPartition) and each.topic_id_partition.topic_id != topic.topic_id
                for each in shown
            ):
                return
            self._sleep(_LOOK_SECONDS)


def _as_ours(error: TieredStorageError | OSError) -> TieredStorageError:
    return error if isinstance(error, TieredStorageError) else SourceClusterError(str(error))
