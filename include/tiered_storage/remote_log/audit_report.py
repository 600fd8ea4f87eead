"""What an audit says: the six kinds of anomaly, each with what it concerns, and the sums by topic."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from tiered_storage.errors import RemoteObjectCorruptError, RemoteObjectNotFoundError
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata, TopicIdPartition

MOST_ANOMALIES = 10_000
"""So many anomalies are kept one by one; of an emptied store it is enough to know how many there are."""


class AnomalyKind(StrEnum):
    """What can be wrong, in the words of the field."""

    MISSING_OBJECT = "missing object"
    UNREFERENCED_OBJECT = "unreferenced object"
    GAP = "gap"
    OVERLAP = "overlap"
    WRONG_SIZE = "wrong size"
    WRONG_CHECKSUM = "wrong checksum"


@dataclass(frozen=True, slots=True)
class Anomaly:
    """One thing that is wrong: with which object, segment or partition, and how.

    `what` names it for a person. `partition` is None for what belongs to none, `segment_id` where no segment is meant.
    `is_leftover`: an unreferenced object that a copy or deletion of ours left behind, so that nobody can miss it.
    """

    kind: AnomalyKind
    what: str
    message: str
    partition: TopicIdPartition | None = None
    segment_id: str | None = None
    is_leftover: bool = False

    @classmethod
    def of_segment(cls, kind: AnomalyKind, segment: RemoteLogSegmentMetadata, message: str, what: str = "") -> Anomaly:
        """Return what is wrong with `segment`, or with its object `what`."""
        segment_id = segment.segment_id
        return cls(kind, what or str(segment_id), message, segment.topic_id_partition, segment_id.id)


@dataclass(frozen=True, slots=True)
class TopicFindings:
    """How many anomalies an audited topic has, known leftovers apart, and the first of them in words."""

    cluster_id: str
    topic_id: str
    topic: str
    anomalies: int
    first: str = ""


@dataclass(frozen=True, slots=True)
class AuditReport:
    """What was looked at (finished segments, objects, bytes of segments) and what was found.

    `anomalies` are the first MOST_ANOMALIES; `omitted` counts those behind them. `unreferenced` counts the objects that
    are no part of any segment. `topics` tells of every topic that was looked at.
    """

    segments: int
    objects: int
    size: int
    anomalies: tuple[Anomaly, ...]
    notices: tuple[str, ...]
    omitted: int = 0
    unreferenced: int = 0
    topics: tuple[TopicFindings, ...] = field(default=(), compare=False)

    @property
    def anomaly_count(self) -> int:
        """How many anomalies there are, the omitted ones too."""
        return len(self.anomalies) + self.omitted


class AuditTally:
    """Sums up an audit while it goes on, in memory that does not grow with what is wrong."""

    def __init__(self) -> None:
        self.segments = 0
        self.objects = 0
        self.size = 0
        self.young = 0
        self.notices: list[str] = []
        self._anomalies: list[Anomaly] = []
        self._omitted = 0
        self._unreferenced = 0
        self._topics: dict[tuple[str, str], TopicFindings] = {}

    def looked_at(self, partition: TopicIdPartition) -> None:
        """Count in the topic of a partition that is audited."""
        key = (partition.cluster_id, partition.topic_id)
        self._topics.setdefault(key, TopicFindings(*key, partition.topic, 0))

    def add(self, anomalies: Iterable[Anomaly]) -> None:
        """Take anomalies in."""
        for anomaly in anomalies:
            self._unreferenced += anomaly.kind is AnomalyKind.UNREFERENCED_OBJECT
            if len(self._anomalies) < MOST_ANOMALIES:
                self._anomalies.append(anomaly)
            else:
                self._omitted += 1
            if anomaly.partition is not None and not anomaly.is_leftover:
                self._count(anomaly, anomaly.partition)

    def report(self) -> AuditReport:
        """Return what came of it."""
        notices = list(self.notices)
        if self.young:
            notices.append(f"{self.young} unreferenced objects are younger than remote.log.orphan.grace.ms")
        if self._omitted:
            notices.append(f"{self._omitted} more anomalies are left out: only the first {MOST_ANOMALIES} are named")
        return AuditReport(
            self.segments,
            self.objects,
            self.size,
            tuple(self._anomalies),
            tuple(notices),
            self._omitted,
            self._unreferenced,
            tuple(self._topics.values()),
        )

    def _count(self, anomaly: Anomaly, partition: TopicIdPartition) -> None:
        self.looked_at(partition)
        key = (partition.cluster_id, partition.topic_id)
        known = self._topics[key]
        first = known.first or f"{anomaly.kind.value} {anomaly.what}: {anomaly.message}"
        self._topics[key] = TopicFindings(*key, known.topic, known.anomalies + 1, first)


def kind_of(error: RemoteObjectCorruptError | RemoteObjectNotFoundError) -> AnomalyKind:
    """Return what an object is that the store refuses to show as what was sent."""
    return AnomalyKind.MISSING_OBJECT if isinstance(error, RemoteObjectNotFoundError) else AnomalyKind.WRONG_CHECKSUM
