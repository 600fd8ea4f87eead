"""Decide whether a deletion may begin and continue: every deletion asks before it begins, and between its batches.

Refusals that concern one segment (a fork, a last copy, an object of a later release) are decided where it is read. The
questions here are, in this order: are all deletions stopped; do store and metadata belong together, at one generation
(generation.py); is the right given for the topic; what did the last audits find. An audit that found fault with a topic
stops trimming it (audit/checks.py), since its local segments may be the last good copy. If too large a share of a
store is unreferenced, all deletion in it stops: the metadata are probably not its own, or older than it. Without any
audit there is no objection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby

from tiered_storage.clock import as_date
from tiered_storage.errors import DeletionRefusedError
from tiered_storage.remote_log.metadata.remote_log_metadata_manager import Topic
from tiered_storage.remote_log.metadata.safety import AuditResult, Safety
from tiered_storage.remote_log.model import TopicIdPartition

WHOLE_STORE = ""
"""Replaces cluster and topic id in the audit result of a store as a whole."""

FEW_OBJECTS = 10
"""Up to this many unreferenced objects prove nothing, however small the store is."""


class DeletionKind(StrEnum):
    """What is to be deleted, which decides the checks."""

    LOCAL = "local"
    """Local segments that the remote tier holds."""
    REMOTE = "remote"
    """Remote segments that readers could see."""
    LEFTOVER = "leftover"
    """Objects that no reader ever saw: of unfinished copies, or unreferenced."""


@dataclass(frozen=True, slots=True)
class DeletionPermissions:
    """Checks `safety`, `bind_store` and the decisions on a partition's topic.

    `bind_store` raises StoreMismatchError, and OutdatedMetadataError for metadata that are not the store's.
    `publish_pending` publishes a decision that could not be published earlier, if possible now.
    """

    safety: Safety
    bind_store: Callable[[], None]
    decided_topic: Callable[[TopicIdPartition], Topic]
    publish_pending: Callable[[], None]

    def ensure_running(self) -> None:
        """Raise DeletionRefusedError if all deletions are stopped."""
        stopped = self.why_stopped()
        if stopped is not None:
            # The stop itself may not be published yet, and every run that would publish it ends here.
            self.publish_pending()
            raise DeletionRefusedError(stopped)

    def why_stopped(self) -> str | None:
        """Return who stopped all deletions, when and why; None if they are not stopped."""
        stop = self.safety.stopped()
        if stop is None:
            return None
        return (
            f"{stop.stopped_by} stopped all deletions at {as_date(stop.stopped_at)} "
            f"({stop.reason or 'no reason given'}): nothing is deleted until that is lifted by "
            "'tiered-storage stop-deletions --lift'"
        )

    def ensure(self, partition: TopicIdPartition, kind: DeletionKind) -> None:
        """Raise DeletionRefusedError if nothing of `kind` may be deleted now, and what `bind_store` raises."""
        for refused in self.refusals([partition], kind).values():
            raise refused

    def refusals(
        self, partitions: Iterable[TopicIdPartition], kind: DeletionKind
    ) -> dict[TopicIdPartition, DeletionRefusedError]:
        """Return those of `partitions` in which nothing of `kind` may be deleted now, and why.

        Raises what holds for all: DeletionRefusedError if all deletions are stopped, and what `bind_store`
        raises.
        """
        self.ensure_running()
        self.bind_store()
        return {each: DeletionRefusedError(why) for each, why in self._refused(partitions, kind)}

    def ensure_allowed(self, partition: TopicIdPartition, kind: DeletionKind) -> None:
        """Raise DeletionRefusedError if nothing of `kind` may be deleted, whether or not all deletions are stopped.

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
            # Rights and audit results belong to a topic: its partitions get the same answer.
            topic, results = self.decided_topic(asked[0]), self._audit_results(asked[0], kind)
            for each in asked:
                why = _why_no_right(each, kind, topic) or _why_doubtful(each, results)
                if why is not None:
                    yield each, why

    def is_allowed(self, partition: TopicIdPartition, kind: DeletionKind) -> bool:
        """Return whether the right is given."""
        return _why_no_right(partition, kind, self.decided_topic(partition)) is None

    def why_doubtful(self, partition: TopicIdPartition, kind: DeletionKind) -> str | None:
        """Return the objection of the last audits to a deletion; None if there is none."""
        return _why_doubtful(partition, self._audit_results(partition, kind))

    def _audit_results(self, partition: TopicIdPartition, kind: DeletionKind) -> tuple[AuditResult, ...]:
        of_store = self.safety.audit_results(WHOLE_STORE, WHOLE_STORE)
        of_topic = (
            self.safety.audit_results(partition.cluster_id, partition.topic_id) if kind is DeletionKind.LOCAL else ()
        )
        return (*of_store, *of_topic)


def store_audit_result(
    unreferenced: int, objects: int, max_percent: int, audited_at: int, *, deep: bool
) -> AuditResult:
    """Return the audit result of a store with this many unreferenced objects.

    Its `anomalies` are above 0 if that stops deletions: more than `max_percent` of all, and more than a few.
    """
    is_too_much = unreferenced > FEW_OBJECTS and unreferenced * 100 > objects * max_percent
    message = (
        f"nothing refers to {unreferenced} of {objects} objects of the store that were looked at, more than "
        f"remote.log.unreferenced.max.percent ({max_percent}): the metadata may not be this store's, or older than it"
    )
    anomalies = unreferenced if is_too_much else 0
    return AuditResult(WHOLE_STORE, WHOLE_STORE, deep, audited_at, anomalies, message if is_too_much else "")


def _objection(result: AuditResult, partition: TopicIdPartition) -> str:
    of_what = "the store" if result.topic_id == WHOLE_STORE else f"topic {partition.topic}"
    kind = "deep " if result.deep else ""
    return (
        f"{partition}: the last {kind}audit of {of_what}, at {as_date(result.audited_at)}, found something wrong "
        f"({result.message or result.anomalies}): nothing of it is removed before an audit of the same kind finds "
        "nothing; 'tiered-storage audit' shows what to repair"
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


def _why_doubtful(partition: TopicIdPartition, results: Iterable[AuditResult]) -> str | None:
    return next((_objection(result, partition) for result in results if result.anomalies), None)


def _topic_of(partition: TopicIdPartition) -> tuple[str, str, str]:
    # With the name: the settings file uses it, and for some partitions it is unknown.
    return partition.cluster_id, partition.topic_id, partition.topic
