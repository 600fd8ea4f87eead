"""The partitions in the store: complete segments by their manifests, and all other objects.

A segment with a commit marker is complete; its bundle has all its metadata. One without was never finished, or was
being deleted: it must not become visible. The partition manifest shows what was marked for deletion: by id, by our log
start above it, or by the deletion of the whole partition. If there are several copies of the same offsets, each is read
back, and a damaged one does not become a finished copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from tiered_storage.errors import (
    ConfigurationError,
    LaterVersionError,
    RemoteObjectCorruptError,
    RemoteObjectNotFoundError,
)
from tiered_storage.remote_log.coverage import Coverage
from tiered_storage.remote_log.lineage import whole_lineage
from tiered_storage.remote_log.model import (
    Finding,
    PartitionDeleteState,
    PartitionState,
    RemoteLogSegmentMetadata,
    TopicIdPartition,
)
from tiered_storage.remote_log.repair.redundancy import WholeChecks, held_twice, why_needed
from tiered_storage.remote_log.storage.documents.object_names import ObjectKind, SegmentObjectName
from tiered_storage.remote_log.storage.documents.partition_manifest import PartitionManifest, PartitionManifests
from tiered_storage.remote_log.storage.listable_storage import ListableStorage, ListedObject, list_by_partition

READERS = 8
"""How many manifests are read at once: most of the time is spent waiting for the store."""


@dataclass(frozen=True, slots=True)
class StoredPartition:
    """One partition: its complete segments, as finished copies; one object name of each other one; and unreadable ones.

    `marked` are complete too, and were marked. `hidden_start` is the first offset of what is, or may be, complete but
    is in neither: its commit marker is missing, or it is unreadable; None if there is no such segment. `damaged` are
    those whose every offset other, complete ones hold; `unreadable` lists them too. `document` is the newest readable
    partition manifest, None if there is none. `newest_number` is the highest lease that wrote one, readable or not.
    `notices` report what is no longer known.
    """

    topic_id_partition: TopicIdPartition
    document: PartitionManifest | None
    finished: tuple[RemoteLogSegmentMetadata, ...]
    unfinished: tuple[SegmentObjectName, ...]
    unreadable: tuple[Finding, ...]
    damaged: tuple[RemoteLogSegmentMetadata, ...] = ()
    marked: tuple[RemoteLogSegmentMetadata, ...] = ()
    hidden_start: int | None = None
    newest_number: int = 0
    notices: tuple[Finding, ...] = ()

    @property
    def is_gone(self) -> bool:
        """Whether all of it was deleted, and only the document that records this exists."""
        state = None if self.document is None else self.document.state.delete_state
        return state is PartitionDeleteState.FINISHED and not self.is_anything_left

    @property
    def is_known(self) -> bool:
        """Whether there is any segment to rebuild."""
        return bool(self.finished or self.unfinished or self.damaged or self.marked)

    @property
    def newest_copy(self) -> int:
        """The time of the newest complete copy (ms); 0 if there is none."""
        return max((segment.event_timestamp for segment in (*self.finished, *self.marked)), default=0)

    @property
    def is_anything_left(self) -> bool:
        """Whether there is any object of a segment, readable or not."""
        return self.is_known or bool(self.unreadable)


def stored_partitions(storage: ListableStorage) -> Iterator[StoredPartition]:
    """Yield every partition that has a folder in the store, holding one at a time in memory.

    Raises ConfigurationError if a topic id has two names: then it is unknown which one is right.
    """
    names: dict[tuple[str, str], str] = {}
    with ThreadPoolExecutor(READERS) as readers:
        for partition, listed in list_by_partition(storage):
            if partition is None:
                continue
            known = names.setdefault((partition.cluster_id, partition.topic_id), partition.topic)
            if known != partition.topic:
                raise ConfigurationError(
                    f"the topic id {partition.topic_id} has folders of two names in the store, {known} and "
                    f"{partition.topic}: move the wrong one out of the store, and start again"
                )
            yield _read(partition, listed, storage, readers)


def _read(
    partition: TopicIdPartition,
    listed: Iterable[ListedObject],
    storage: ListableStorage,
    readers: ThreadPoolExecutor,
) -> StoredPartition:
    try:
        document, newest, broken = _newest_readable(partition, storage.partition_manifests)
    except LaterVersionError as error:
        message = f"nothing of it can be rebuilt, as its document is of a later release: {error}"
        return StoredPartition(partition, None, (), (), (Finding(str(partition), message),))
    by_id: dict[str, dict[ObjectKind, SegmentObjectName]] = {}
    for found in listed:
        if found.segment is not None:
            of_segment = by_id.setdefault(found.segment.segment_id.id, {})
            if not found.segment.temporary:
                of_segment[found.segment.kind] = found.segment
            else:
                of_segment.setdefault(ObjectKind.DATA, found.segment)
    state = PartitionState() if document is None else document.state
    named = frozenset(() if document is None else document.marked)
    already_marked = _already_marked(by_id, named, storage, readers)
    for segment in already_marked:
        del by_id[segment.segment_id.id]
    with_marker = [each[ObjectKind.COMMIT_MARKER] for each in by_id.values() if ObjectKind.COMMIT_MARKER in each]
    unfinished = [next(iter(each.values())) for each in by_id.values() if ObjectKind.COMMIT_MARKER not in each]
    finished: list[RemoteLogSegmentMetadata] = []
    unreadable: list[Finding] = []
    hidden = [name.base_offset for of_segment in by_id.values() if (name := _whole_without_marker(of_segment))]
    for name, outcome in zip(
        with_marker, readers.map(lambda name: _metadata_of(name, storage), with_marker), strict=True
    ):
        if isinstance(outcome, Finding):
            unreadable.append(outcome)
            hidden.append(name.base_offset)
        else:
            finished.append(outcome)
    # In the order in which they were copied, and so become visible again.
    finished.sort(key=lambda segment: (segment.event_timestamp, segment.start_offset, segment.segment_id.id))
    marked = [segment for segment in finished if _was_marked(segment, state, named)]
    alive = _without(finished, marked)
    damaged, findings = _damaged_twins(alive, state, storage, readers)
    whole = _without(alive, damaged)
    notices = [] if document or broken or not finished else [Finding(str(partition), _NO_DOCUMENT)]
    if not unreadable and state.delete_state is None:
        notices.extend(_gaps(partition, whole, state))
    return StoredPartition(
        partition,
        document,
        tuple(whole),
        tuple(unfinished),
        (*broken, *unreadable, *findings),
        tuple(damaged),
        (*marked, *already_marked),
        min(hidden, default=None),
        newest,
        tuple(notices),
    )


_LOST = (
    "the global log start, the lineage and the deletion marks are unknown: everything in the store is readable again"
)
_NO_DOCUMENT = (
    f"the store has no document of it: {_LOST}; if records of it had been deleted, 'tiered-storage delete-records' "
    "deletes them again"
)


def _gaps(
    partition: TopicIdPartition, segments: Sequence[RemoteLogSegmentMetadata], state: PartitionState
) -> Iterator[Finding]:
    """Yield the offsets missing from `segments` that the store shows to have been remote."""
    coverage = Coverage.of(segments, whole_lineage(segments, state.lineage))
    start, end = state.log_start_offset, coverage.end_offset
    if end is None:
        return
    for first, last in coverage.gaps() if start is None else coverage.missing(start, end):
        message = (
            f"offsets {first} to {last} are in no segment: 'tiered-storage repair' copies those that are still local"
        )
        yield Finding(str(partition), message)


def _newest_readable(
    partition: TopicIdPartition, documents: PartitionManifests
) -> tuple[PartitionManifest | None, int, list[Finding]]:
    """Return the newest readable document, the highest number of any (0: none), and the errors of unreadable ones."""
    numbers = documents.numbers(partition)
    broken: list[str] = []
    found = None
    for number in numbers:
        try:
            found = documents.read_numbered(partition, number)
            break
        except RemoteObjectCorruptError as error:
            broken.append(str(error))
    if not broken:
        return found, max(numbers, default=0), []
    instead = _LOST if found is None else f"the one before it, of lease {found.fencing_number}, is used instead"
    message = (
        f"its document is corrupt: {'; '.join(broken)}; {instead}. Restore it from a backup and start again, or run "
        "'tiered-storage delete-records' for what had been deleted"
    )
    return found, max(numbers), [Finding(str(partition), message)]


def _already_marked(
    by_id: Mapping[str, dict[ObjectKind, SegmentObjectName]],
    named: frozenset[str],
    storage: ListableStorage,
    readers: ThreadPoolExecutor,
) -> list[RemoteLogSegmentMetadata]:
    """Return what is `named` as marked and is complete except for its commit marker: its deletion had begun.

    It was finished once, so it must not count as an uncommitted copy.
    """
    names = (_whole_without_marker(by_id[segment_id]) for segment_id in sorted(named & by_id.keys()))
    copies = readers.map(lambda name: _find_copy(name, storage), [name for name in names if name is not None])
    return [finished for finished in copies if finished is not None]


def _find_copy(name: SegmentObjectName, storage: ListableStorage) -> RemoteLogSegmentMetadata | None:
    asked = RemoteLogSegmentMetadata(
        name.segment_id, name.base_offset, name.base_offset, max_timestamp=-1, event_timestamp=0, size=0,
        leader_epochs=(),
    )  # fmt: skip
    stored = storage.find_copy(asked)
    return None if stored is None else stored.finished


def _whole_without_marker(of_segment: Mapping[ObjectKind, SegmentObjectName]) -> SegmentObjectName | None:
    """Return the name of the data of a segment that has data and indexes but no commit marker."""
    if ObjectKind.COMMIT_MARKER in of_segment or ObjectKind.INDEXES not in of_segment:
        return None
    data = of_segment.get(ObjectKind.DATA)
    return data if data is not None and not data.temporary else None


def _was_marked(segment: RemoteLogSegmentMetadata, state: PartitionState, named: frozenset[str]) -> bool:
    is_below = segment.end_offset < (state.log_start_offset or 0)
    return is_below or state.is_wholly_deleted or segment.segment_id.id in named


def _without(
    segments: Iterable[RemoteLogSegmentMetadata], others: Iterable[RemoteLogSegmentMetadata]
) -> list[RemoteLogSegmentMetadata]:
    left_out = {segment.segment_id.id for segment in others}
    return [segment for segment in segments if segment.segment_id.id not in left_out]


def _damaged_twins(
    finished: Sequence[RemoteLogSegmentMetadata],
    state: PartitionState,
    storage: ListableStorage,
    readers: ThreadPoolExecutor,
) -> tuple[list[RemoteLogSegmentMetadata], list[Finding]]:
    """Read back duplicate copies; return the damaged ones that are redundant, and notices about all damaged ones.

    Raises what the store raises if it cannot be reached.
    """
    checks = WholeChecks(storage)
    log_start = state.log_start_offset or 0
    twins = held_twice(finished, state.lineage, log_start)
    wrong = {
        segment.segment_id.id: (segment, why)
        for segment, why in zip(twins, readers.map(checks.why_not_whole, twins), strict=True)
        if why is not None
    }
    sound = [segment for segment in finished if segment.segment_id.id not in wrong]
    lineage = whole_lineage(finished, state.lineage)
    coverage = Coverage.of(sound, lineage)
    damaged: list[RemoteLogSegmentMetadata] = []
    findings: list[Finding] = []
    for segment, why in wrong.values():
        needed = why_needed(segment, coverage, log_start, lineage, checks)
        if needed is None:
            damaged.append(segment)
        becomes = "it is marked for deletion, others hold its offsets" if needed is None else f"it stays: {needed}"
        message = (
            f"segment {segment.segment_id.id}, offsets {segment.start_offset} to {segment.end_offset}, is one of "
            f"several copies, and damaged: {why}; {becomes}"
        )
        findings.append(Finding(str(segment.topic_id_partition), message))
    return damaged, findings


def _metadata_of(name: SegmentObjectName, storage: ListableStorage) -> RemoteLogSegmentMetadata | Finding:
    try:
        return storage.read_metadata(name)
    except LaterVersionError as error:
        message = f"segment {name.segment_id.id}, from offset {name.base_offset} on, cannot be rebuilt: {error}"
        return Finding(str(name.segment_id.topic_id_partition), message)
    except (RemoteObjectCorruptError, RemoteObjectNotFoundError) as error:
        message = (
            f"segment {name.segment_id.id}, from offset {name.base_offset} on, cannot be rebuilt: {error}; restore its "
            "objects from a backup, or move them out of the store, and start again"
        )
        return Finding(str(name.segment_id.topic_id_partition), message)
