"""Refuse an export that would replace an earlier export's records by fewer: the remote log expires, tables do not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice

from tiered_storage.errors import ConfigurationError
from tiered_storage.remote_log.tables.layout import ExportedFile, ExportManifest, MissingOffsets
from tiered_storage.remote_log.tables.planning import NAMED_AT_MOST, TablePlan
from tiered_storage.remote_log.tables.reading import BrokenBytes

_LAST_OF_ALL = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class OverwriteGuard:
    """Whether an export may replace the `earlier` one: never by fewer records. `plan` is what can be read now."""

    earlier: ExportManifest
    plan: TablePlan

    @property
    def expired(self) -> str | None:
        """Which records of the earlier export expired or were deleted since; None if there are none."""
        starts = {each.topic_id_partition.partition: each.log_start_offset for each in self.plan.partitions}
        found = {file.partition for file in self.earlier.files if file.first_offset < starts.get(file.partition, 0)}
        if not found:
            return None
        shown = ", ".join(f"partition {partition} below offset {starts[partition]}" for partition in sorted(found))
        return f"it has records that the remote log no longer has: {shown}"

    @property
    def hindrance(self) -> str | None:
        """Why no export of `plan` can replace the earlier one, before anything is read; None: one may."""
        planned = {each.topic_id_partition.partition for each in self.plan.partitions}
        exported = {*self.earlier.partitions, *(file.partition for file in self.earlier.files)}
        if left_out := sorted(exported - planned):
            return f"partitions {', '.join(map(str, left_out))} are deleted, or this run does not ask for them"
        return self.expired

    def ensure_no_fewer(
        self, later: ExportManifest, broken: Sequence[BrokenBytes], letters: Sequence[BrokenBytes], place: str
    ) -> None:
        """Raise ConfigurationError if `later` may lack records of the earlier export, even if it also has new ones.

        `plan` and `broken` have what the later export could not read, `letters` what the earlier one could not decode.
        """
        fewer = _partitions_with_fewer_rows(self.earlier, later)
        lost = chain(fewer, _unreadable_since(self.earlier, self.plan, broken, letters))
        if shown := list(islice(lost, NAMED_AT_MOST)):
            raise ConfigurationError(
                f"{place} may have records that this export did not find: {'; '.join(shown)}. Nothing was changed. "
                "Export all partitions, and allow at least as much disorder within a batch as before; run "
                "'tiered-storage repair --deep' if the remote log lacks records; or remove the folder, to export only "
                "what is left"
            )


def missing_among(manifest: ExportManifest, plan: TablePlan) -> tuple[MissingOffsets, ...]:
    """Return the missing offsets that may have held records of the files, or the ends of their transactions."""
    found = (each for each in _lacking(plan) if any(each.overlaps(file) for file in manifest.files))
    return tuple(MissingOffsets(*each) for each in sorted({(each.partition, *each.cause) for each in found}))


@dataclass(frozen=True, slots=True)
class _Unreadable:
    """Offsets (inclusive) that cannot be read because the offsets `cause` (inclusive) are missing."""

    partition: int
    first: int
    last: int
    cause: tuple[int, int]
    why: str

    def overlaps(self, file: ExportedFile) -> bool:
        """Return whether the file may have records among these."""
        return file.partition == self.partition and file.first_offset <= self.last and self.first <= file.last_offset


def _partitions_with_fewer_rows(earlier: ExportManifest, later: ExportManifest) -> Iterator[str]:
    """Yield a message for each partition that has fewer rows now.

    Rows cannot be compared if only the later export is of committed records alone: no manifest has the number of
    aborted records. Then yields nothing.
    """
    if later.committed_only and not earlier.committed_only:
        return
    before, now = _rows(earlier), _rows(later)
    for partition, rows in sorted(before.items()):
        if now[partition] < rows:
            yield f"{rows} records of partition {partition} before, {now[partition]} now"


def _rows(manifest: ExportManifest) -> Counter[int]:
    rows: Counter[int] = Counter()
    for file in manifest.files:
        rows[file.partition] += file.rows
    return rows


def _unreadable_since(
    earlier: ExportManifest, plan: TablePlan, broken: Sequence[BrokenBytes], letters: Sequence[BrokenBytes]
) -> Iterator[str]:
    """Yield the offsets of earlier files that cannot be read now, but could then."""
    known_broken = {(each.partition, each.first_offset, each.last_offset) for each in letters}
    for each in chain(_broken(broken), _lacking(plan), _beyond_the_end(earlier, plan)):
        if (each.partition, *each.cause) in known_broken or _was_missing(earlier, each):
            continue
        for file in earlier.files:
            if each.overlaps(file):
                first, last = max(each.first, file.first_offset), min(each.last, file.last_offset)
                yield f"offsets {first} to {last} of partition {each.partition} ({each.why})"


def _was_missing(earlier: ExportManifest, now: _Unreadable) -> bool:
    return any(
        each.partition == now.partition and each.first_offset <= now.cause[0] and now.cause[1] <= each.last_offset
        for each in earlier.missing
    )


def _broken(found: Sequence[BrokenBytes]) -> Iterator[_Unreadable]:
    for each in found:
        first, last = each.first_offset, each.last_offset
        why = f"{each.object} at byte {each.position}: {each.reason}"
        yield _Unreadable(each.partition, first, last, (first, last), why)


def _lacking(plan: TablePlan) -> Iterator[_Unreadable]:
    for each in plan.partitions:
        number = each.topic_id_partition.partition
        begins = {last: first for first, last in each.lacking}
        for first, last in each.lacking:
            yield _Unreadable(number, first, last, (first, last), "missing in the remote log")
        for first, last in each.undecidable:
            why = "the end of a transaction is missing in the remote log"
            yield _Unreadable(number, first, last, (begins.get(last, last), last), why)


def _beyond_the_end(earlier: ExportManifest, plan: TablePlan) -> Iterator[_Unreadable]:
    for each in plan.partitions:
        # With read_committed, undecided records may be left out on request; an earlier read_uncommitted export has
        # them.
        end = each.decided_end_offset if earlier.committed_only else each.log_end_offset
        number, beyond = each.topic_id_partition.partition, (end, _LAST_OF_ALL)
        yield _Unreadable(number, *beyond, beyond, "the remote log ends before them")
