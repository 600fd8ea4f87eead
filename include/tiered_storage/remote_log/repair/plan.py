"""What a repair would do about what an audit found, and what it leaves to a person and why.

Nothing is guessed: a damaged segment is copied again only where the local log, or sound remote segments beside it, hold
every offset of it; what nothing refers to goes only where the metadata know that it was deleted. Planning changes
nothing: the plan IS the dry run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tiered_storage.remote_log.audit.report import DAMAGES, Anomaly, AnomalyKind, AuditReport
from tiered_storage.remote_log.copy.plan import CopyPlan, Finding, PlannedSegment
from tiered_storage.remote_log.coverage import Coverage, finished
from tiered_storage.remote_log.model import PartitionState, RemoteLogSegmentMetadata, TopicIdPartition


@dataclass(frozen=True, slots=True)
class RemotePartition:
    """What the metadata know of one partition: all its live segments, and what is kept beside them."""

    segments: tuple[RemoteLogSegmentMetadata, ...]
    state: PartitionState


@dataclass(frozen=True, slots=True)
class Leftovers:
    """Objects of a partition, by name, that copies and deletions left behind."""

    topic_id_partition: TopicIdPartition
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RepairPlan:
    """What to copy again, which damaged segments that replaces, which leftovers go, and what a person has to decide.

    `unfinished` are copies that the store has whole and nothing else holds, each as it is once a repair finished it.
    `without_indexes` are damaged segments whose bytes are there and whose indexes are not: those are made from them.
    `replaced` also has damaged segments of which other sound ones hold all: they only have to go. `damaged` are the ids
    of all that the audit named, also of those that stay: none of them can stand in for another. `documents` are the
    partitions of which the store is to know again what the metadata know beside the segments.
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
        """Whether there is nothing that can be done."""
        copies = self.copies.segments or self.unfinished or self.without_indexes
        return not copies and not self.replaced and not self.leftovers and not self.documents


def damaged_ids(report: AuditReport) -> frozenset[str]:
    """Return the ids of the segments whose objects are not all that was sent."""
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
    """Return what to do about `report`.

    `partitions` are those that its anomalies name. `copyable` is what a copy could do if the damaged segments did not
    count (see plan_copy, replacing); of it only what repairs something is taken. `unfinished` can be finished (see
    UncommittedSegments). `has_lost_indexes` says whether a damaged segment may have nothing lost but its indexes;
    `why_other_records` says why sound remote segments are none to read in place of a damaged one (see sent_records.py).
    """
    by_partition: dict[TopicIdPartition, list[PlannedSegment]] = defaultdict(list)
    for planned in copyable.segments:
        by_partition[planned.topic_id_partition].append(planned)
    copies: list[PlannedSegment] = []
    replaced: list[RemoteLogSegmentMetadata] = []
    without_indexes: list[RemoteLogSegmentMetadata] = []
    advice: list[Finding] = []
    outdated = {each.partition: each for each in report.anomalies if each.kind is AnomalyKind.OUTDATED_METADATA}
    advice.extend(Finding(each.what, f"{each.kind.value}: {each.message}") for each in outdated.values())
    for partition, known in sorted(partitions.items()):
        if partition in outdated:
            continue
        waiting = [segment for segment in unfinished if segment.topic_id_partition == partition]
        mending = _Mending(partition, known, by_partition[partition], damaged_ids(report), waiting)
        for segment in mending.damaged:
            differs = why_other_records(segment, mending.sound) if mending.can_replace(segment) else None
            if differs is None and mending.can_replace(segment):
                replaced.append(segment)
            elif has_lost_indexes(segment):
                without_indexes.append(segment)
            else:
                advice.append(mending.why_not(segment, differs))
        gaps = [each for each in report.anomalies if each.kind is AnomalyKind.GAP and each.partition == partition]
        advice.extend(mending.why_not_filled(gap) for gap in gaps if not mending.can_fill(gap))
        copies.extend(mending.copies(gaps, replaced))
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


class _Mending:
    """One partition: what is damaged, and by which ranges of offsets (inclusive) it could be held instead."""

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
        # Not what replaces anything: nobody has proven it yet.
        self._waiting = [(each.start_offset, each.end_offset) for each in unfinished]

    def can_replace(self, segment: RemoteLogSegmentMetadata) -> bool:
        return is_held(segment.start_offset, segment.end_offset, self._log_start, self._held)

    def can_fill(self, gap: Anomaly) -> bool:
        return gap.offsets is not None and is_held(*gap.offsets, self._log_start, [*self._held, *self._waiting])

    def copies(
        self, gaps: Iterable[Anomaly], replaced: Collection[RemoteLogSegmentMetadata]
    ) -> Iterator[PlannedSegment]:
        """Yield the planned segments that stand in for one `replaced` or fill a gap, each once, in order."""
        ranges = [(each.start_offset, each.end_offset) for each in self.damaged if each in replaced]
        ranges += [gap.offsets for gap in gaps if gap.offsets is not None and self.can_fill(gap)]
        for planned in self._planned:
            if any(start <= planned.end_offset and planned.base_offset <= end for start, end in ranges):
                yield planned

    def why_not(self, segment: RemoteLogSegmentMetadata, differs: str | None = None) -> Finding:
        where = " and no longer in the local log" if differs is None else f" and not the same elsewhere ({differs})"
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
            "put the objects back from a backup or a version of the store, or name the log directory of another "
            f"replica in log.dirs and repair again; or give up everything before offset {end_offset + 1}: our log "
            "start moves only by your word ('tiered-storage delete-records' with --give-up)"
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
        f"{count} damaged segments stay for now: the audit names only {len(report.anomalies)} of "
        f"{report.anomaly_count} anomalies, so nobody knows which others are sound; repair fewer topics at once"
    )
    return Finding("", message)


def _is_of(segment: RemoteLogSegmentMetadata, overlap: Anomaly) -> bool:
    """Return whether `overlap` is, or may be, of `segment` with what is to be read in its place."""
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
    """Yield what no repair does: two sound copies of the same offsets, and objects that are not known to be ours."""
    unknown: dict[str, list[Anomaly]] = defaultdict(list)
    for anomaly in anomalies:
        if anomaly.kind is AnomalyKind.OVERLAP:
            if any(_is_of(segment, anomaly) for segment in replaced):
                continue
            message = f"{anomaly.message}: readers are given one of them; 'tiered-storage expire' ends the other"
            yield Finding(anomaly.what, message)
        elif anomaly.kind is AnomalyKind.UNREFERENCED_OBJECT and not anomaly.is_leftover:
            unknown["" if anomaly.partition is None else str(anomaly.partition)].append(anomaly)
    for partition, of_partition in unknown.items():
        first = of_partition[0]
        message = f"{len(of_partition)} objects are left alone, the first is {first.what}: {first.message}"
        yield Finding(partition, message)
