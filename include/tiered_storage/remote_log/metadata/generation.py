"""Keep the metadata and their object store at one generation, so that old metadata and copies change nothing.

A generation is a number with a random token. Every decision about a topic or about deletion, every run that copies and
every run that deletes renews it in three steps: the metadata write the next token, the store takes it by
compare-and-swap, the metadata confirm it. If a process is killed in between, or the store is out of reach, the next
process publishes the pending token. Metadata whose current or next token differs from the store's are a restored backup
or a copy: they may not copy, trim or delete anything, nor take any decision except a stop.

A generation also covers the decisions, by their digest, and the file that holds them. A store that cannot be listed
keeps no generation; then there is nothing to compare.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from tiered_storage.clock import Clock
from tiered_storage.errors import OutdatedMetadataError, RemoteStorageError, TieredStorageError
from tiered_storage.remote_log.metadata.metadata_store import Generation, MetadataStore
from tiered_storage.remote_log.metadata.outdated_metadata import (
    compared_generations,
    ensure_newest_decision,
    is_older,
)
from tiered_storage.remote_log.metadata.remote_log_metadata_manager import Topic, Topics
from tiered_storage.remote_log.metadata.safety import AuditResult, DeletionFailure, Safety, Stop
from tiered_storage.remote_log.model import RemoteLogSegmentId, TopicIdPartition
from tiered_storage.remote_log.selection import EVERYTHING, Selection
from tiered_storage.remote_log.storage.documents.store_generation import StoredGeneration, StoreGenerations
from tiered_storage.remote_log.storage.listable_storage import as_listable
from tiered_storage.remote_log.storage.remote_storage_manager import RemoteStorageManager

RENEWALS = 100
"""More generations than other processes can begin while one is published."""

_UNPUBLISHED = "a decision or a run that ended early"
_OF_DECISIONS = TopicIdPartition("", "", 0, "")
"""The key under which earlier releases numbered decisions, as leases are numbered."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GenerationGuard:
    """Compares and renews the generation of the metadata `store` and of the object store that `open_storage` gives."""

    store: MetadataStore
    open_storage: Callable[[], RemoteStorageManager]
    clock: Clock

    def ensure_readable(self, *, outdated: bool = False) -> None:
        """Raise StoreMismatchError for a foreign store, and OutdatedMetadataError for metadata older than the store.

        It accepts metadata newer than the store, a copy of the live ones, and a store that is out of reach or damaged:
        a read notices missing objects itself. With `outdated`, only a foreign store is refused. Writes nothing, and
        reads two small objects of the store.
        """
        storage = as_listable(self.open_storage())
        if storage is None:
            return
        with suppress(RemoteStorageError):
            storage.ensure_belongs(self.store.identity.metadata_uuid, self.store.identity.bound_store_uuid())
            if not outdated:
                compared_generations(storage.generations, self.store.generation, is_older)

    def ensure_same(self) -> None:
        """Raise as `ensure_current`, but publish nothing: for commands that only look."""
        if self._is_bound() and (generations := self._generations()) is not None:
            compared_generations(generations, self.store.generation)

    def ensure_current(self) -> None:
        """Raise OutdatedMetadataError unless the metadata carry the generation of the store.

        Binds a store that belongs to no metadata yet, and publishes a pending generation that an earlier process left.
        Raises StoreMismatchError for a foreign store, and what store and metadata raise.
        """
        self._publish(_UNPUBLISHED)

    def renew(self, reason: str) -> None:
        """Begin a new generation for a run that copies or deletes, or for a decision; raises as `ensure_current`."""
        if self._generations() is not None:
            self.store.generation.renew()
            self._publish(reason)

    def claim(self, reason: str) -> None:
        """Make the store follow these metadata, whatever generation it carries, at the user's request.

        All other metadata of this store are refused from then on.
        """
        generations = self._generations()
        if generations is not None:
            self.store.generation.claim(generations.newest_number())
            self._publish_next(generations, self.store.generation.read(), reason)
            self._publish(reason)

    def ensure_may_decide(self) -> None:
        """Raise OutdatedMetadataError for metadata that are not the store's; accept a store that is out of reach."""
        if self._is_bound():
            self._passing_over(self.ensure_current)

    def publish_pending(self, decision: str = "") -> None:
        """Publish the pending generation to the store, for a `decision` that was just taken.

        If the store cannot be reached, the next run publishes it; for a `decision`, the log has a warning. Raises
        OutdatedMetadataError for metadata that are not the store's.
        """
        if not self._is_bound() or self.store.generation.pending()[0] is None:
            return
        error = self._passing_over(lambda: self._publish(decision or _UNPUBLISHED))
        if error is not None and decision:
            _log.warning(
                "'%s' was decided and holds, but the store could not be reached (%s): the next run that reaches it "
                "publishes the decision; until then an older backup of the metadata is not recognised as older",
                decision,
                error,
            )

    @staticmethod
    def _passing_over(work: Callable[[], None]) -> TieredStorageError | None:
        try:
            work()
        except OutdatedMetadataError:
            raise
        except TieredStorageError as error:
            return error
        return None

    def _publish(self, reason: str) -> None:
        """Publish and confirm until no token is pending.

        Raises RemoteStorageError for a store that never lists what was just written.
        """
        generations = self._generations()
        if generations is None:
            return
        for _ in range(RENEWALS):
            known, stored = compared_generations(generations, self.store.generation)
            if stored is not None and stored.number > known.number:
                self.store.generation.confirm(Generation(stored.number, stored.token))
            elif known.next_token is not None:
                self._publish_next(generations, known, reason)
            elif known.number:
                return
            else:
                self._ensure_knows_decisions(generations)
                self.store.generation.renew()
        raise RemoteStorageError(
            f"{generations.place}: the store does not list the generation that was just written there: nothing is "
            "copied, trimmed or deleted until it does"
        )

    def _publish_next(self, generations: StoreGenerations, known: Generation, reason: str) -> None:
        if known.next_token is not None:
            # The store is about to get this clock's time, which must not vouch for the clock later.
            self.store.clock_readings.begin(generations.renewed_at)
            holder = f"{socket.gethostname()}:{self.store.generation.where}"
            generations.publish(StoredGeneration(known.number + 1, known.next_token, reason, self.clock(), holder))

    def _ensure_knows_decisions(self, generations: StoreGenerations) -> None:
        """Compare metadata of an earlier release with the decisions that it recorded in the store."""
        known = self.store.leases.fencing_number(_OF_DECISIONS)
        ensure_newest_decision(self.store.generation.where, generations.newest_decision(), known)

    def _is_bound(self) -> bool:
        return self.store.identity.bound_store_uuid() is not None

    def _generations(self) -> StoreGenerations | None:
        """Return the store's generations, after binding the two; None for a store that cannot be listed.

        Raises StoreMismatchError for a foreign store.
        """
        storage = as_listable(self.open_storage())
        if storage is None:
            return None
        identity = self.store.identity
        bound = identity.bound_store_uuid()
        uuid = storage.ensure_identity(identity.metadata_uuid, bound)
        if bound is None:
            identity.bind_store(uuid)
        return storage.generations


@dataclass(frozen=True, slots=True)
class GuardedTopics:
    """`Topics` whose decisions renew the generation; they raise OutdatedMetadataError for outdated metadata."""

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
        self.guard.publish_pending(f"a decision about topic {changed.name} ({changed.topic_id})")
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

    A stop and an audit's finding also hold in outdated metadata, and while the store is out of reach.
    """

    safety: Safety
    guard: GenerationGuard

    def stop(self, reason: str, stopped_by: str) -> None:
        """Do as Safety.stop. Raises OutdatedMetadataError, after the stop, if other metadata are the store's."""
        self.safety.stop(reason, stopped_by)
        try:
            self.guard.publish_pending("all deletions are stopped")
        except OutdatedMetadataError as error:
            raise OutdatedMetadataError(
                f"deletions are stopped in these metadata, but other metadata are the store's: {error}"
            ) from error

    def lift(self, lifted_by: str, before: int | None = None) -> None:
        """Do as Safety.lift. Raises OutdatedMetadataError for outdated metadata."""
        self.guard.ensure_may_decide()
        self.safety.lift(lifted_by, before)
        self.guard.publish_pending("deletions continue")

    def stopped(self) -> Stop | None:
        """As Safety.stopped."""
        return self.safety.stopped()

    def put_audit_result(self, result: AuditResult) -> None:
        """Do as Safety.put_audit_result. Writes to the store only if the result changes what may be deleted."""
        pending = self.guard.store.generation.pending()
        self.safety.put_audit_result(result)
        if self.guard.store.generation.pending() == pending:
            return
        try:
            self.guard.publish_pending("an audit changed what may be deleted")
        except OutdatedMetadataError:
            _log.warning("the audit's result is kept in metadata that are not the store's")

    def audit_results(self, cluster_id: str, topic_id: str) -> Sequence[AuditResult]:
        """As Safety.audit_results."""
        return self.safety.audit_results(cluster_id, topic_id)

    def note_failures(self, errors: Mapping[RemoteLogSegmentId, str], now: int) -> None:
        """As Safety.note_failures."""
        self.safety.note_failures(errors, now)

    def forget_failures(self, segment_ids: Iterable[RemoteLogSegmentId]) -> None:
        """As Safety.forget_failures."""
        self.safety.forget_failures(segment_ids)

    def failures(self, selection: Selection = EVERYTHING) -> Iterator[DeletionFailure]:
        """As Safety.failures."""
        return self.safety.failures(selection)
