"""Plan a repair of what an audit found, and list what is left to a person and why.

Nothing is guessed: a damaged segment is copied again only if the local log, or sound remote segments, hold every offset
of it; an unreferenced object is deleted only if the metadata have its segment as deleted. Planning changes nothing: the
plan IS the dry run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tiered_storage.remote_log.audit.report import DAMAGES, Anomaly, AnomalyKind, AuditReport
from tiered_storage.remote_log.copy.tasks import CopyPlan, PlannedSegment
from tiered_storage.remote_log.coverage import Coverage, finished
from tiered_storage.remote_log.model import Finding, PartitionState, RemoteLogSegmentMetadata, TopicIdPartition


@dataclass(frozen=True, slots=True)
class RemotePartition:
    """One partition in the metadata: all its live segments, and its state."""

    segments: tuple[RemoteLogSegmentMetadata, ...]
    state: PartitionState


@dataclass(frozen=True, slots=True)
class Leftovers:
    """Orphans of a partition, by object name, that copies and deletions of ours left."""

    topic_id_partition: TopicIdPartition
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RepairPlan:
    """What to copy again, which damaged segments that replaces, which orphans to delete, and what a person must decide.

    `unfinished` are uncommitted copies that are complete and that no other segment covers, as they will be after the
    repair. `without_indexes` are damaged segments whose data are sound: their indexes are rebuilt. `replaced` also has
    damaged segments that other sound ones cover: they are only deleted. `damaged` are the ids of all damaged segments
    in the audit, including those that stay: none of them can replace another. `documents` are the partitions whose
    document in the store is written again from the metadata.
    """

    copies: CopyPlan
    replaced: tuple[RemoteLogSegmentMetadata, ...]
    leftovers: tuple[Leftovers, ...]
    advice: tuple[Finding, ...]
    damaged: frozenset[str] = frozenset()
    unfinished: tuple[RemoteLogSegmentMetadata, ...] = ()
    documents: tuple[TopicIdPartition, ...] = ()
    without_indexes: tuple[RemoteLogSegmentMetadata, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to repair."""
        copies = self.copies.segments or self.unfinished or self.without_indexes
        return not copies and not self.replaced and not self.leftovers and not self.documents


def damaged_ids(report: AuditReport) -> frozenset[str]:
    """Return the ids of the segments with objects that lack or changed what was sent, or cannot be decrypted."""
    return frozenset(each.segment_id for each in report.anomalies if each.kind in DAMAGES and each.segment_id)


def plan_repair(
    report: AuditReport,
    partitions: Mapping[TopicIdPartition, RemotePartition],
    copyable: CopyPlan,
    unfinished: Sequence[RemoteLogSegmentMetadata] = (),
    *,
    has_lost_indexes: Callable[[RemoteLogSegmentMetadata], bool] = lambda _: False,
    why_other_records: Callable[[RemoteLogSegmentMetadata, Coverage], str | None] = lambda *_: None,
) -> RepairPlan:
    """Return the repair plan for `report`.

    `partitions` are those in its anomalies. `copyable` is what a copy could do if the damaged segments did not count
    (see plan_copy, replacing); only what repairs something is taken from it. `unfinished` can be committed (see
    UncommittedSegments). `has_lost_indexes` returns whether a damaged segment may have lost only its indexes;
    `why_other_records` returns why sound remote segments cannot replace a damaged one (see sent_records.py).
    """
    by_partition: dict[TopicIdPartition, list[PlannedSegment]] = defaultdict(list)
    for planned in copyable.segments:
        by_partition[planned.topic_id_partition].append(planned)
    copies: list[PlannedSegment] = []
    replaced: list[RemoteLogSegmentMetadata] = []
    without_indexes: list[RemoteLogSegmentMetadata] = []
    advice: list[Finding] = []
    keyless = {each.segment_id: each.message for each in report.anomalies if each.kind is AnomalyKind.MISSING_KEY}
    outdated = {each.partition: each for each in report.anomalies if each.kind is AnomalyKind.OUTDATED_METADATA}
    advice.extend(Finding(each.what, f"{each.kind.value}: {each.message}") for each in outdated.values())
    for partition, known in sorted(partitions.items()):
        if partition in outdated:
            continue
        waiting = [segment for segment in unfinished if segment.topic_id_partition == partition]
        repair = _PartitionRepair(partition, known, by_partition[partition], damaged_ids(report), waiting)
        for segment in repair.damaged:
            differs = why_other_records(segment, repair.sound) if repair.can_replace(segment) else None
            if differs is None and repair.can_replace(segment):
                replaced.append(segment)
            elif has_lost_indexes(segment):
                without_indexes.append(segment)
            else:
                advice.append(repair.why_not(segment, differs, keyless.get(segment.segment_id.id)))
        gaps = [each for each in report.anomalies if each.kind is AnomalyKind.GAP and each.partition == partition]
        advice.extend(repair.why_not_filled(gap) for gap in gaps if not repair.can_fill(gap))
        copies.extend(repair.copies(gaps, replaced))
    advice.extend(_advice_on_others(report.anomalies, replaced))
    plan = replace(copyable, segments=tuple(copies), replacing=frozenset(each.segment_id.id for each in replaced))
    if report.omitted and replaced:
        advice.append(_why_none_ends(report, len(replaced)))
        replaced = []
    leftovers = tuple(each for each in _leftovers(report.anomalies) if each.topic_id_partition not in outdated)
    finishing = tuple(each for each in unfinished if each.topic_id_partition not in outdated)
    broken = {each.partition for each in report.anomalies if each.partition and each.is_of_a_document}
    documents = tuple(sorted(broken - set(outdated)))
    return RepairPlan(
        plan,
        tuple(replaced),
        leftovers,
        tuple(advice),
        damaged_ids(report),
        finishing,
        documents,
        tuple(without_indexes),
    )


class _PartitionRepair:
    """One partition: what is damaged, and which ranges of offsets (inclusive) could replace it."""

    def __init__(
        self,
        partition: TopicIdPartition,
        known: RemotePartition,
        planned: Sequence[PlannedSegment],
        damaged: frozenset[str],
        unfinished: Sequence[RemoteLogSegmentMetadata],
    ) -> None:
        self._partition = partition
        self._planned = planned
        self._log_start = known.state.log_start_offset or 0
        self.damaged = [segment for segment in finished(known.segments) if segment.segment_id.id in damaged]
        sound = [segment for segment in known.segments if segment.segment_id.id not in damaged]
        lineage = planned[-1].lineage if planned else known.state.lineage
        self.sound = Coverage.of(sound, lineage)
        held = [(covered.start_offset, covered.end_offset) for covered in self.sound.ranges]
        self._held = [*held, *((each.base_offset, each.end_offset) for each in planned)]
        # Not among the replacements: they are not verified yet.
        self._waiting = [(each.start_offset, each.end_offset) for each in unfinished]

    def can_replace(self, segment: RemoteLogSegmentMetadata) -> bool:
        return is_held(segment.start_offset, segment.end_offset, self._log_start, self._held)

    def can_fill(self, gap: Anomaly) -> bool:
        return gap.offsets is not None and is_held(*gap.offsets, self._log_start, [*self._held, *self._waiting])

    def copies(
        self, gaps: Iterable[Anomaly], replaced: Collection[RemoteLogSegmentMetadata]
    ) -> Iterator[PlannedSegment]:
        """Yield the planned segments that replace one of `replaced` or fill a gap, each once, in order."""
        ranges = [(each.start_offset, each.end_offset) for each in self.damaged if each in replaced]
        ranges += [gap.offsets for gap in gaps if gap.offsets is not None and self.can_fill(gap)]
        for planned in self._planned:
            if any(start <= planned.end_offset and planned.base_offset <= end for start, end in ranges):
                yield planned

    def why_not(self, segment: RemoteLogSegmentMetadata, differs: str | None, no_key: str | None) -> Finding:
        where = " and no longer in the local log" if differs is None else f" and not the same elsewhere ({differs})"
        if no_key is not None:
            offsets = f"offsets {segment.start_offset} to {segment.end_offset} cannot be decrypted{where}"
            return Finding(str(self._partition), f"{offsets}: {no_key}")
        message = (
            f"offsets {segment.start_offset} to {segment.end_offset} are damaged in the store ({segment.segment_id.id})"
            f"{where}: {self._what_to_do(segment.end_offset)}"
        )
        return Finding(str(self._partition), message)

    def why_not_filled(self, gap: Anomaly) -> Finding:
        end = gap.offsets[1] if gap.offsets else -1
        return Finding(str(self._partition), f"{gap.message}, nor in the local log: {self._what_to_do(end)}")

    def _what_to_do(self, end_offset: int) -> str:
        return (
            "restore the objects from a backup or from a version in the store, or name the log directory of another "
            "replica in log.dirs (of a running cluster: let that replica lead the partition) and repair again; or give "
            f"up everything before offset {end_offset + 1}: the global log start then moves at your command "
            "('tiered-storage delete-records' with --give-up)"
        )


def is_held(start: int, end: int, log_start: int, ranges: Iterable[tuple[int, int]]) -> bool:
    """Return whether `ranges` (ends inclusive, in any order) together hold `start` to `end`, from `log_start` on."""
    reached = max(start, log_start)
    for first, last in sorted(ranges):
        if first > reached:
            break
        reached = max(reached, last + 1)
    return reached > end


def _why_none_ends(report: AuditReport, count: int) -> Finding:
    message = (
        f"{count} damaged segments stay for now: the audit lists only {len(report.anomalies)} of "
        f"{report.anomaly_count} anomalies, so it is unknown which others are sound; repair fewer topics at once"
    )
    return Finding("", message)


def _is_of(segment: RemoteLogSegmentMetadata, overlap: Anomaly) -> bool:
    """Return whether `overlap` involves, or may involve, `segment` and a replacement for it."""
    if overlap.offsets is None or overlap.partition != segment.topic_id_partition:
        return False
    return segment.start_offset <= overlap.offsets[1] and overlap.offsets[0] <= segment.end_offset


def _leftovers(anomalies: Iterable[Anomaly]) -> Iterator[Leftovers]:
    names: dict[TopicIdPartition, list[str]] = defaultdict(list)
    for anomaly in anomalies:
        if anomaly.is_leftover and anomaly.partition is not None:
            names[anomaly.partition].append(anomaly.what)
    for partition, of_partition in sorted(names.items()):
        yield Leftovers(partition, tuple(sorted(of_partition)))


def _advice_on_others(anomalies: Iterable[Anomaly], replaced: Sequence[RemoteLogSegmentMetadata]) -> Iterator[Finding]:
    """Yield advice on what no repair does: sound duplicates, and objects that may not be ours."""
    unknown: dict[str, list[Anomaly]] = defaultdict(list)
    for anomaly in anomalies:
        if anomaly.kind is AnomalyKind.OVERLAP:
            if any(_is_of(segment, anomaly) for segment in replaced):
                continue
            message = f"{anomaly.message}: readers get one of them; 'tiered-storage expire' deletes the other"
            yield Finding(anomaly.what, message)
        elif anomaly.kind is AnomalyKind.UNREFERENCED_OBJECT and not anomaly.is_leftover:
            unknown["" if anomaly.partition is None else str(anomaly.partition)].append(anomaly)
    for partition, of_partition in unknown.items():
        first = of_partition[0]
        message = f"{len(of_partition)} objects are left alone, the first is {first.what}: {first.message}"
        yield Finding(partition, message)
