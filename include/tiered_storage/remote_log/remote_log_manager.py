"""RemoteLogManager: everything that is done with a remote log, over its open parts.

Operators, the command line and tests call the same methods; what each does is said where it is implemented.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import dataclass, replace
from typing import Self

from tiered_storage.clock import Clock
from tiered_storage.errors import ConfigurationError, TieredStorageError
from tiered_storage.kafka_log.kafka_uuid import random_uuid
from tiered_storage.remote_log.audit import AuditReport, audit_remote_log
from tiered_storage.remote_log.copy_job import CopyJob
from tiered_storage.remote_log.copy_messages import CopyOutcome
from tiered_storage.remote_log.copy_plan import CopyPlan, CopySelection, Finding, plan_copy
from tiered_storage.remote_log.copy_run import BegunCopy, CommitReport, begin_copy, commit_copy
from tiered_storage.remote_log.copy_worker import options_of
from tiered_storage.remote_log.expiry import DeletionReport, ExpiryPlan, delete_marked, mark_expired, plan_expiry
from tiered_storage.remote_log.lease_keeper import kept_alive
from tiered_storage.remote_log.local_retention import (
    LocalRetentionPlan,
    LocalRetentionReport,
    enforce_local_retention,
    plan_local_retention,
)
from tiered_storage.remote_log.log_directory_source import LogDirectorySource
from tiered_storage.remote_log.log_directory_trim import LogDirectoryTrim
from tiered_storage.remote_log.metadata import Leases, RemoteLogMetadataManager, Topic, Topics
from tiered_storage.remote_log.metadata.sql_store import SqlMetadataStore, open_metadata_store
from tiered_storage.remote_log.model import Lease, TopicIdPartition
from tiered_storage.remote_log.reader import TieredReader
from tiered_storage.remote_log.segment_source import PartitionLog, UnreadablePartition
from tiered_storage.remote_log.storage import RemoteStorageManager
from tiered_storage.remote_log.storage.object_client import ObjectStoreOptions
from tiered_storage.remote_log.storage.opening import load_remote_storage_manager, open_object_client
from tiered_storage.remote_log.storage.segment_objects import ObjectRemoteStorageManager
from tiered_storage.remote_log.topic_decision import decide, decided_topic, is_wanted
from tiered_storage.remote_log.work_area import WorkArea
from tiered_storage.settings import Settings
from tiered_storage.topic_settings import effective


def store_options(settings: Settings, environ: Mapping[str, str] = os.environ) -> ObjectStoreOptions:
    """Return how to reach the object store: the settings, and for secrets and what they leave out `environ` (AWS_*)."""
    given = options_of(environ)
    return replace(
        given,
        endpoint=settings.rsm_config_endpoint or given.endpoint,
        region=settings.rsm_config_region or given.region,
        allow_http=settings.rsm_config_allow_http,
    )


def open_storage(settings: Settings, options: ObjectStoreOptions) -> RemoteStorageManager:
    """Open the RemoteStorageManager that the settings name; the caller closes it."""
    return load_remote_storage_manager(settings.remote_log_storage_manager_class_name, settings.rsm_config_url, options)


def open_work_area(settings: Settings, options: ObjectStoreOptions) -> WorkArea:
    """Open the work area; the caller closes it."""
    return WorkArea(settings.work_url, open_object_client(settings.work_url, options))


def open_metadata(settings: Settings, clock: Clock) -> SqlMetadataStore:
    """Open the metadata store that the settings name; the caller closes it."""
    return open_metadata_store(
        settings.rlmm_config_url.get_secret_value(), clock, busy_timeout_ms=settings.metadata_busy_timeout_ms
    )


@dataclass(frozen=True, slots=True)
class RemoteLogManager:
    """A remote log with everything it works on, open until the end of a `with`, or `close`."""

    settings: Settings
    clock: Clock
    options: ObjectStoreOptions
    store: SqlMetadataStore
    storage: RemoteStorageManager
    work: WorkArea
    source: LogDirectorySource

    @classmethod
    def open(cls, settings: Settings, clock: Clock, options: ObjectStoreOptions) -> Self:
        """Open all parts; what was opened is closed again where a later one fails."""
        with ExitStack() as opened:
            store = opened.enter_context(open_metadata(settings, clock))
            storage = opened.enter_context(closing(open_storage(settings, options)))
            work = open_work_area(settings, options)
            opened.pop_all()
        source = LogDirectorySource(settings.log_dirs, settings.cluster_id, settings.log_end_is_stable)
        return cls(settings, clock, options, store, storage, work, source)

    @property
    def segments(self) -> RemoteLogMetadataManager:
        """The metadata of remote segments."""
        return self.store.segments

    @property
    def leases(self) -> Leases:
        """Who may change which partition."""
        return self.store.leases

    @property
    def topics(self) -> Topics:
        """What was decided for each topic."""
        return self.store.topics

    @property
    def reader(self) -> TieredReader:
        """Reads records of both tiers."""
        return TieredReader(self.source, self.segments, self.storage)

    def plan_copy(self, topics: str = ".*", window_end: int | None = None, max_segments: int | None = None) -> CopyPlan:
        """Return what a copy run would do now; see plan_copy."""
        limit = max_segments or self.settings.copy_max_segments_per_run
        selection = CopySelection(topics, window_end, limit)
        return plan_copy(self.source, self.segments, self.topics, self.settings, selection)

    def check_topics(self, topics: str) -> CopySelection:
        """Return the selection of `topics`. Raises ConfigurationError where it is no regular expression."""
        selection = CopySelection(topics)
        selection.matches("")
        return selection

    def bind_store(self) -> None:
        """Make sure that store and metadata carry one another's UUID; a store of nobody's is marked as ours.

        Raises StoreMismatchError. A user's own RemoteStorageManager answers for its store itself.
        """
        if not isinstance(self.storage, ObjectRemoteStorageManager):
            return
        identity = self.store.identity
        uuid = self.storage.ensure_identity(identity.metadata_uuid, identity.bound_store_uuid())
        identity.bind_store(uuid)

    def begin_copy(self, plan: CopyPlan, owner: str, new_segment_id: Callable[[], str] = random_uuid) -> BegunCopy:
        """Take leases and write COPY_SEGMENT_STARTED; see begin_copy."""
        self.bind_store()
        return begin_copy(
            plan,
            self.segments,
            self.leases,
            owner=owner,
            lease_duration_ms=self.settings.lease_duration_ms,
            clock=self.clock,
            new_segment_id=new_segment_id,
        )

    def write_copy_job(self, folder: str, begun: BegunCopy) -> CopyJob:
        """Lay a job for `begun` out in the work area."""
        return CopyJob.write(self.work, folder, begun.tasks, self.settings, self.options)

    def keep_leases(self, held: Iterable[Lease]) -> AbstractContextManager[None]:
        """Prolong leases while a `with` block runs; see kept_alive."""
        return kept_alive(self.leases, held, self.settings.lease_duration_ms)

    def commit_copy(self, outcomes: Iterable[CopyOutcome]) -> CommitReport:
        """Make finished copies visible; see commit_copy."""
        return commit_copy(outcomes, self.source, self.segments, self.leases, self.clock)

    def plan_local_retention(
        self, topics: str, now: int, partitions: Collection[str] | None = None
    ) -> tuple[list[LocalRetentionPlan], list[Finding]]:
        """Return what local retention would remove at `now` (ms), and the partitions that cannot be looked at.

        Only topics that are enabled, and where local deletion is allowed. `partitions` (names such as orders-0) narrows
        it further.
        """
        selection = self.check_topics(topics)
        plans: list[LocalRetentionPlan] = []
        unreadable: list[Finding] = []
        for log in self.source.partitions():
            if isinstance(log, UnreadablePartition):
                name, topic = log.partition, log.topic
            else:
                name, topic = str(log.topic_id_partition), log.topic_id_partition.topic
            if not selection.matches(topic) or (partitions is not None and name not in partitions):
                continue
            if isinstance(log, UnreadablePartition):
                if is_wanted(topic, self.topics, self.settings):
                    unreadable.append(Finding(name, log.reason))
                continue
            try:
                decision = decide(log, self.topics, self.settings)
            except TieredStorageError as error:
                unreadable.append(Finding(name, str(error)))
                continue
            if decision.trims:
                plans.append(plan_local_retention(log, self.segments, decision.settings, now))
        return plans, unreadable

    def enforce_local_retention(self, plans: Sequence[LocalRetentionPlan]) -> LocalRetentionReport:
        """Remove what `plans` name; see enforce_local_retention."""
        self.bind_store()
        return enforce_local_retention(plans, LogDirectoryTrim(), self.storage)

    def plan_expiry(self, topics: str, now: int) -> tuple[list[ExpiryPlan], list[Finding]]:
        """Return what total retention would end at `now` (ms), and the partitions that nothing can be said of.

        Only topics where remote deletion is allowed. A partition whose local log is there and cannot be read is left
        alone: it may hold what a later leader wrote.
        """
        selection = self.check_topics(topics)
        plans: list[ExpiryPlan] = []
        unreadable: list[Finding] = []
        for partition in self.segments.list_partitions():
            if not selection.matches(partition.topic):
                continue
            try:
                plan = self._plan_expiry_of(partition, now)
            except TieredStorageError as error:
                unreadable.append(Finding(str(partition), str(error)))
                continue
            if plan is not None:
                plans.append(plan)
        return plans, unreadable

    def _plan_expiry_of(self, partition: TopicIdPartition, now: int) -> ExpiryPlan | None:
        topic = self._decided_topic(partition)
        if not topic.remote_deletion_allowed:
            return None
        resolved = effective(topic, self.settings)
        local = self.source.partition(partition) if self.settings.log_dirs else None
        return plan_expiry(partition, self.segments, resolved, now, local)

    def _still_due(self, plan: ExpiryPlan) -> ExpiryPlan | None:
        """Return `plan` as far as the decisions and settings of this moment still want it."""
        if not self._may_delete(plan.topic_id_partition):
            return None
        if (self.segments.log_start_offset(plan.topic_id_partition) or 0) >= plan.new_log_start:
            return plan
        current = self._plan_expiry_of(plan.topic_id_partition, plan.now)
        return plan if current is not None and current.new_log_start >= plan.new_log_start else current

    def mark_expired(
        self, plans: Iterable[ExpiryPlan], owner: str
    ) -> tuple[tuple[TopicIdPartition, ...], tuple[Finding, ...]]:
        """Move our log starts and mark what lies below; see mark_expired.

        A plan may be old: nothing goes that the decisions and settings of this moment would keep.
        """
        self.bind_store()
        still_due: list[ExpiryPlan] = []
        unreadable: list[Finding] = []
        for plan in plans:
            try:
                current = self._still_due(plan)
            except TieredStorageError as error:
                unreadable.append(Finding(str(plan.topic_id_partition), str(error)))
                continue
            if current is not None:
                still_due.append(current)
        done, left = mark_expired(
            still_due,
            self.segments,
            self.leases,
            owner=owner,
            lease_duration_ms=self.settings.lease_duration_ms,
            clock=self.clock,
        )
        return done, (*unreadable, *left)

    def delete_marked(self, owner: str, topics: str = ".*") -> DeletionReport:
        """Delete the objects of every marked segment; see delete_marked."""
        selection = self.check_topics(topics)
        self.bind_store()
        return delete_marked(
            [partition for partition in self.segments.list_partitions() if selection.matches(partition.topic)],
            self.segments,
            self.leases,
            self.storage,
            owner=owner,
            lease_duration_ms=self.settings.lease_duration_ms,
            grace_ms=self.settings.remote_log_orphan_grace_ms,
            clock=self.clock,
            may_delete=self._may_delete,
        )

    def audit(self, topics: str = ".*", *, deep: bool = False) -> AuditReport:
        """Hold the store against the metadata; see audit_remote_log."""
        selection = self.check_topics(topics)
        if not isinstance(self.storage, ObjectRemoteStorageManager):
            raise ConfigurationError(
                f"{type(self.storage).__name__} cannot be audited: only the stores of "
                "tiered_storage.remote_log.storage.segment_objects list what they hold"
            )
        return audit_remote_log(
            self.segments,
            self.storage,
            selection,
            self.clock,
            grace_ms=self.settings.remote_log_orphan_grace_ms,
            deep=deep,
        )

    def find_partition(self, topic: str, partition: int) -> TopicIdPartition:
        """Return the partition of that name: the local one, or else the remote one.

        Raises ConfigurationError where neither exists, or where several lives of the topic are remote only.
        """
        for log in self.source.partitions() if self.settings.log_dirs else ():
            if isinstance(log, PartitionLog) and _is_named(log.topic_id_partition, topic, partition):
                return log.topic_id_partition
        remote = [found for found in self.segments.list_partitions() if _is_named(found, topic, partition)]
        if not remote:
            raise ConfigurationError(
                f"{topic}-{partition} is neither in log.dirs nor in the remote log; "
                "'tiered-storage topics list' shows what there is"
            )
        if len(remote) > 1:
            ids = ", ".join(found.topic_id for found in remote)
            raise ConfigurationError(f"{topic}-{partition} had several lives, and none is local: topic ids {ids}")
        return remote[0]

    def fetch(self, topic: str, partition: int, offset: int) -> Iterator[bytes]:
        """Stream the remote bytes from the batch that holds `offset` to the end of its segment."""
        return self.reader.fetch_remote(self.find_partition(topic, partition), offset)

    def _decided_topic(self, partition: TopicIdPartition) -> Topic:
        return decided_topic(partition.cluster_id, partition.topic_id, partition.topic, self.topics, self.settings)

    def _may_delete(self, partition: TopicIdPartition) -> bool:
        return self._decided_topic(partition).remote_deletion_allowed

    def close(self) -> None:
        """Close all parts."""
        self.work.close()
        self.storage.close()
        self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _is_named(partition: TopicIdPartition, topic: str, number: int) -> bool:
    return (partition.topic, partition.partition) == (topic, number)
