"""Topics as tables: plans, and exports to Parquet."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace

from tiered_storage.errors import ConfigurationError, LeaseHeldError, RemoteObjectCorruptError
from tiered_storage.remote_log.context import RemoteLogContext
from tiered_storage.remote_log.jobs.lease_keeper import kept_alive
from tiered_storage.remote_log.jobs.throttle import fetch_quota
from tiered_storage.remote_log.metadata.remote_log_metadata_manager import Leases
from tiered_storage.remote_log.model import Lease, TopicIdPartition
from tiered_storage.remote_log.storage.clients.opening import open_object_client
from tiered_storage.remote_log.tables.export_commit import IntervalCommit
from tiered_storage.remote_log.tables.export_job import (
    ExportJob,
    ExportOutcome,
    ExportRequest,
    ExportTask,
    export_tasks,
)
from tiered_storage.remote_log.tables.late_data import LateIntervals, find_late, first_timestamp
from tiered_storage.remote_log.tables.layout import (
    FORMAT_VERSION,
    ExportedTable,
    ExportManifest,
    TableFolder,
)
from tiered_storage.remote_log.tables.overwrite_guard import OverwriteGuard, missing_among
from tiered_storage.remote_log.tables.planning import TablePlan, plan_table, unknown_partitions
from tiered_storage.remote_log.tables.query import TableQuery

USUAL_DISORDER_MS = 3_600_000
"""How much earlier (ms) than the first record of its batch a record may be and still be exported."""

WAIT_SECONDS = 120.0
"""How long a commit waits for that of another interval of the same table; then it fails, and a retry continues."""


@dataclass(frozen=True, slots=True)
class ExportReport:
    """The result of an export. Nothing is committed if there are `failures`; `changed` is whether any file changed.

    If `kept` is set, nothing was exported: it names records that the earlier export has and the remote log has lost.
    """

    place: str
    changed: bool
    files: int
    rows: int
    size: int
    dead_letters: int
    not_reached: tuple[int, ...]
    failures: tuple[ExportOutcome, ...] = ()
    kept: str | None = None


@dataclass(frozen=True, slots=True)
class BegunExport:
    """One attempt at an export, under its lease."""

    context: RemoteLogContext
    request: ExportRequest
    plan: TablePlan
    tasks: tuple[ExportTask, ...]
    commitment: IntervalCommit
    owner: str
    earlier: ExportManifest | None = None

    @property
    def kept(self) -> str | None:
        """Why the interval stays as an earlier export left it; None: it is exported."""
        return None if self.earlier is None else OverwriteGuard(self.earlier, self.plan).expired

    @property
    def not_reached(self) -> tuple[int, ...]:
        """The partitions whose readable part ends within the interval: more of it may come later."""
        rows = self.request.table_query.rows
        return tuple(each.topic_id_partition.partition for each in self.plan.partitions if not each.has_all(rows))

    def write_job(self, folder: str) -> ExportJob:
        """Write the job into the work area."""
        return ExportJob.write(
            self.context.work,
            folder,
            self.tasks,
            export_url=self.request.url,
            export_folder=self.commitment.attempt_folder,
            rows=self.request.table_query.rows,
            codec=self.request.codec,
            quota=fetch_quota(self.context.settings),
        )

    def commit(self, outcomes: Sequence[ExportOutcome]) -> ExportReport:
        """Commit the files of all blocks; if `outcomes` has a failure, change nothing.

        Raises LeaseLostError if another attempt took over, and what the store raises.
        """
        place = self.commitment.place
        if self.earlier is not None and (kept := self.kept) is not None:
            files, letters = self.earlier.files, self.earlier.dead_letters
            rows, size = sum(file.rows for file in files), sum(file.size for file in files)
            return ExportReport(place, False, len(files), rows, size, letters, self.not_reached, kept=kept)
        failures = tuple(outcome for outcome in outcomes if outcome.failure is not None)
        if failures:
            return ExportReport(place, False, 0, 0, 0, 0, self.not_reached, failures)
        exported = sorted((file for outcome in outcomes for file in outcome.files), key=lambda file: file.name)
        broken = sorted(
            {each for outcome in outcomes for each in outcome.broken},
            key=lambda each: (each.partition, each.first_offset, each.object, each.position),
        )
        query = self.request.table_query
        manifest = ExportManifest(
            FORMAT_VERSION,
            self.request.interval.begin,
            self.request.interval.end,
            self.request.codec,
            query.rows.committed_only,
            query.rows.disorder_ms,
            tuple(exported),
            len(broken),
            self.not_reached,
            tuple(each.topic_id_partition.partition for each in self.plan.partitions),
            allow_gaps=self.request.allow_gaps,
        )
        manifest = replace(manifest, missing=missing_among(manifest, self.plan))
        with self._table_lease() as still_ours:
            changed = replace(self.commitment, still_ours=still_ours).commit(manifest, self.plan, broken)
        rows, size = sum(file.rows for file in exported), sum(file.size for file in exported)
        return ExportReport(place, changed, len(exported), rows, size, len(broken), self.not_reached)

    @contextmanager
    def _table_lease(self) -> Iterator[Callable[[], None]]:
        """Hold the lease on the whole table, so that no other attempt commits an overlapping interval meanwhile.

        Waits for it. Yields a check of both leases. Raises LeaseHeldError after WAIT_SECONDS.
        """
        leases, duration = self.context.leases, self.context.settings.lease_duration_ms
        name = _lease_name(self.commitment.folder, self.commitment.folder.place)
        lease = _acquired(leases, name, self.owner, duration)

        def still_ours() -> None:
            leases.check(lease)
            self.commitment.still_ours()

        try:
            with kept_alive(leases, [lease], duration):
                yield still_ours
        finally:
            leases.release(lease)


@dataclass(frozen=True, slots=True)
class RemoteLogTables:
    """Tables over an open `context`; each method is documented where it is implemented."""

    context: RemoteLogContext

    def plan(self, query: TableQuery) -> TablePlan:
        """Return what `query` reads from the store; see plan_table."""
        return plan_table(self.context.segments, self.context.storage, query)

    def late_intervals(self, request: ExportRequest, plan: TablePlan) -> LateIntervals:
        """Return which other intervals of the table of `request` may lack records; `plan` is that of `request`.

        Changes nothing. Returns none if nothing was exported there yet. Raises what the store raises.
        """
        with closing(open_object_client(request.url, self.context.options)) as client:
            folder = TableFolder(client, _table_of(request, plan))
            if not folder.is_ours():
                return LateIntervals()
            segments, storage = self.context.segments, self.context.storage
            return find_late(folder, plan, request, lambda each: first_timestamp(segments, storage, each))

    @contextmanager
    def export(self, request: ExportRequest, owner: str) -> Iterator[BegunExport]:
        """Begin an export for a `with`, under a lease of `owner` on the interval's folder.

        A later attempt of the same owner takes over. Raises ConfigurationError for an unknown topic or partition or a
        folder of another table, RemoteObjectNotFoundError for missing offsets, LeaseHeldError.
        """
        plan = self._planned(request)
        leases, duration = self.context.leases, self.context.settings.lease_duration_ms
        with closing(open_object_client(request.url, self.context.options)) as client:
            folder = TableFolder(client, _table_of(request, plan))
            folder.claim()
            place = f"{folder.place}/{request.interval.folder}"
            lease = leases.acquire(_lease_name(folder, place), owner, duration)
            try:
                with kept_alive(leases, [lease], duration):
                    commitment = IntervalCommit(
                        folder, request.interval, lease.fencing_number, lambda: leases.check(lease)
                    )
                    commitment.begin()
                    earlier = folder.manifest(request.interval)
                    if earlier is not None:
                        # Another run may have exported later copies between the plan and the lease.
                        plan = self._planned(request)
                    tasks = tuple(export_tasks(plan.ranges(), request.block_offsets))
                    begun = BegunExport(self.context, request, plan, tasks, commitment, owner, earlier)
                    if earlier is not None and begun.kept is not None:
                        begun = replace(begun, tasks=())
                        _ensure_whole(commitment, earlier, begun.kept)
                    yield begun
            finally:
                leases.release(lease)

    def _planned(self, request: ExportRequest) -> TablePlan:
        plan = self.plan(request.table_query)
        if unknown := unknown_partitions(plan):
            raise ConfigurationError(
                f"{request.query.topic}: nothing was ever copied of its partitions {', '.join(map(str, unknown))}; "
                "'tiered-storage topics list' shows what is known"
            )
        if not request.allow_gaps:
            plan.ensure_no_gaps()
        return plan


def _table_of(request: ExportRequest, plan: TablePlan) -> ExportedTable:
    return ExportedTable(FORMAT_VERSION, plan.cluster_id, request.query.topic, plan.topic_id)


def _ensure_whole(commitment: IntervalCommit, earlier: ExportManifest, kept: str | None) -> None:
    if not commitment.is_whole(earlier):
        raise RemoteObjectCorruptError(
            f"{commitment.place} is incomplete, and an export cannot complete it: {kept}. Copy its intact files "
            "elsewhere, then remove the folder: the next export writes it from the records that are left"
        )


def _acquired(leases: Leases, name: TopicIdPartition, owner: str, duration_ms: int) -> Lease:
    """Take a lease; wait for it at most WAIT_SECONDS. Raises LeaseHeldError."""
    end = time.monotonic() + WAIT_SECONDS
    while True:
        try:
            return leases.acquire(name, owner, duration_ms)
        except LeaseHeldError:
            if time.monotonic() >= end:
                raise
            time.sleep(0.5)


def _lease_name(folder: TableFolder, place: str) -> TopicIdPartition:
    """Return a made-up partition that stands for `place`, because leases are on partitions."""
    digest = hashlib.sha256(place.encode()).hexdigest()[:22]
    return TopicIdPartition(folder.table.cluster_id, f"export-{digest}", 0, f"the export to {place}")
