"""RemoteLogManager: every operation on a remote log, over its open parts.

Copies are here; `deletions` deletes, `checks` audits, `repairs` repairs, `restores` restores. Operators, the command
line and tests call the same methods; each is documented where it is implemented. Modules are imported on the first
call, since a command needs few of them and its start takes as long as its imports.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Self

from tiered_storage.clock import BootClock, Clock, machine_boot_time
from tiered_storage.errors import (
    AmbiguousPartitionError,
    ForkedLogError,
    InvalidLogDirectoryError,
    RemoteStorageError,
    StoreMismatchError,
    UnknownPartitionError,
)
from tiered_storage.kafka_log.files.kafka_uuid import random_uuid
from tiered_storage.kafka_log.files.topic_partition import described_near, near_names
from tiered_storage.remote_log.context import RemoteLogContext
from tiered_storage.remote_log.model import Lease, TopicIdPartition
from tiered_storage.remote_log.selection import EVERYTHING, Selection
from tiered_storage.remote_log.source.opening import local_place, why_hidden
from tiered_storage.remote_log.source.partition_log import NamedPartition, UnreadablePartition, name_of
from tiered_storage.remote_log.storage.clients.options import ObjectStoreOptions
from tiered_storage.remote_log.storage.listable_storage import as_listable
from tiered_storage.settings.settings import Settings

if TYPE_CHECKING:
    from tiered_storage.remote_log.audit.checks import RemoteLogChecks
    from tiered_storage.remote_log.copy.job import CopyJob
    from tiered_storage.remote_log.copy.start import BegunCopy
    from tiered_storage.remote_log.copy.tasks import CommitReport, CopyOutcome, CopyPlan
    from tiered_storage.remote_log.model import Finding
    from tiered_storage.remote_log.read.chunks.fetch_deadline import ReadTiming
    from tiered_storage.remote_log.read.log_reader import RemoteLogReader
    from tiered_storage.remote_log.repair.repairs import RemoteLogRepairs
    from tiered_storage.remote_log.restore.plan import RemoteLogRestores
    from tiered_storage.remote_log.retention.deletions import RemoteLogDeletions
    from tiered_storage.remote_log.tables.exports import RemoteLogTables


@dataclass(frozen=True, slots=True)
class RemoteLogManager:
    """The operations on the remote log of `context`, which this closes at the end of a `with`, or by `close`."""

    context: RemoteLogContext

    @classmethod
    def open(
        cls,
        settings: Settings,
        clock: Clock,
        options: ObjectStoreOptions,
        *,
        create: bool = False,
        only_looks: bool = False,
        outdated: bool = False,
        boot_clock: BootClock = machine_boot_time,
        client_properties: Mapping[str, str] | None = None,
    ) -> Self:
        """Open all parts of a remote log; see RemoteLogContext.open, also for what it raises."""
        return cls(
            RemoteLogContext.open(
                settings,
                clock,
                options,
                create=create,
                only_looks=only_looks,
                outdated=outdated,
                boot_clock=boot_clock,
                client_properties=client_properties,
            )
        )

    @property
    def deletions(self) -> RemoteLogDeletions:
        """Everything that deletes, locally or remotely."""
        from tiered_storage.remote_log.retention.deletions import RemoteLogDeletions

        return RemoteLogDeletions(self.context)

    @property
    def checks(self) -> RemoteLogChecks:
        """Audits of the remote log."""
        from tiered_storage.remote_log.audit.checks import RemoteLogChecks

        return RemoteLogChecks(self.context)

    @property
    def repairs(self) -> RemoteLogRepairs:
        """Repairs of what an audit found."""
        from tiered_storage.remote_log.repair.repairs import RemoteLogRepairs

        return RemoteLogRepairs(self.context, self.deletions.permissions)

    @property
    def restores(self) -> RemoteLogRestores:
        """Restores of topics from the store."""
        from tiered_storage.remote_log.restore.plan import RemoteLogRestores

        return RemoteLogRestores(self.context)

    @property
    def tables(self) -> RemoteLogTables:
        """Topics as tables."""
        from tiered_storage.remote_log.tables.exports import RemoteLogTables

        return RemoteLogTables(self.context)

    def open_log_reader(self, timing: ReadTiming | None = None) -> RemoteLogReader:
        """Open a reader of both tiers for many reads at once; close it before this remote log.

        Put a BlockingLogReader around it if there is no event loop.
        """
        from tiered_storage.remote_log.read.log_reader import RemoteLogReader

        return RemoteLogReader(self.context, timing)

    def plan_copy(
        self, selection: Selection = EVERYTHING, window_end: int | None = None, max_segments: int | None = None
    ) -> CopyPlan:
        """Return what a copy run would do now; see plan_copy. Nothing of a forked log is due (see forked_copies)."""
        from tiered_storage.remote_log.copy.plan import CopySelection, plan_copy

        limit = max_segments or self.context.settings.copy_max_segments_per_run
        chosen = CopySelection(selection, window_end, limit, self.context.clock())
        # Raises OutdatedMetadataError; the copy reports a store that is out of reach.
        with suppress(RemoteStorageError, StoreMismatchError):
            self.context.guard.ensure_same()
        plan = plan_copy(self.context, chosen, self._why_no_name)
        return plan.without(self._forked(plan))

    def _forked(self, plan: CopyPlan) -> list[Finding]:
        planned = plan.by_partition
        if not planned or self.context.store.identity.bound_store_uuid() is None:
            return []
        from tiered_storage.remote_log.copy.forked_log import forked_copies
        from tiered_storage.remote_log.model import finding_of

        found: dict[TopicIdPartition, ForkedLogError | RemoteStorageError] = {}
        for some in (islice(planned, 1), islice(planned, 1, None)):
            found |= forked_copies({each: planned[each] for each in some}, self.context.segments, self.context.storage)
            # A copy reports a store that is out of reach; this does not wait for it per partition.
            if any(isinstance(error, RemoteStorageError) for error in found.values()):
                break
        return [finding_of(partition, error) for partition, error in found.items() if isinstance(error, ForkedLogError)]

    def _why_no_name(self, partition: TopicIdPartition) -> str | None:
        storage = as_listable(self.context.storage)
        return None if storage is None else storage.why_no_name(partition)

    def begin_copy(self, plan: CopyPlan, owner: str, new_segment_id: Callable[[], str] = random_uuid) -> BegunCopy:
        """Take leases, write COPY_SEGMENT_STARTED, and renew the generation; see begin_copy."""
        from tiered_storage.remote_log.copy.start import begin_copy
        from tiered_storage.remote_log.enabling.broker_limits import note_first_limits
        from tiered_storage.remote_log.retention.permission.clock_agreement import ClockAgreement

        self.context.bind_store()
        ClockAgreement.of(self.context).note()
        begun = begin_copy(plan, self.context, owner, new_segment_id)
        try:
            # Not before: a backup of the metadata that lacks these segments must be older than the store.
            if begun.tasks:
                self.context.guard.renew("a copy run")
                note_first_limits(self.context, (each.topic_id_partition for each in begun.leases))
        except BaseException:
            self.context.leases.release_many(begun.leases)
            raise
        return begun

    def write_copy_job(self, folder: str, begun: BegunCopy) -> CopyJob:
        """Write a job for `begun` into the work area."""
        from tiered_storage.remote_log.copy.job import CopyJob

        return CopyJob.write(self.context.work, folder, begun.tasks, self.context.settings)

    @contextmanager
    def held(self, begun: BegunCopy, is_wanted: Callable[[], bool] = lambda: True) -> Iterator[None]:
        """Renew the leases of `begun` during a `with` block, and release them at its end, however it ends.

        For callers that copy and commit in one go: the next run plans again what was not committed.
        """
        try:
            with self.keep_leases(begun.leases, is_wanted):
                yield
        finally:
            self.context.leases.release_many(begun.leases)

    def keep_leases(
        self, held: Iterable[Lease], is_wanted: Callable[[], bool] = lambda: True
    ) -> AbstractContextManager[None]:
        """Renew leases during a `with` block; see kept_alive."""
        from tiered_storage.remote_log.jobs.lease_keeper import kept_alive

        return kept_alive(self.context.leases, held, self.context.settings.lease_duration_ms, is_wanted)

    def commit_copy(self, outcomes: Iterable[CopyOutcome]) -> CommitReport:
        """Make finished copies visible; see commit_copy. Raises OutdatedMetadataError."""
        from tiered_storage.remote_log.copy.commit import commit_copy

        self.context.guard.ensure_may_decide()
        return commit_copy(outcomes, self.context)

    def find_partition(
        self,
        topic: str,
        partition: int,
        topic_id: str | None = None,
        seen: Sequence[TopicIdPartition] = (),
        *,
        whose_cluster_is_lost: bool = False,
        names_near: bool = False,
    ) -> TopicIdPartition:
        """Return the partition of that name: the local one, or else the remote one; only of `topic_id` if it is given.

        `seen` are remote partitions as of a moment ago: the metadata are asked only for what is not among them. With
        `whose_cluster_is_lost` a local partition without meta.properties is the remote one of its topic id. With
        `names_near`, an error names topics of nearly that name: only for users who may see all topics. Raises
        UnknownPartitionError if neither exists or a person deleted the only one, AmbiguousPartitionError if the
        source has several of that name or several incarnations of the topic are remote only, and
        InvalidLogDirectoryError if the only one is local and cannot be read.
        """
        segments, settings = self.context.segments, self.context.settings
        remote = _named(seen, topic, partition) or _named(segments.list_partitions(), topic, partition)
        found = self.context.source.named(topic, partition)
        unreadable = [one for one in found if isinstance(one, UnreadablePartition)]
        known = remote if whose_cluster_is_lost else ()
        local = {identified(one, known) for one in found if isinstance(one, NamedPartition)}
        if topic_id is not None:
            remote = [one for one in remote if one.topic_id == topic_id]
            local = set() if remote else {one for one in local if one.topic_id == topic_id}
        if len(local) > 1:
            raise AmbiguousPartitionError(
                f"{topic}-{partition} is in {local_place(settings)} more than once: {_incarnations(sorted(local))}"
            )
        if local:
            return local.pop()
        if not remote and unreadable:
            raise InvalidLogDirectoryError(unreadable[0].reason)
        if not remote:
            shown = f"{why_hidden(settings, topic)}'tiered-storage topics list' shows the known topics"
            if names_near and (near := near_names(topic, self._topics())):
                shown = f"{described_near(near)}: give the topic's exact name"
            raise UnknownPartitionError(
                f"{topic}-{partition} is neither in {local_place(settings)} nor in the remote log; {shown}"
            )
        if topic_id is None:
            remote = [one for one in remote if segments.partition_state(one).delete_state is None]
        if not remote:
            raise UnknownPartitionError(
                f"{topic}-{partition} is not in {local_place(settings)}, and everything remote of it was deleted "
                "by 'tiered-storage delete-topic', or will be by the next run of expire"
            )
        if len(remote) > 1:
            raise AmbiguousPartitionError(
                f"{topic}-{partition} had several incarnations, and none is local: {_incarnations(remote)}"
            )
        return remote[0]

    def _topics(self) -> Iterator[str]:
        """Yield the names of all known topics."""
        yield from (each.topic for each in self.context.segments.list_partitions())
        yield from (name_of(each)[0] for each in self.context.source.names())

    def fetch(self, topic: str, partition: int, offset: int) -> Iterator[bytes]:
        """Stream the remote bytes from the batch that holds `offset` to the end of its segment.

        The end is where a later leader truncated the segment, if one did. Raises as RemoteLogReader.batches.
        """
        return self._remote_bytes(self.find_partition(topic, partition), offset)

    def _remote_bytes(self, partition: TopicIdPartition, offset: int) -> Iterator[bytes]:
        from tiered_storage.remote_log.read.blocking_reader import BlockingLogReader
        from tiered_storage.remote_log.read.log_reader import RemoteLogReader

        with BlockingLogReader(RemoteLogReader(self.context, remote_only=True)) as reader:
            snapshot = reader.snapshot(partition)
            snapshot.check_range(offset)
            covered = snapshot.existing_remote_range(offset)
            for fetched in reader.batches(partition, offset, end_offset=covered.end_offset + 1):
                yield fetched.content

    def close(self) -> None:
        """Close all parts."""
        self.context.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _named(partitions: Iterable[TopicIdPartition], topic: str, number: int) -> list[TopicIdPartition]:
    return [one for one in partitions if (one.topic, one.partition) == (topic, number)]


def identified(local: NamedPartition, remote: Iterable[TopicIdPartition]) -> TopicIdPartition:
    """Return the id of `local`; that of the `remote` partition of its topic id, where its cluster's id was lost."""
    own = local.topic_id_partition
    lost = local.cluster_id_is_derived and not local.topic_id_is_derived
    return next((one for one in remote if lost and one.topic_id == own.topic_id), own)


def _incarnations(partitions: Sequence[TopicIdPartition]) -> str:
    return ", ".join(f"topic id {found.topic_id} of cluster {found.cluster_id}" for found in partitions)
