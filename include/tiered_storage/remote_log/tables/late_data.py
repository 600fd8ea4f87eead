"""Which intervals of a table were exported before all of them was copied, and which of these can be exported again.

An interval is whole, as far as the remote log tells, once what is copied of each partition, and decided, goes on behind
the interval, by as much as its records may be out of order. The manifest has those of which that was not so
(`not_reached`), and all of which something was copied by then (`partitions`). It is

    due       where that is so of one of them by now, where a partition has come that begins before the interval's end,
              and where a commit stopped on its way
    waiting   where none of that is so: what is missing is not copied yet, or was never written
    given up  where another export would lose what it has, or leave a partition out: it stays as it is

How far a partition goes is told to each interval by the isolation that it was exported with. Each of these is a reason
once, to an export that succeeds: so however long an interval waits, it is not exported again by every run. Whether
another export can succeed only shows when it is tried (offsets may be missing by now, or rows).
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from tiered_storage.errors import LaterVersionError, RemoteObjectCorruptError, RemoteObjectNotFoundError
from tiered_storage.remote_log.metadata.remote_log_metadata_manager import RemoteLogMetadataManager
from tiered_storage.remote_log.model import SegmentState, TopicIdPartition
from tiered_storage.remote_log.storage.manifest import Manifest
from tiered_storage.remote_log.storage.remote_storage_manager import IndexKind, RemoteStorageManager
from tiered_storage.remote_log.tables.layout import MANIFEST, SUCCESS, Interval, TableFolder
from tiered_storage.remote_log.tables.overwrite_guard import why_kept
from tiered_storage.remote_log.tables.planning import TablePartition, TablePlan
from tiered_storage.remote_log.tables.query import EVERY_ROW, RowFilter

READ_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class LateInterval:
    """An interval to export again, with `rows`, `codec` and `allow_gaps` as it was exported before."""

    interval: Interval
    rows: RowFilter
    codec: str
    allow_gaps: bool = False


@dataclass(frozen=True, slots=True)
class GivenUpInterval:
    """An interval that no export makes whole, and why."""

    interval: Interval
    reason: str


@dataclass(frozen=True, slots=True)
class LateIntervals:
    """The intervals of a table that are not whole, the latest first."""

    due: tuple[LateInterval, ...] = ()
    waiting: tuple[Interval, ...] = ()
    given_up: tuple[GivenUpInterval, ...] = ()


@dataclass(slots=True)
class PartitionBegins:
    """Tells when the first copied segment of a partition begins (ms)."""

    metadata: RemoteLogMetadataManager
    storage: RemoteStorageManager

    def __call__(self, partition: TopicIdPartition) -> int | None:
        """Return it; -1 where that is not told, None where nothing is copied. Raises what the store raises."""
        segments = self.metadata.list_remote_log_segments(partition)
        copied = (each for each in segments if each.state is SegmentState.COPY_SEGMENT_FINISHED)
        first = min(copied, key=lambda each: each.start_offset, default=None)
        if first is None:
            return None
        try:
            raw = self.storage.fetch_index(first, IndexKind.MANIFEST)
            begin = Manifest.parse(raw, str(first.segment_id)).first_timestamp
        except (RemoteObjectNotFoundError, RemoteObjectCorruptError, LaterVersionError):
            return -1
        return -1 if begin is None else begin


def find_late(
    folder: TableFolder,
    plan: TablePlan,
    own: Interval,
    begins: Callable[[TopicIdPartition], int | None],
    other: Callable[[], TablePlan],
) -> LateIntervals:
    """Return the intervals below `folder`, but for `own`, that are not whole, as far as `plan` knows the topic.

    Every manifest is read. `begins` tells when a partition's first copied segment begins, and `other` how far each goes
    with the other isolation than that of `plan`: it is asked once at most. Raises what the store raises.
    """
    names: dict[str, set[Interval]] = {MANIFEST: set(), SUCCESS: set()}
    for interval, name in folder.contents():
        if name in names:
            names[name].add(interval)
    found = sorted(names[MANIFEST] - {own}, key=lambda each: each.begin, reverse=True)
    judge = _Judge(plan, begins, other)
    with ThreadPoolExecutor(READ_AT_ONCE) as pool:
        read = pool.map(lambda each: _read(folder, each, plan), found)
        judged = [judge.judged(each, each.interval in names[SUCCESS]) for each in read]
    return LateIntervals(
        tuple(each for each in judged if isinstance(each, LateInterval)),
        tuple(each for each in judged if isinstance(each, Interval)),
        tuple(each for each in judged if isinstance(each, GivenUpInterval)),
    )


@dataclass(frozen=True, slots=True)
class _Exported:
    """What counts of an interval's manifest, which itself may be large; `wrong` is why it cannot be judged."""

    interval: Interval
    rows: RowFilter = EVERY_ROW
    codec: str = ""
    allow_gaps: bool = False
    partitions: frozenset[int] = frozenset()
    not_reached: frozenset[int] = frozenset()
    kept: str | None = None
    wrong: str | None = None


def _read(folder: TableFolder, interval: Interval, plan: TablePlan) -> _Exported:
    try:
        manifest = folder.manifest(interval)
    except (RemoteObjectCorruptError, LaterVersionError) as error:
        return _Exported(interval, wrong=str(error))
    if manifest is None:
        return _Exported(interval, wrong="its folder was removed meanwhile")
    return _Exported(
        interval,
        RowFilter(interval.begin, interval.end, manifest.committed_only, manifest.disorder_ms),
        manifest.codec,
        manifest.allow_gaps,
        frozenset(manifest.partitions) | {file.partition for file in manifest.files},
        frozenset(manifest.not_reached),
        why_kept(manifest, plan),
    )


class _Judge:
    """Judges intervals by what is copied now."""

    def __init__(
        self, plan: TablePlan, begins: Callable[[TopicIdPartition], int | None], other: Callable[[], TablePlan]
    ) -> None:
        self._planned = _by_number(plan)
        self._by_isolation = {plan.query.rows.committed_only: self._planned}
        self._begins = begins
        self._other = other
        self._begun: dict[int, int | None] = {}

    def judged(self, exported: _Exported, is_committed: bool) -> LateInterval | GivenUpInterval | Interval | None:
        """Return what becomes of an interval: due, given up or, as it is, waiting; None: it is whole."""
        interval = exported.interval
        if exported.wrong is not None:
            return GivenUpInterval(interval, exported.wrong)
        came = self._came(exported)
        if is_committed and not exported.not_reached and not came:
            return None
        left_out = sorted((exported.partitions | exported.not_reached) - self._planned.keys())
        if left_out:
            told = ", ".join(map(str, left_out))
            return GivenUpInterval(interval, f"partitions {told} are deleted or not asked for, and would go")
        if exported.kept is not None:
            return GivenUpInterval(interval, exported.kept)
        if is_committed and not came and not self._reached(exported):
            return interval
        return LateInterval(interval, exported.rows, exported.codec, exported.allow_gaps)

    def _reached(self, exported: _Exported) -> bool:
        """Whether a partition goes on behind the interval by now that did not."""
        isolation = exported.rows.committed_only
        if isolation not in self._by_isolation:
            self._by_isolation[isolation] = _by_number(self._other())
        found = (self._by_isolation[isolation].get(number) for number in exported.not_reached)
        return any(each is not None and each.has_all(exported.rows) for each in found)

    def _came(self, exported: _Exported) -> bool:
        """Whether a partition has records before the interval's end of which nothing was copied by then."""
        begins = (self._begin(number) for number in self._planned.keys() - exported.partitions)
        return any(begin is not None and begin < exported.interval.end for begin in begins)

    def _begin(self, number: int) -> int | None:
        if number not in self._begun:
            self._begun[number] = self._begins(self._planned[number].topic_id_partition)
        return self._begun[number]


def _by_number(plan: TablePlan) -> dict[int, TablePartition]:
    return {each.topic_id_partition.partition: each for each in plan.partitions}
