"""The one place that says whether anything may be deleted: whoever deletes asks here, before and between its steps.

In this order: has a person stopped all deletions; do store and metadata belong together, at one generation
(generation.py); was the right given for the topic; what did the last audits find. An audit that
found a topic wanting stops trimming it (audit/results.py), for its local segments may be the last good copy. A store
of which too large a share is referred to by nothing stops all that deletes in it: then the metadata are likely not its
own, or older than it is. Where no audit ever ran, none has an objection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby

from tiered_storage.clock import as_date
from tiered_storage.errors import DeletionRefusedError
from tiered_storage.remote_log.metadata.remote_log_metadata_manager import Topic
from tiered_storage.remote_log.metadata.safety import AuditVerdict, Safety
from tiered_storage.remote_log.model import TopicIdPartition

WHOLE_STORE = ""
"""What stands in place of cluster and topic id in the verdict on a store as a whole."""

FEW_OBJECTS = 10
"""So many unreferenced objects prove nothing, however small the store is."""


class DeletionKind(StrEnum):
    """What is to be deleted: what counts differs."""

    LOCAL = "local"
    """Local segments that the remote tier holds."""
    REMOTE = "remote"
    """Remote segments that readers could see."""
    LEFTOVER = "leftover"
    """Objects that no reader ever saw: of copies that never finished, or that nothing refers to."""


@dataclass(frozen=True, slots=True)
class DeletionGate:
    """Asks `safety`, `bind_store` and what was decided for a partition's topic.

    `bind_store` raises StoreMismatchError, and OutdatedMetadataError for metadata that are not the store's.
    `publish_pending` publishes a decision that could not be published when it was made, if that is possible by now.
    """

    safety: Safety
    bind_store: Callable[[], None]
    decided_topic: Callable[[TopicIdPartition], Topic]
    publish_pending: Callable[[], None]

    def ensure_running(self) -> None:
        """Raise DeletionRefusedError where a person stopped all deletions."""
        stopped = self.why_stopped()
        if stopped is not None:
            # The stop itself may not be published yet, and every run that would publish it ends here.
            self.publish_pending()
            raise DeletionRefusedError(stopped)

    def why_stopped(self) -> str | None:
        """Return who stopped all deletions, when and why; None where nobody did."""
        stop = self.safety.stopped()
        if stop is None:
            return None
        return (
            f"{stop.said_by} stopped all deletions at {as_date(stop.said_at)} ({stop.reason or 'no reason given'}): "
            "nothing is deleted until that is lifted by 'tiered-storage stop-deletions --lift'"
        )

    def ensure(self, partition: TopicIdPartition, kind: DeletionKind) -> None:
        """Raise DeletionRefusedError where nothing of `kind` may be deleted now, and what `bind_store` raises."""
        for refused in self.refusals([partition], kind).values():
            raise refused

    def refusals(
        self, partitions: Iterable[TopicIdPartition], kind: DeletionKind
    ) -> dict[TopicIdPartition, DeletionRefusedError]:
        """Return those of `partitions` where nothing of `kind` may be deleted now, and why.

        Raises what holds for all: DeletionRefusedError where a person stopped all deletions, and what `bind_store`
        raises.
        """
        self.ensure_running()
        self.bind_store()
        return {each: DeletionRefusedError(why) for each, why in self._refused(partitions, kind)}

    def ensure_allowed(self, partition: TopicIdPartition, kind: DeletionKind) -> None:
        """Raise DeletionRefusedError where nothing of `kind` may be deleted, whether or not all deletions are stopped.

        For planning, which changes nothing.
        """
        for _, why in self._refused([partition], kind):
            raise DeletionRefusedError(why)

    def _refused(
        self, partitions: Iterable[TopicIdPartition], kind: DeletionKind
    ) -> Iterator[tuple[TopicIdPartition, str]]:
        by_topic = sorted(partitions, key=_topic_of)
        for _, of_topic in groupby(by_topic, key=_topic_of):
            asked = list(of_topic)
            # Rights and verdicts are a topic's: its partitions are answered alike.
            topic, verdicts = self.decided_topic(asked[0]), self._verdicts(asked[0], kind)
            for each in asked:
                why = _why_no_right(each, kind, topic) or _why_doubtful(each, verdicts)
                if why is not None:
                    yield each, why

    def is_allowed(self, partition: TopicIdPartition, kind: DeletionKind) -> bool:
        """Whether a person gave the right; where none did, there is nothing to tell anybody."""
        return _why_no_right(partition, kind, self.decided_topic(partition)) is None

    def why_doubtful(self, partition: TopicIdPartition, kind: DeletionKind) -> str | None:
        """Return what the last audits hold against a deletion; None where they do not."""
        return _why_doubtful(partition, self._verdicts(partition, kind))

    def _verdicts(self, partition: TopicIdPartition, kind: DeletionKind) -> tuple[AuditVerdict, ...]:
        of_store = self.safety.verdicts(WHOLE_STORE, WHOLE_STORE)
        of_topic = self.safety.verdicts(partition.cluster_id, partition.topic_id) if kind is DeletionKind.LOCAL else ()
        return (*of_store, *of_topic)


def store_verdict(unreferenced: int, objects: int, max_percent: int, audited_at: int, *, deep: bool) -> AuditVerdict:
    """Return the verdict on a store where nothing refers to so many of all its objects.

    Its `anomalies` are more than 0 where that stops deletions: more than `max_percent` of all, and more than a few.
    """
    is_too_much = unreferenced > FEW_OBJECTS and unreferenced * 100 > objects * max_percent
    message = (
        f"nothing refers to {unreferenced} of {objects} objects of the store that were looked at, more than "
        f"remote.log.unreferenced.max.percent ({max_percent}): the metadata may not be this store's, or older than it"
    )
    anomalies = unreferenced if is_too_much else 0
    return AuditVerdict(WHOLE_STORE, WHOLE_STORE, deep, audited_at, anomalies, message if is_too_much else "")


def _objection(verdict: AuditVerdict, partition: TopicIdPartition) -> str:
    of_what = "the store" if verdict.topic_id == WHOLE_STORE else f"topic {partition.topic}"
    kind = "deep " if verdict.deep else ""
    return (
        f"{partition}: the last {kind}audit of {of_what}, at {as_date(verdict.audited_at)}, found something wrong "
        f"({verdict.message or verdict.anomalies}): nothing of it is removed before an audit of the same kind finds "
        "nothing; 'tiered-storage audit' tells what to mend"
    )


def _why_no_right(partition: TopicIdPartition, kind: DeletionKind, topic: Topic) -> str | None:
    if kind is DeletionKind.LOCAL and not (topic.remote_storage_enable and topic.local_deletion_allowed):
        return (
            f"{partition}: local deletion is not allowed any more, or the topic was disabled, since this was "
            "planned: nothing of it was removed"
        )
    if kind is DeletionKind.REMOTE and not topic.remote_deletion_allowed:
        return f"{partition}: remote deletion is not allowed: 'tiered-storage topics allow-deletion' allows it"
    return None


def _why_doubtful(partition: TopicIdPartition, verdicts: Iterable[AuditVerdict]) -> str | None:
    return next((_objection(verdict, partition) for verdict in verdicts if verdict.anomalies), None)


def _topic_of(partition: TopicIdPartition) -> tuple[str, str, str]:
    # The name too: what the settings file says goes by it, and of some partitions nobody knows it.
    return partition.cluster_id, partition.topic_id, partition.topic
