"""The report of an audit: the six kinds of anomaly, the affected objects, and the sums by topic."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum

from tiered_storage.errors import RemoteObjectCorruptError, RemoteObjectNotFoundError
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata, TopicIdPartition

MOST_ANOMALIES = 10_000
"""How many anomalies are listed one by one; for an emptied store the count is enough."""

_ONLY_SO_MANY = "only the first are named"


class AnomalyKind(StrEnum):
    """The kinds of anomaly, and that the metadata are older than the store."""

    MISSING_OBJECT = "missing object"
    UNREFERENCED_OBJECT = "unreferenced object"
    GAP = "gap"
    OVERLAP = "overlap"
    WRONG_SIZE = "wrong size"
    WRONG_CHECKSUM = "wrong checksum"
    MISSING_KEY = "missing key"
    OUTDATED_METADATA = "metadata older than the store"


DAMAGES = frozenset(
    {AnomalyKind.MISSING_OBJECT, AnomalyKind.WRONG_SIZE, AnomalyKind.WRONG_CHECKSUM, AnomalyKind.MISSING_KEY}
)
"""Kinds of anomaly in which an object lacks or changed what was sent, or cannot be decrypted."""


@dataclass(frozen=True, slots=True)
class Anomaly:
    """One anomaly, with the object, segment or partition that it concerns.

    `what` names it for people. `partition` is None if it belongs to none, `segment_id` if it concerns no segment.
    `is_leftover`: an unreferenced object that our copy or deletion left, so no record depends on it.
    `offsets` are the first and the last (inclusive) of a gap or an overlap.
    """

    kind: AnomalyKind
    what: str
    message: str
    partition: TopicIdPartition | None = None
    segment_id: str | None = None
    is_leftover: bool = False
    offsets: tuple[int, int] | None = None

    @property
    def is_of_a_document(self) -> bool:
        """Whether the document of `partition` is missing, corrupt, or contradicts the metadata."""
        return self.kind in DAMAGES and self.partition is not None and self.segment_id is None

    @property
    def is_a_doubt(self) -> bool:
        """Whether it is a reason to keep local data.

        Orphans, duplicate offsets and documents are not: the metadata have all of it.
        """
        return not self.is_leftover and self.kind is not AnomalyKind.OVERLAP and not self.is_of_a_document

    @classmethod
    def of_segment(cls, kind: AnomalyKind, segment: RemoteLogSegmentMetadata, message: str, what: str = "") -> Anomaly:
        """Return an anomaly of `segment`, or of its object `what`."""
        segment_id = segment.segment_id
        return cls(kind, what or str(segment_id), message, segment.topic_id_partition, segment_id.id)


@dataclass(frozen=True, slots=True)
class TopicFindings:
    """The number of an audited topic's anomalies that are a doubt (`Anomaly.is_a_doubt`), and the first as text.

    `unread` counts the segments and partition manifests that could not be read: their state is unknown.
    """

    cluster_id: str
    topic_id: str
    topic: str
    anomalies: int
    first: str = ""
    unread: int = 0


@dataclass(frozen=True, slots=True)
class AuditReport:
    """What was audited (finished segments, objects, bytes of segments) and what was found.

    `anomalies` are the first MOST_ANOMALIES; `omitted` counts the others. `unreferenced` counts the unreferenced
    objects, except known orphans of ours. `unread` counts the segments and partition manifests that could not be read;
    `unseen` are the notices about local logs that could not be read. `topics` has every audited topic. The audit began
    at `audited_at` (ms).
    """

    segments: int
    objects: int
    size: int
    anomalies: tuple[Anomaly, ...]
    notices: tuple[str, ...]
    omitted: int = 0
    unreferenced: int = 0
    unread: int = 0
    unseen: tuple[str, ...] = ()
    topics: tuple[TopicFindings, ...] = field(default=(), compare=False)
    audited_at: int = field(default=0, compare=False)

    @property
    def anomaly_count(self) -> int:
        """The number of anomalies, including omitted ones."""
        return len(self.anomalies) + self.omitted


class AuditTally:
    """Sums up an audit, in memory that does not grow with the number of anomalies."""

    def __init__(self, so_far: AuditReport) -> None:
        """Continue from an earlier part of the same audit, or from an empty report."""
        self.segments = so_far.segments
        self.objects = so_far.objects
        self.size = so_far.size
        self.young = 0
        self.unseen = list(so_far.unseen)
        reported_anyway = {*so_far.unseen, *(each for each in so_far.notices if each.endswith(_ONLY_SO_MANY))}
        self.notices = [notice for notice in so_far.notices if notice not in reported_anyway]
        self._anomalies = list(so_far.anomalies)
        self._omitted = so_far.omitted
        self._unreferenced = so_far.unreferenced
        self._unread = so_far.unread
        self._topics = {(topic.cluster_id, topic.topic_id): topic for topic in so_far.topics}
        self._audited_at = so_far.audited_at

    @classmethod
    def begun_at(cls, now: int) -> AuditTally:
        """Begin an audit at `now` (ms)."""
        return cls(AuditReport(0, 0, 0, (), (), audited_at=now))

    def looked_at(self, partition: TopicIdPartition) -> None:
        """Count the topic of an audited partition."""
        self._topic_of(partition)

    def add(self, anomalies: Iterable[Anomaly]) -> None:
        """Add anomalies."""
        for anomaly in anomalies:
            self._unreferenced += anomaly.kind is AnomalyKind.UNREFERENCED_OBJECT and not anomaly.is_leftover
            if len(self._anomalies) < MOST_ANOMALIES:
                self._anomalies.append(anomaly)
            else:
                self._omitted += 1
            if anomaly.partition is not None and anomaly.is_a_doubt:
                self._count(anomaly, anomaly.partition)

    def could_not_read(self, segment: RemoteLogSegmentMetadata, why: str, *, is_lasting: bool = False) -> None:
        """Count a segment whose state is unknown; report the first one.

        If that `is_lasting`, since a retry gives the same result, report the first of each topic.
        """
        self._unread += 1
        known = self._topic_of(segment.topic_id_partition)
        if self._unread == 1 or (is_lasting and not known.unread):
            self.notices.append(f"{segment.segment_id} could not be read: {why}")
        self._topics[known.cluster_id, known.topic_id] = replace(known, unread=known.unread + 1)

    def could_not_read_manifest(self, partition: TopicIdPartition, why: str) -> None:
        """Count a partition manifest that this release cannot read."""
        self._unread += 1
        known = self._topic_of(partition)
        if not known.unread:
            self.notices.append(f"the document of {partition} could not be read: {why}")
        self._topics[known.cluster_id, known.topic_id] = replace(known, unread=known.unread + 1)

    def report(self) -> AuditReport:
        """Return the report."""
        notices = [*self.unseen, *self.notices]
        if self.young:
            notices.append(f"{self.young} unreferenced objects are younger than remote.log.orphan.grace.ms")
        if self._omitted:
            notices.append(f"{self._omitted} more anomalies are left out: {_ONLY_SO_MANY}")
        return AuditReport(
            self.segments,
            self.objects,
            self.size,
            tuple(self._anomalies),
            tuple(notices),
            self._omitted,
            self._unreferenced,
            self._unread,
            tuple(self.unseen),
            tuple(self._topics.values()),
            self._audited_at,
        )

    def _topic_of(self, partition: TopicIdPartition) -> TopicFindings:
        key = (partition.cluster_id, partition.topic_id)
        return self._topics.setdefault(key, TopicFindings(*key, partition.topic, 0))

    def _count(self, anomaly: Anomaly, partition: TopicIdPartition) -> None:
        known = self._topic_of(partition)
        first = known.first or f"{anomaly.kind.value} {anomaly.what}: {anomaly.message}"
        counted = replace(known, anomalies=known.anomalies + 1, first=first)
        self._topics[known.cluster_id, known.topic_id] = counted


def kind_of(error: RemoteObjectCorruptError | RemoteObjectNotFoundError) -> AnomalyKind:
    """Return the kind of anomaly of an object that the store refuses to return as sent."""
    return AnomalyKind.MISSING_OBJECT if isinstance(error, RemoteObjectNotFoundError) else AnomalyKind.WRONG_CHECKSUM
