"""What an interval has from an earlier export, against what another one would make of it.

The remote log expires and tables stay: an export must never take the place of one that has records which the remote log
has no more.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice

from tiered_storage.errors import ConfigurationError
from tiered_storage.remote_log.tables.layout import ExportManifest, MissingOffsets
from tiered_storage.remote_log.tables.planning import NAMED_AT_MOST, TablePlan
from tiered_storage.remote_log.tables.reading import BrokenBytes

Offsets = tuple[int, int]
"""The first one and the last, inclusive."""

_LAST_OF_ALL = (1 << 63) - 1


def ensure_all_partitions(earlier: ExportManifest, plan: TablePlan, place: str) -> None:
    """Raise ConfigurationError where the plan leaves a partition out of which there are files.

    Be it that it is not asked for, or that the remote log knows it no more.
    """
    planned = {each.topic_id_partition.partition for each in plan.partitions}
    left_out = sorted({file.partition for file in earlier.files} - planned)
    if left_out:
        raise ConfigurationError(
            f"{place} has records of partitions {', '.join(map(str, left_out))}, of which this export would have none, "
            "and they would go: name all partitions, or another place (export.url)"
        )


def why_kept(earlier: ExportManifest, plan: TablePlan) -> str | None:
    """Return which records the remote log has no more, so that the earlier export stays as it is; None: it has all."""
    starts = {each.topic_id_partition.partition: each.log_start_offset for each in plan.partitions}
    gone = sorted({file.partition for file in earlier.files if file.first_offset < starts.get(file.partition, 0)})
    if not gone:
        return None
    told = ", ".join(f"partition {partition} below offset {starts[partition]}" for partition in gone)
    return f"it has records that the remote log has no more: {told}"


def ensure_no_fewer(earlier: ExportManifest, later: ExportManifest, place: str) -> None:
    """Raise ConfigurationError where `later` has fewer rows of a partition than there are.

    Unless it leaves out what was aborted, and `earlier` did not: how much that is, neither of them tells.
    """
    if later.committed_only and not earlier.committed_only:
        return
    before, now = _rows(earlier), _rows(later)
    for partition, rows in sorted(before.items()):
        if now[partition] < rows:
            raise ConfigurationError(
                f"{place} has {rows} records of partition {partition}, and this export found {now[partition]}: nothing "
                f"was changed, so that none is lost; {_reason(earlier, later)}. Remove the folder to have it made anew"
            )


def ensure_none_lost(
    earlier: ExportManifest,
    plan: TablePlan,
    broken: Sequence[BrokenBytes],
    letters: Sequence[BrokenBytes],
    place: str,
) -> None:
    """Raise ConfigurationError where an export cannot read what an earlier one could, whatever it has gained since.

    It has found what `broken` tells, and the remote log lacks what `plan` does. Of these offsets none may lie between
    the first one and the last of an earlier file, but for those that the earlier export lacked too: by its manifest, or
    by its dead letters, `letters`. Of a transaction it counts where its end went missing since.
    """
    files = _by_partition((file.partition, file.first_offset, file.last_offset) for file in earlier.files)
    before: tuple[MissingOffsets | BrokenBytes, ...] = (*earlier.missing, *letters)
    known = _by_partition((each.partition, each.first_offset, each.last_offset) for each in before)
    lost = (
        f"offsets {first} to {last} of partition {number} ({why})"
        for number, found, why in _unreadable(earlier, plan, broken)
        if number in files
        for part in known[number].outside(found)
        for first, last in files[number].inside(part)
    )
    gaps = _by_partition((each.partition, each.first_offset, each.last_offset) for each in earlier.missing)
    undecidable = (
        f"offsets {first} to {last} of partition {number} (the end of a transaction is missing in the remote log)"
        for number, found, gap in _undecidable(plan)
        if number in files and any(gaps[number].outside(gap))
        for first, last in files[number].inside(found)
    )
    if told := list(islice(chain(lost, undecidable), NAMED_AT_MOST)):
        raise ConfigurationError(
            f"{place} may have records among {'; '.join(told)}, which this export cannot read: nothing was changed, so "
            "that none is lost; 'tiered-storage repair --deep' copies them again where the local log still has them. "
            "Remove the folder to have it made anew without them"
        )


def missing_among(manifest: ExportManifest, plan: TablePlan) -> tuple[MissingOffsets, ...]:
    """Return what the remote log lacks between the first offset and the last of each file.

    With it goes what it lacks elsewhere and where the end of a transaction may be that has records there.
    """
    files = _by_partition((file.partition, file.first_offset, file.last_offset) for file in manifest.files)
    found = chain(((number, gap, gap) for number, gap in _lacking(plan)), _undecidable(plan))
    kept = {(number, *gap) for number, counts, gap in found if number in files and any(files[number].inside(counts))}
    return tuple(MissingOffsets(*each) for each in sorted(kept))


def _unreadable(
    earlier: ExportManifest, plan: TablePlan, broken: Sequence[BrokenBytes]
) -> Iterator[tuple[int, Offsets, str]]:
    for each in broken:
        found = each.first_offset, each.last_offset
        yield each.partition, found, f"{each.object} at byte {each.position}: {each.reason}"
    for number, found in _lacking(plan):
        yield number, found, "missing in the remote log"
    for partition in plan.partitions:
        # Who asks for committed records only, where all were exported, lets those go that are not decided yet.
        end = partition.decided_end_offset if earlier.committed_only else partition.log_end_offset
        yield partition.topic_id_partition.partition, (end, _LAST_OF_ALL), "the remote log ends before them"


def _lacking(plan: TablePlan) -> Iterator[tuple[int, Offsets]]:
    return ((each.topic_id_partition.partition, found) for each in plan.partitions for found in each.lacking)


def _undecidable(plan: TablePlan) -> Iterator[tuple[int, Offsets, Offsets]]:
    """Yield partition, offsets, and the missing ones at their end."""
    for each in plan.partitions:
        begins = {last: first for first, last in each.lacking}
        for first, last in each.undecidable:
            yield each.topic_id_partition.partition, (first, last), (begins.get(last, last), last)


class _Ranges:
    """Offsets of one partition, as ranges in order that do not touch one another."""

    def __init__(self, found: Iterable[Offsets] = ()) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        for first, last in sorted(found):
            if self._lasts and first <= self._lasts[-1] + 1:
                self._lasts[-1] = max(self._lasts[-1], last)
            else:
                self._firsts.append(first)
                self._lasts.append(last)

    def inside(self, other: Offsets) -> Iterator[Offsets]:
        """Yield the parts of `other` that these have."""
        first, last = other
        for at in range(bisect_left(self._lasts, first), len(self._firsts)):
            if self._firsts[at] > last:
                return
            yield max(first, self._firsts[at]), min(last, self._lasts[at])

    def outside(self, other: Offsets) -> Iterator[Offsets]:
        """Yield the parts of `other` that these have not."""
        reached, last = other
        for begin, end in self.inside(other):
            if reached < begin:
                yield reached, begin - 1
            reached = end + 1
        if reached <= last:
            yield reached, last


def _by_partition(found: Iterable[tuple[int, int, int]]) -> defaultdict[int, _Ranges]:
    ranges: defaultdict[int, list[Offsets]] = defaultdict(list)
    for number, first, last in found:
        ranges[number].append((first, last))
    return defaultdict(_Ranges, {number: _Ranges(each) for number, each in ranges.items()})


def _reason(earlier: ExportManifest, later: ExportManifest) -> str:
    if later.disorder_ms is not None and (earlier.disorder_ms is None or later.disorder_ms < earlier.disorder_ms):
        told = "any" if earlier.disorder_ms is None else f"{earlier.disorder_ms} ms"
        return f"it was exported with more disorder within a batch: {told}, and now {later.disorder_ms} ms"
    return "'tiered-storage audit --deep' tells what the remote log lacks"


def _rows(manifest: ExportManifest) -> Counter[int]:
    rows: Counter[int] = Counter()
    for file in manifest.files:
        rows[file.partition] += file.rows
    return rows
