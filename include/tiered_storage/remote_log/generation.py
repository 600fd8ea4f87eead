"""Keeps the metadata and their object store at one generation, so that old metadata and copies of them change nothing.

A generation is a number with a random token. Every decision about a topic or about deleting, every run that copies and
every run that deletes renews it in three steps: the metadata write the next token, the store takes it by
compare-and-swap, the metadata confirm it. A process that is killed in between, or a store that is out of reach, leaves
a next token that whoever comes next publishes. Metadata whose current or next token is not the store's are a restored
backup or a copy: nothing is copied, trimmed or deleted by them, and no decision but a stop is taken.

Two more things belong to a generation: the decisions that it vouches for, by their digest, and the file they are in.
A user's own RemoteStorageManager keeps no generation; there is nothing to hold the metadata against.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tiered_storage.clock import Clock
from tiered_storage.errors import OutdatedMetadataError, RemoteStorageError, TieredStorageError
from tiered_storage.remote_log.metadata import Topic, Topics
from tiered_storage.remote_log.metadata.safety import AuditVerdict, DeletionFailure, Safety, Stop
from tiered_storage.remote_log.metadata.sql_generation import Generation
from tiered_storage.remote_log.metadata.sql_store import SqlMetadataStore
from tiered_storage.remote_log.model import RemoteLogSegmentId, TopicIdPartition
from tiered_storage.remote_log.selection import EVERYTHING, Selection
from tiered_storage.remote_log.storage import RemoteStorageManager
from tiered_storage.remote_log.storage.segment_objects import ObjectRemoteStorageManager
from tiered_storage.remote_log.storage.store_generation import StoredGeneration, StoreGenerations

LOOKS = 5
"""How often store and metadata are compared again: between two reads another process may have renewed both."""

RENEWALS = 100
"""More generations than other processes begin while one is published."""

_OF_DECISIONS = TopicIdPartition("", "", 0, "")
"""Under this key earlier releases numbered decisions, as leases are numbered."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GenerationGuard:
    """Compares and renews the generation of the metadata `store` and of the object store that `open_storage` gives."""

    store: SqlMetadataStore
    open_storage: Callable[[], RemoteStorageManager]
    clock: Clock

    def ensure_current(self) -> None:
        """Raise OutdatedMetadataError unless the metadata carry the generation of the store, which is bound to them.

        Publishes a next generation that an earlier process left. Raises what store and metadata raise.
        """
        generations = self._generations()
        if generations is not None:
            self._publish(generations, "a decision or a run that ended early")

    def renew(self, reason: str) -> None:
        """Begin another generation for a run that copies or deletes, or for a decision; as `ensure_current`."""
        generations = self._generations()
        if generations is None:
            return
        self._compared(generations)
        self.store.generation.renew()
        self._publish(generations, reason)

    def claim(self, reason: str) -> None:
        """Let the store follow these metadata, whatever generation it carries: a person said so.

        All other metadata that were ever the store's are refused from then on.
        """
        generations = self._generations()
        if generations is not None:
            self.store.generation.claim(generations.newest_number())
            self._publish(generations, reason, is_claimed=True)

    def ensure_may_decide(self) -> None:
        """Raise OutdatedMetadataError for metadata that are not the store's; a store out of reach is passed over."""
        if self._is_bound():
            self._passing_over(self.ensure_current)

    def publish_decision(self, decision: str) -> None:
        """Publish the generation of a decision that is in the metadata by now.

        If the store cannot be reached, a warning in the log says so, and the next run publishes it.
        Raises OutdatedMetadataError for metadata that are not the store's.
        """
        if not self._is_bound() or self.store.generation.read().next_token is None:
            return
        error = self._passing_over(lambda: self._publish_bound(decision))
        if error is not None:
            _log.warning(
                "'%s' was decided and holds, but the store could not be reached (%s): the next run that reaches it "
                "publishes the decision; until then an older backup of the metadata is not recognised as older",
                decision,
                error,
            )

    def publish_pending(self) -> None:
        """Publish what could not be published when it was decided, if that is possible by now."""
        if self._is_bound() and self.store.generation.read().next_token is not None:
            self._passing_over(self.ensure_current)

    def _publish_bound(self, reason: str) -> None:
        generations = self._generations()
        if generations is not None:
            self._publish(generations, reason)

    @staticmethod
    def _passing_over(work: Callable[[], None]) -> TieredStorageError | None:
        try:
            work()
        except OutdatedMetadataError:
            raise
        except TieredStorageError as error:
            return error
        return None

    def _publish(self, generations: StoreGenerations, reason: str, *, is_claimed: bool = False) -> None:
        """Publish and confirm until no next token is left.

        Raises RemoteStorageError for a store that never lists what was just written.
        """
        for _ in range(RENEWALS):
            known = self.store.generation.read() if is_claimed else self._compared(generations)
            if known.next_token is None:
                return
            following = StoredGeneration(known.number + 1, known.next_token, reason, self.clock())
            generations.publish(following)
            newest = generations.newest()
            if newest is not None and (newest.number, newest.token) == (following.number, following.token):
                self.store.generation.confirm(Generation(following.number, following.token))
            # Otherwise another process confirmed it and went on, or other metadata won: comparing tells which.
            is_claimed = False
        raise RemoteStorageError(
            f"{generations.place}: the store does not list the generation that was just written there: nothing is "
            "copied, trimmed or deleted until it does"
        )

    def _compared(self, generations: StoreGenerations) -> Generation:
        """Return the generation of the metadata once it is that of the store. Raises OutdatedMetadataError."""
        for look in range(LOOKS):
            # The store first: the metadata are never renewed after it.
            stored = generations.newest()
            known = self.store.generation.read()
            if known.number == 0 and stored is None:
                self._ensure_knows_decisions(generations)
                if known.next_token is None:
                    self.store.generation.renew()
                return self.store.generation.read()
            why = why_outdated(self.store, generations, known, stored)
            if why is None and stored is not None and stored.number == known.number:
                return known
            if why is None and stored is not None:
                self.store.generation.confirm(Generation(stored.number, stored.token))
            elif why is not None and look == LOOKS - 1:
                raise OutdatedMetadataError(why)
        return self.store.generation.read()

    def _ensure_knows_decisions(self, generations: StoreGenerations) -> None:
        """Hold metadata of an earlier release against the decisions that it recorded in the store."""
        newest, known = generations.newest_decision(), self.store.leases.fencing_number(_OF_DECISIONS)
        if newest > known:
            raise OutdatedMetadataError(
                f"{self.store.generation.where}: an earlier release recorded decision {newest} in the store, and these "
                f"metadata know of {known}: they are older than the store, so {_NOTHING}; {_WHAT_TO_DO}"
            )

    def _is_bound(self) -> bool:
        return self.store.identity.bound_store_uuid() is not None

    def _generations(self) -> StoreGenerations | None:
        """Return those of the bound store; None for a user's own RemoteStorageManager.

        Raises StoreMismatchError for another's store.
        """
        storage = self.open_storage()
        if not isinstance(storage, ObjectRemoteStorageManager):
            return None
        identity = self.store.identity
        storage.ensure_identity(identity.metadata_uuid, identity.bound_store_uuid())
        return storage.generations


def is_carried(known: Generation, stored: StoredGeneration | None) -> bool:
    """Whether a store at `stored` carries the generation that metadata know, or the next one already."""
    if stored is None:
        return known.number == 0
    return (stored.number, stored.token) in {(known.number, known.token), (known.number + 1, known.next_token)}


def why_outdated(
    store: SqlMetadataStore, generations: StoreGenerations, known: Generation, stored: StoredGeneration | None
) -> str | None:
    """Return why the metadata, which are at `known`, are not those of a store at `stored`; None if they are.

    A next token that the store carries already counts as known.
    """
    where = store.generation.where
    if not known.has_own_decisions:
        return (
            f"{where}: the decisions about topics and deletions are not those of generation {known.number}: parts of "
            f"the file are older than others (was it restored while a '-wal' file lay beside it?), so {_NOTHING}; "
            f"{_WHAT_TO_DO}"
        )
    if not is_carried(known, stored):
        of_store = "no generation" if stored is None else f"generation {stored.number} ({stored.reason})"
        which = "they are older than the store, a backup, or a copy that another one has overtaken"
        if stored is None or stored.number < known.number:
            which = "the store is older than they are, or lost what it carried"
        return (
            f"{generations.place}: the store carries {of_store}, and the metadata {where} carry generation "
            f"{known.number}: {which}, so {_NOTHING}; {_WHAT_TO_DO}"
        )
    if not known.is_own_place:
        return (
            f"{where}: this file is a copy of the metadata, or was moved or restored: generation {known.number} was "
            f"recorded in another file, so {_NOTHING}. A copy needs a store of its own (rsm.config.url); "
            f"{_PERSONS_WORD}"
        )
    return None


_NOTHING = "nothing is copied, trimmed or deleted"
_PERSONS_WORD = "if these metadata shall hold all the same, run 'tiered-storage metadata take-over'"
_WHAT_TO_DO = f"use the live metadata, or make them again with 'tiered-storage rebuild-metadata'; {_PERSONS_WORD}"


@dataclass(frozen=True, slots=True)
class GuardedTopics:
    """`Topics` whose decisions renew the generation. Deciding raises OutdatedMetadataError for outdated metadata."""

    topics: Topics
    guard: GenerationGuard

    def get(self, cluster_id: str, topic_id: str) -> Topic | None:
        """As Topics.get."""
        return self.topics.get(cluster_id, topic_id)

    def put(self, topic: Topic) -> None:
        """As Topics.put."""
        self.change(topic.cluster_id, topic.topic_id, lambda _: topic)

    def change(self, cluster_id: str, topic_id: str, change: Callable[[Topic | None], Topic]) -> Topic:
        """As Topics.change."""
        self.guard.ensure_may_decide()
        changed = self.topics.change(cluster_id, topic_id, change)
        self.guard.publish_decision(f"a decision about topic {changed.name} ({changed.topic_id})")
        return changed

    def named(self, name: str) -> Sequence[Topic]:
        """As Topics.named."""
        return self.topics.named(name)

    def list(self) -> Sequence[Topic]:
        """As Topics.list."""
        return self.topics.list()


@dataclass(frozen=True, slots=True)
class GuardedSafety:
    """`Safety` whose stops, and audits that change what may be deleted, renew the generation.

    A stop and an audit's finding hold in outdated metadata too, and while the store is out of reach.
    """

    safety: Safety
    guard: GenerationGuard

    def stop(self, reason: str, said_by: str) -> None:
        """As Safety.stop. Raises OutdatedMetadataError, after the stop, where other metadata are the store's."""
        self.safety.stop(reason, said_by)
        try:
            self.guard.publish_decision("all deletions are stopped")
        except OutdatedMetadataError as error:
            raise OutdatedMetadataError(
                f"deletions are stopped in these metadata, but other metadata are the store's: {error}"
            ) from error

    def lift(self, said_by: str) -> None:
        """As Safety.lift. Raises OutdatedMetadataError for outdated metadata."""
        self.guard.ensure_may_decide()
        self.safety.lift(said_by)
        self.guard.publish_decision("deletions go on")

    def stopped(self) -> Stop | None:
        """As Safety.stopped."""
        return self.safety.stopped()

    def put_verdict(self, verdict: AuditVerdict) -> None:
        """As Safety.put_verdict."""
        self.safety.put_verdict(verdict)
        try:
            self.guard.publish_decision("an audit changed what may be deleted")
        except OutdatedMetadataError:
            _log.warning("the audit's result is kept in metadata that are not the store's")

    def verdicts(self, cluster_id: str, topic_id: str) -> Sequence[AuditVerdict]:
        """As Safety.verdicts."""
        return self.safety.verdicts(cluster_id, topic_id)

    def note_failures(self, errors: Mapping[RemoteLogSegmentId, str], now: int) -> None:
        """As Safety.note_failures."""
        self.safety.note_failures(errors, now)

    def forget_failures(self, segment_ids: Iterable[RemoteLogSegmentId]) -> None:
        """As Safety.forget_failures."""
        self.safety.forget_failures(segment_ids)

    def failures(self, selection: Selection = EVERYTHING) -> Iterator[DeletionFailure]:
        """As Safety.failures."""
        return self.safety.failures(selection)
