"""Local retention: delete closed local segments that are past their limit and safe in the remote tier.

KIP-405: local.retention.ms and local.retention.bytes. A segment is deleted, oldest first, only if finished remote
segments on the lineage hold every offset of it and the store still has their objects. Segments below our log start may
be the last copy. They are deleted without a remote copy if remote deletion is allowed too, and if their bytes are those
of deleted remote segments, or total retention expires them by the local log alone (expired_segments.py). Nothing is
deleted unless local deletion was allowed for the topic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from tiered_storage.errors import (
    OutdatedMetadataError,
    RemoteObjectCorruptError,
    RemoteObjectNotFoundError,
    TieredStorageError,
)
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.remote_log.context import RemoteLogContext
from tiered_storage.remote_log.copy.forked_log import ensure_same_batches
from tiered_storage.remote_log.copy.plan import Finding, finding_of
from tiered_storage.remote_log.copy.sent_records import is_same_file
from tiered_storage.remote_log.coverage import Coverage
from tiered_storage.remote_log.lineage import trusted_lineage
from tiered_storage.remote_log.metadata.manifest_sync import listed_partition
from tiered_storage.remote_log.metadata.remote_log_metadata_manager import RemoteLogMetadataManager
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata, TopicIdPartition
from tiered_storage.remote_log.progress import Amount, OnMoved, untold
from tiered_storage.remote_log.retention.gate.deletion_gate import (
    NO_GRACE,
    DeletionGate,
    DeletionKind,
    GraceTime,
    ensure_known_versions,
)
from tiered_storage.remote_log.retention.local.expired_segments import (
    ExpiredSegments,
    TotalRetention,
    ensure_sent,
    why_not_allowed,
    why_together,
    why_waiting,
)
from tiered_storage.remote_log.retention.local.trim_steps import STEP_BYTES, trim_steps
from tiered_storage.remote_log.source.opening import open_segment
from tiered_storage.remote_log.source.segment_source import (
    LocalSegment,
    PartitionLog,
    of_same_offsets,
    share_offsets,
)
from tiered_storage.remote_log.storage.listable_storage import ListableStorage
from tiered_storage.remote_log.storage.remote_storage_manager import IndexKind, RemoteStorageManager
from tiered_storage.settings.topics import TopicSettings


@dataclass(frozen=True, slots=True)
class LocalRetentionPlan:
    """The local segments of one partition that may be deleted, oldest first, and the remote ones that hold them.

    `held_back` is why a segment past its limit stays; if it `waits`, a later run deletes it without any action.
    `lineage` is the full lineage: it must be recorded before the local log forgets it. `now` (ms) is the time of the
    plan, `total` what total retention had expired by then.
    """

    topic_id_partition: TopicIdPartition
    segments: tuple[LocalSegment, ...]
    new_local_start: int
    held_by: tuple[RemoteLogSegmentMetadata, ...]
    held_back: str | None = None
    lineage: tuple[EpochEntry, ...] = ()
    now: int = 0
    total: TotalRetention = field(default_factory=TotalRetention)
    waits: bool = False

    @property
    def size(self) -> int:
        """The size of the segments in bytes."""
        return sum(segment.size for segment in self.segments)

    @property
    def is_held_whole(self) -> bool:
        """Whether the remote segments hold all of it, including what lies below our log start."""
        return all(segment.base_offset >= self.held_from for segment in self.segments)

    @property
    def held_from(self) -> int:
        """The offset from which on the remote segments hold all of it."""
        return min((segment.start_offset for segment in self.held_by), default=self.new_local_start)

    @property
    def looked_at(self) -> Amount:
        """What is checked before a deletion: all remote and local segments concerned."""
        return Amount.of(self.held_by) + Amount(len(self.segments), self.size)

    def start_in(self, current: LocalRetentionPlan) -> int:
        """Return the new log start if a `current` plan also applies: what only one of them lists stays.

        `held_by` of this plan was checked; what only other remote segments hold now stays too, and so do segments below
        it if total retention expires less now.
        """
        looked_at = {segment.segment_id for segment in self.held_by}
        start = self.segments[0].base_offset if self.segments else self.new_local_start
        sure_from = start if self.total.ends_no_more_than(current.total) else self.held_from
        for planned, due in zip(self.segments, current.segments, strict=False):
            end = planned.end_offset
            if planned != due or end is None or planned.base_offset < sure_from:
                break
            holders = [one for one in current.held_by if one.start_offset <= end and one.end_offset >= due.base_offset]
            if not all(holder.segment_id in looked_at for holder in holders):
                break
            start = end + 1
        return start

    def steps(self, step_bytes: int) -> Iterator[LocalRetentionPlan]:
        """Yield the plan in steps, each to be executed after the one before it; see trim_steps."""
        for going, held_by in trim_steps(self.segments, self.held_by, step_bytes, self.held_from):
            end = going[-1].end_offset
            start = self.new_local_start if going[-1] is self.segments[-1] or end is None else end + 1
            yield replace(self, segments=going, held_by=held_by, new_local_start=start)

    def up_to(self, new_local_start: int) -> LocalRetentionPlan:
        """Return the part of the plan up to a log start of `new_local_start`."""
        going = tuple(one for one in self.segments if one.end_offset is not None and one.end_offset < new_local_start)
        return replace(self, segments=going, new_local_start=new_local_start)


@dataclass(frozen=True, slots=True)
class LocalRetentionRun:
    """The work of one run of local retention, and the partitions that it could not examine."""

    plans: tuple[LocalRetentionPlan, ...]
    left_alone: tuple[Finding, ...] = ()


def amount_to_look_at(plans: Iterable[LocalRetentionPlan]) -> Amount:
    """Return what is checked before anything of `plans` is deleted."""
    return sum((plan.looked_at for plan in plans if plan.segments), Amount())


@dataclass(frozen=True, slots=True)
class LocalRetentionReport:
    """What was deleted, by partition, and the failures. `stopped` is why the run ended early."""

    trimmed: tuple[LocalRetentionPlan, ...]
    failures: tuple[Finding, ...]
    stopped: str | None = None


def plan_local_retention(
    log: PartitionLog,
    metadata: RemoteLogMetadataManager,
    settings: TopicSettings,
    now: int,
    max_segments: int | None = None,
    settled_before: int | None = None,
    grace: GraceTime = NO_GRACE,
) -> LocalRetentionPlan:
    """Return the closed segments of `log` that are past local retention at `now` (ms) and safe to delete.

    `max_segments` limits them to the oldest ones.

    `held_back` is why a segment past its limit in bytes, or below our log start, stays. The age of a segment that is
    not remote is unknown. Where our log start moved later than `settled_before` (ms; None: ever), a person may still
    undelete what fell below it until its `grace` time is over: it counts as if it had not moved. Nothing is deleted if
    all remote data of the partition are being deleted. Raises LineageContradictedError.
    """
    partition = log.topic_id_partition
    state = metadata.partition_state(partition)
    lineage = trusted_lineage(state.lineage, log)
    if state.delete_state is not None:
        return LocalRetentionPlan(
            partition,
            (),
            log.log_start_offset,
            (),
            "everything remote of this incarnation of the topic is deleted, or will be: what is local stays",
            lineage,
            now,
        )
    coverage = Coverage.of(metadata.list_remote_log_segments(partition), lineage)
    log_start = state.log_start_offset or 0
    # Expired segments may be the last copy: they need the right to delete remotely.
    settled = log_start if settled_before is None else state.log_start_before(settled_before + 1)
    needed_from = settled if settings.remote_deletion_allowed else 0
    held_from = min([needed_from, *(each.start_offset for each in islice(coverage.ranges_from(needed_from), 1))])
    expired = ExpiredSegments(log, metadata, held_from, TotalRetention.of(log, settings, now, held_from))
    excess = _excess(log, settings.local_retention_bytes)
    going: list[LocalSegment] = []
    held_by: dict[str, RemoteLogSegmentMetadata] = {}
    held_back, waits = None, False
    for segment in log.closed_segments:
        if len(going) == max_segments:
            break
        end_offset = segment.base_offset if segment.end_offset is None else segment.end_offset
        over_size = excess >= segment.size > 0
        is_expired = end_offset < needed_from
        holders = [] if end_offset < held_from else _holders(coverage, max(segment.base_offset, held_from), end_offset)
        if holders is None:
            below = segment.base_offset, min(end_offset, log_start - 1)
            if needed_from < log_start and _is_missing(coverage, max(segment.base_offset, needed_from), below[1]):
                waits = settings.remote_deletion_allowed
                until = grace.over_at(state.log_start_passed(below[1]))
                held_back = why_waiting(below, until) if waits else why_not_allowed(below)
            elif over_size:
                held_back = f"offsets {segment.base_offset} to {end_offset} are past local retention but not yet remote"
            break
        if not is_expired and not over_size and not _past(holders, settings.local_retention_ms, now):
            break
        if log.topic_id_is_derived and not any(of_same_offsets(holder, segment) for holder in holders):
            place = "lie below our log start" if is_expired else "are remote in segments with other boundaries"
            held_back = (
                f"offsets {segment.base_offset} to {end_offset} {place}, but without partition.metadata it is unknown "
                "whether they are of the same topic"
            )
            break
        held_back = expired.why_kept(segment, end_offset)
        if held_back is not None:
            break
        excess -= segment.size
        going.append(segment)
        held_by.update({holder.segment_id.id: holder for holder in holders})
    due, going = going, expired.comparable(going)
    if held_back is None and len(going) < len(due):
        waits = len(due) != max_segments
        if waits or not going:
            held_back = why_together(due[len(going) :], None if waits else max_segments)
    new_start = (going[-1].end_offset or 0) + 1 if going else log.log_start_offset
    return LocalRetentionPlan(
        partition, tuple(going), new_start, tuple(held_by.values()), held_back, lineage, now, expired.total, waits
    )


@dataclass(frozen=True, slots=True)
class LocalRetentionEnforcement:
    """Carries plans out.

    Before a directory is locked, for a broker may want to start there: the store shows every object that must hold what
    goes, with its size, and gives every byte of it back with `remote.log.verify.before.trim`; each local batch is
    compared with the remote one, or with the checksum of what was deleted; `keep_lineage` keeps what the local log is
    about to forget. Under the lock: `replan` plans the partition once more, as the metadata and the directory are by
    then, and the gate is asked; what both plans have in common goes. A large partition is trimmed in steps, each looked
    at right before it goes (trim_steps.py): what one did stays done, whatever becomes of the next. No lease is taken: a
    copy may hold one for hours, just when disks fill up, and what counts here are copies that ended.
    """

    context: RemoteLogContext
    gate: DeletionGate
    keep_lineage: Callable[[LocalRetentionPlan], None]
    replan: Callable[[LocalRetentionPlan], LocalRetentionPlan | None]
    on_moved: OnMoved = untold
    """Is called for each checked segment: a remote one that holds what is deleted, and a deleted local one."""

    def enforce(self, plans: Sequence[LocalRetentionPlan]) -> LocalRetentionReport:
        """Delete what `plans` list, as far as it is still due.

        A failure in one partition affects no other, unless its metadata are older than the store; the report lists it.
        Repeated runs change nothing. Raises DeletionRefusedError if a person stopped all deletions before the first; a
        later stop ends the run, and the report says so.
        """
        self.gate.ensure_running()
        trimmed: list[LocalRetentionPlan] = []
        failures: list[Finding] = []
        for plan in plans:
            if not plan.segments:
                continue
            stopped = self.gate.why_stopped()
            if stopped is not None:
                return LocalRetentionReport(tuple(trimmed), tuple(failures), stopped)
            reached = plan.segments[0].base_offset
            try:
                for part in plan.steps(STEP_BYTES):
                    reached = self._trim(part)
                    if reached < part.new_local_start:
                        break
            except OutdatedMetadataError as error:
                # They are an old backup: other copies and decisions since then are unknown.
                done = plan.up_to(reached)
                trimmed += [done] if done.segments else []
                return LocalRetentionReport(tuple(trimmed), tuple(failures), str(error))
            except (TieredStorageError, OSError) as error:
                failures.append(finding_of(plan.topic_id_partition, error))
            done = plan.up_to(reached)
            if done.segments:
                trimmed.append(done)
        return LocalRetentionReport(tuple(trimmed), tuple(failures))

    def _trim(self, plan: LocalRetentionPlan) -> int:
        """Delete the segments of `plan`, one step; return the new log start."""
        partition = plan.topic_id_partition
        self.gate.ensure(partition, DeletionKind.LOCAL)
        self._ensure_held(plan)
        self.keep_lineage(plan)

        def still_due() -> int:
            current = self.replan(plan)
            self.gate.ensure(partition, DeletionKind.LOCAL)
            return plan.segments[0].base_offset if current is None else plan.start_in(current)

        return self.context.source.local_trim.trim(partition, plan.segments, plan.new_local_start, still_due)

    def _ensure_held(self, plan: LocalRetentionPlan) -> None:
        verifies, storage = self.context.settings.remote_log_verify_before_trim, self.context.storage
        listed = listed_partition(plan.topic_id_partition, storage, self.context.segments)
        sizes = {found.name: found.size for found in listed}
        for segment in plan.held_by:
            if isinstance(storage, ListableStorage):
                _ensure_listed(segment, sizes, storage)
            if not verifies:
                ensure_present(segment, storage)
                self.on_moved(segment.size, 1)
        compared = [one for one in plan.segments if verifies or not is_same_file(one, plan.held_by, storage)]
        holders = [one for one in plan.held_by if any(share_offsets(one, local) for local in compared)]
        read = self._read_back if verifies else storage.fetch_log_segment
        ensure_same_batches(plan.topic_id_partition, compared, holders, plan.lineage, read)
        self._ensure_ended(plan)
        for local in plan.segments:
            self.on_moved(local.size, 1)

    def _ensure_ended(self, plan: LocalRetentionPlan) -> None:
        """Ensure that what nothing remote holds may be deleted without it; see expired_segments.py."""
        going = [
            one for one in plan.segments if one.base_offset < plan.held_from and open_segment(one.location).exists()
        ]
        unheld = [(one, min(plan.held_from, (one.end_offset or 0) + 1)) for one in going]
        needed = [(one.base_offset, below - 1) for one, below in unheld if not plan.total.ends(one, below)]
        if needed:
            ensure_sent(plan.topic_id_partition, going, needed, self.context.segments)

    def _read_back(self, segment: RemoteLogSegmentMetadata) -> Iterator[bytes]:
        yield from whole_pieces(segment, self.context.storage)
        self.on_moved(segment.size, 1)


def _ensure_listed(segment: RemoteLogSegmentMetadata, sizes: Mapping[str, int], storage: ListableStorage) -> None:
    for name, size in storage.expected_objects(segment).items():
        if name not in sizes:
            raise RemoteObjectNotFoundError(
                f"{name}: the store does not list it, and it must hold what would be trimmed"
            )
        if sizes[name] != size:
            raise RemoteObjectCorruptError(f"{name}: has {sizes[name]} bytes in the store, {size} were sent")


def ensure_present(segment: RemoteLogSegmentMetadata, storage: RemoteStorageManager) -> None:
    """Raise RemoteObjectNotFoundError or RemoteObjectCorruptError unless data and indexes of `segment` exist.

    Reads the manifest (checked) and the last byte of the data; `verify` reads everything. Raises LaterVersionError for
    an object that a later release wrote.
    """
    ensure_known_versions([segment], storage)
    storage.fetch_index(segment, IndexKind.MANIFEST)
    last = segment.size - 1
    if sum(len(chunk) for chunk in storage.fetch_log_segment(segment, last, last)) != 1:
        raise RemoteObjectCorruptError(f"{segment.segment_id}: the store shows fewer than its {segment.size} bytes")


def ensure_whole(
    segment: RemoteLogSegmentMetadata,
    storage: RemoteStorageManager,
    on_bytes: Callable[[int], object] = lambda _: None,
) -> None:
    """Raise RemoteObjectNotFoundError or RemoteObjectCorruptError unless every byte of `segment` is intact.

    Raises LaterVersionError for an object that a later release wrote. `on_bytes` is called with the size of each piece.
    """
    if isinstance(storage, ListableStorage):
        storage.verify(segment, on_bytes)
        return
    for piece in whole_pieces(segment, storage):
        on_bytes(len(piece))


def whole_pieces(segment: RemoteLogSegmentMetadata, storage: RemoteStorageManager) -> Iterator[bytes]:
    """Stream the data of `segment`, checked as by `ensure_whole`; the last piece comes only after all checks."""
    if isinstance(storage, ListableStorage):
        yield from storage.verified(segment)
        return
    storage.fetch_index(segment, IndexKind.MANIFEST)
    yield from storage.fetch_log_segment(segment)


def _holders(coverage: Coverage, start_offset: int, end_offset: int) -> list[RemoteLogSegmentMetadata] | None:
    held = coverage.holding(start_offset, end_offset)
    return None if held is None else [covered.segment for covered in held]


def _is_missing(coverage: Coverage, start_offset: int, end_offset: int) -> bool:
    return start_offset <= end_offset and coverage.holding(start_offset, end_offset) is None


def _excess(log: PartitionLog, limit: int) -> int:
    """Return how many bytes the local log has beyond `limit`; negative: no limit."""
    return sum(segment.size for segment in log.segments) - limit if limit >= 0 else 0


def _past(holders: Sequence[RemoteLogSegmentMetadata], limit_ms: int, now: int) -> bool:
    """Return whether the largest record timestamp is over `limit_ms` old; False without timestamps."""
    largest = max(holder.max_timestamp for holder in holders)
    return limit_ms >= 0 and largest >= 0 and largest + limit_ms < now
