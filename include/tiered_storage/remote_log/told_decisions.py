"""Decisions about topics and deletions that the store is told of: each raises a number there and in the metadata.

So metadata restored from a backup are known to be older than the store where a right was taken away since, all
deletions were stopped, retention was made longer, or an audit found something: they delete nothing.

The decision is written into the metadata first, and holds from then on; then the store is given the next number, and at
last the metadata. A backup made before the end has a lower number than the store. Where only the last number is lacking
and the metadata hold what was decided, as after a process was killed in between, they get it. While the store cannot be
told, the metadata count apart what it was not told of: only once it was seen that they lack nothing does the next run
that copies, audits or wants to delete tell it. A user's own RemoteStorageManager keeps no such number; then there is
nothing to hold the metadata against.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from tiered_storage.clock import Clock
from tiered_storage.errors import OutdatedMetadataError, TieredStorageError
from tiered_storage.remote_log.metadata import Topic, Topics
from tiered_storage.remote_log.metadata.safety import AuditVerdict, DeletionFailure, Safety, Stop
from tiered_storage.remote_log.metadata.sql_store import SqlMetadataStore
from tiered_storage.remote_log.model import RemoteLogSegmentId
from tiered_storage.remote_log.selection import EVERYTHING, Selection
from tiered_storage.remote_log.storage import RemoteStorageManager
from tiered_storage.remote_log.storage.segment_objects import ObjectRemoteStorageManager
from tiered_storage.remote_log.storage.store_decisions import UNREADABLE, StoreDecision, StoreDecisions

PAUSE_SECONDS = 0.2
LOOKS = 5
"""So often a number that the metadata lack is looked for once more: somebody may be deciding just now."""

_STOPPED = "all deletions are stopped"
_LIFTED = "deletions go on"
_CAUGHT_UP = "what the store could not be told of when it was decided"
_SOMETHING_WRONG = "found something wrong"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DecisionTelling:
    """Tells the store that `open_storage` gives, which belongs to the metadata `store`, of decisions."""

    store: SqlMetadataStore
    open_storage: Callable[[], RemoteStorageManager]
    clock: Clock
    pause: Callable[[float], None] = time.sleep

    def ensure_known(self) -> None:
        """Raise OutdatedMetadataError where the store was told of a decision that the metadata do not know.

        One that the store could not be told of it is told of now. Raises what the store raises. One short listing. For
        a store that is bound to the metadata.
        """
        storage = self.open_storage()
        if not isinstance(storage, ObjectRemoteStorageManager):
            return
        safety = self.store.safety
        # The metadata first: whatever they know the store was told of before.
        known = safety.decision_number()
        number = storage.decisions.newest_number()
        if number > known and (newest := storage.decisions.newest_after(known)) is not None:
            self._catch_up(newest)
            known = safety.decision_number()
        # Not before: with it, metadata that lack a decision would look as new as the store.
        if (untold := safety.untold_number()) > known:
            safety.raise_decision_number(known := untold)
        if number < known:
            storage.decisions.add(StoreDecision(known, _CAUGHT_UP, self.clock()))

    def tell_what_is_untold(self) -> None:
        """Tell the store of what it could not be told of when it was decided, if it can be told of that by now.

        Whoever copies, audits, or would delete does this: so the time in which an older backup would not be known as
        such ends by itself. A store that belongs to nobody yet stays so.
        """
        safety = self.store.safety
        if safety.untold_number() <= safety.decision_number():
            return
        with suppress(TieredStorageError):
            if self._decisions() is not None:
                self.ensure_known()

    def ensure_not_outdated(self, decision: str) -> None:
        """Raise OutdatedMetadataError where the metadata lack another decision; a store out of reach is passed over."""
        try:
            decisions = self._decisions()
            known = self.store.safety.decision_number()
            newest = None if decisions is None else decisions.newest_after(known)
        except TieredStorageError:
            return
        if newest is not None and not self._is_next(newest, decision):
            self._catch_up(newest)

    def tell(self, decision: str, before: Sequence[str] = (), *, by_outdated: bool = True) -> None:
        """Give `decision`, which is in the metadata by now, its number in the store and in the metadata.

        `before` is what they held in its place. Metadata that lack another decision are given no number: they stay
        known as older than the store, which is told by them only with `by_outdated`, and not of the same thing twice.
        Where the store cannot be told, a warning in the log says so.
        """
        try:
            number = self._tell_store(decision, before, by_outdated=by_outdated)
        except TieredStorageError as error:
            _log.warning(
                "'%s' was decided and holds, but the store could not be told (%s): the next run that reaches it "
                "tells it; until then an older backup of the metadata would not be known as such",
                decision,
                error,
            )
            count_untold(self.store.safety)
            return
        if number is not None:
            self.store.safety.raise_decision_number(number)

    def _tell_store(self, decision: str, before: Sequence[str], *, by_outdated: bool) -> int | None:
        """Return the number that the metadata get; None where they get none."""
        known = self.store.safety.decision_number()
        decisions = self._decisions()
        if decisions is None:
            # No store has a number that theirs could be taken for.
            return known + 1
        newest = decisions.newest_after(known)
        is_outdated = False
        if newest is not None:
            if self._is_next(newest, decision):
                return newest.number
            try:
                self._catch_up(newest, before)
            except OutdatedMetadataError:
                if not by_outdated or newest.decision == decision:
                    return None
                is_outdated = True
        number = max(known, self.store.safety.untold_number(), 0 if newest is None else newest.number)
        while not decisions.add(StoreDecision(number := number + 1, decision, self.clock())):
            pass
        return None if is_outdated else number

    def _is_next(self, newest: StoreDecision, decision: str) -> bool:
        """Whether the only decision that the metadata lack is this very one."""
        return newest.number == self.store.safety.decision_number() + 1 and newest.decision == decision

    def _catch_up(self, newest: StoreDecision, before: Sequence[str] = ()) -> None:
        """Raise OutdatedMetadataError unless the metadata know the `newest` decision, or hold what it says.

        They do, too, where they held it right `before`.
        """
        safety = self.store.safety
        for _ in range(LOOKS):
            known = safety.decision_number()
            if newest.number <= known:
                return
            if newest.number == known + 1 and (newest.decision in before or newest.decision in self._held()):
                safety.raise_decision_number(newest.number)
                return
            self.pause(PAUSE_SECONDS)
        raise outdated_decisions(newest, known)

    def _held(self) -> Iterator[str]:
        """Yield what the metadata hold, in the words of decisions."""
        safety = self.store.safety
        yield _LIFTED if safety.stopped() is None else _STOPPED
        yield from (_in_words(topic) for topic in self.store.topics.list())
        lives = {(each.cluster_id, each.topic_id) for each in self.store.segments.list_partitions()}
        for life in sorted({("", ""), *lives}):
            yield from (_found_wanting(verdict) for verdict in safety.verdicts(*life) if verdict.anomalies)

    def _decisions(self) -> StoreDecisions | None:
        """Return those of the store; None where there is none to tell. Raises StoreMismatchError for another's."""
        identity = self.store.identity
        bound = identity.bound_store_uuid()
        if bound is None:
            return None
        storage = self.open_storage()
        if not isinstance(storage, ObjectRemoteStorageManager):
            return None
        storage.ensure_identity(identity.metadata_uuid, bound)
        return storage.decisions


def count_untold(safety: Safety) -> None:
    """Count a decision that the store could not be told of; see DecisionTelling.ensure_known."""
    safety.raise_untold_number(max(safety.decision_number(), safety.untold_number()) + 1)


def outdated_decisions(newest: StoreDecision, known: int) -> OutdatedMetadataError:
    """Return the error for metadata that know decisions up to `known`, of a store that was told of the `newest`."""
    lacking = ""
    if newest.number == known + 1:
        by_nobody = newest.decision.startswith((_CAUGHT_UP, UNREADABLE)) or newest.decision.endswith(_SOMETHING_WRONG)
        again = "; " if by_nobody else ": decide that once more, or "
        lacking = f"what they lack is '{newest.decision}'{again}"
    return OutdatedMetadataError(
        f"the store was told of decision {newest.number}, and the metadata know of none after {known}: they are older "
        f"than the store, so nothing is trimmed or deleted, and no topic is decided on; {lacking}restore a newer "
        "backup of the metadata, or make them again with 'tiered-storage rebuild-metadata'"
    )


@dataclass(frozen=True, slots=True)
class ToldTopics:
    """`Topics` of which the store is told: all raise OutdatedMetadataError for metadata that lack another decision."""

    topics: Topics
    telling: DecisionTelling

    def get(self, cluster_id: str, topic_id: str) -> Topic | None:
        """As Topics.get."""
        return self.topics.get(cluster_id, topic_id)

    def put(self, topic: Topic) -> None:
        """As Topics.put."""
        self.telling.ensure_not_outdated(_in_words(topic))
        before = self._words_of(topic.cluster_id, topic.topic_id)
        self.topics.put(topic)
        self.telling.tell(_in_words(topic), before)

    def change(self, cluster_id: str, topic_id: str, change: Callable[[Topic | None], Topic]) -> Topic:
        """As Topics.change."""
        self.telling.ensure_not_outdated(_in_words(change(self.topics.get(cluster_id, topic_id))))
        before = self._words_of(cluster_id, topic_id)
        changed = self.topics.change(cluster_id, topic_id, change)
        self.telling.tell(_in_words(changed), before)
        return changed

    def _words_of(self, cluster_id: str, topic_id: str) -> tuple[str, ...]:
        topic = self.topics.get(cluster_id, topic_id)
        return () if topic is None else (_in_words(topic),)

    def named(self, name: str) -> Sequence[Topic]:
        """As Topics.named."""
        return self.topics.named(name)

    def list(self) -> Sequence[Topic]:
        """As Topics.list."""
        return self.topics.list()


@dataclass(frozen=True, slots=True)
class ToldSafety:
    """`Safety` of whose stops, and of the audits that find something, the store is told.

    They hold whatever else is wrong: a stop in old metadata, or with the store out of reach, is a stop.
    """

    safety: Safety
    telling: DecisionTelling

    def stop(self, reason: str, said_by: str) -> None:
        """As Safety.stop."""
        before = _STOPPED if self.safety.stopped() else _LIFTED
        self.safety.stop(reason, said_by)
        self.telling.tell(_STOPPED, [before])

    def lift(self, said_by: str) -> None:
        """As Safety.lift. Raises OutdatedMetadataError for metadata that lack another decision."""
        self.telling.ensure_not_outdated(_LIFTED)
        self.safety.lift(said_by)
        self.telling.tell(_LIFTED)

    def stopped(self) -> Stop | None:
        """As Safety.stopped."""
        return self.safety.stopped()

    def put_verdict(self, verdict: AuditVerdict) -> None:
        """As Safety.put_verdict; the store is told of the first that finds something, not of each night's.

        What metadata find wanting that lack a decision it is not told of: those that lack none would lack that.
        """
        known = [each for each in self.verdicts(verdict.cluster_id, verdict.topic_id) if each.deep == verdict.deep]
        was_wanting = any(each.anomalies for each in known)
        if was_wanting and not verdict.anomalies:
            # While it is held: who was killed before the metadata got its number is caught up with.
            with suppress(OutdatedMetadataError):
                self.telling.ensure_not_outdated("")
        self.safety.put_verdict(verdict)
        if verdict.anomalies and not was_wanting:
            self.telling.tell(_found_wanting(verdict), by_outdated=False)

    def verdicts(self, cluster_id: str, topic_id: str) -> Sequence[AuditVerdict]:
        """As Safety.verdicts."""
        return self.safety.verdicts(cluster_id, topic_id)

    def decision_number(self) -> int:
        """As Safety.decision_number."""
        return self.safety.decision_number()

    def raise_decision_number(self, number: int) -> None:
        """As Safety.raise_decision_number."""
        self.safety.raise_decision_number(number)

    def untold_number(self) -> int:
        """As Safety.untold_number."""
        return self.safety.untold_number()

    def raise_untold_number(self, number: int) -> None:
        """As Safety.raise_untold_number."""
        self.safety.raise_untold_number(number)

    def note_failures(self, errors: Mapping[RemoteLogSegmentId, str], now: int) -> None:
        """As Safety.note_failures."""
        self.safety.note_failures(errors, now)

    def forget_failures(self, segment_ids: Iterable[RemoteLogSegmentId]) -> None:
        """As Safety.forget_failures."""
        self.safety.forget_failures(segment_ids)

    def failures(self, selection: Selection = EVERYTHING) -> Iterator[DeletionFailure]:
        """As Safety.failures."""
        return self.safety.failures(selection)


def _in_words(topic: Topic) -> str:
    """Return all that was decided for `topic`: the same decision has the same words."""
    rights = [
        ("tiered", topic.remote_storage_enable),
        ("local deletion allowed", topic.local_deletion_allowed),
        ("remote deletion allowed", topic.remote_deletion_allowed),
    ]
    words = [name if given else f"not {name}" for name, given in rights]
    words += [f"{name}={value}" for name, value in sorted(topic.properties.items())]
    return f"topic {topic.name} ({topic.topic_id}): {', '.join(words)}"


def _found_wanting(verdict: AuditVerdict) -> str:
    depth = "deep" if verdict.deep else "quick"
    of_what = f"topic id {verdict.topic_id} of cluster {verdict.cluster_id}" if verdict.topic_id else "the whole store"
    return f"the {depth} audit of {of_what} {_SOMETHING_WRONG}"
