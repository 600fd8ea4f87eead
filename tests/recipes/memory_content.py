"""What the example of a metadata store holds, for all in this process who open it by one name."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from tiered_storage.kafka_log.files.kafka_uuid import random_uuid
from tiered_storage.remote_log.metadata.life_cycle import why_lost
from tiered_storage.remote_log.metadata.metadata_store import ClockReading, Generation
from tiered_storage.remote_log.metadata.remote_log_metadata_manager import Topic
from tiered_storage.remote_log.metadata.safety import AuditResult, DeletionFailure, Stop
from tiered_storage.remote_log.model import (
    Lease,
    PartitionState,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    TopicIdPartition,
)


@dataclass
class Content:
    """Read and change it only under `lock`; a decision under `deciding`, which takes that too."""

    where: str
    lock: threading.RLock = field(default_factory=threading.RLock)
    segments: dict[RemoteLogSegmentId, RemoteLogSegmentMetadata] = field(default_factory=dict)
    """In every state, also DELETE_SEGMENT_FINISHED."""
    finished: dict[RemoteLogSegmentId, int] = field(default_factory=dict)
    """The rank of each copy in the order of their commits."""
    partitions: dict[TopicIdPartition, TopicIdPartition] = field(default_factory=dict)
    """Those that ever had a segment, by themselves: a key equals one with another name of the topic."""
    states: dict[TopicIdPartition, PartitionState] = field(default_factory=dict)
    leases: dict[TopicIdPartition, Lease] = field(default_factory=dict)
    topics: dict[tuple[str, str], Topic] = field(default_factory=dict)
    stop: Stop | None = None
    results: dict[tuple[str, str, bool], AuditResult] = field(default_factory=dict)
    failures: dict[RemoteLogSegmentId, DeletionFailure] = field(default_factory=dict)
    clock_readings: dict[str, ClockReading] = field(default_factory=dict)
    metadata_uuid: str = field(default_factory=random_uuid)
    bound_store_uuid: str | None = None
    work_area_key: bytes = field(default_factory=lambda: secrets.token_bytes(32))
    generation: Generation = field(default_factory=lambda: Generation(0, ""))
    is_renewal_due: bool = False
    backed_up_at: int | None = None

    def ensure_newest(self, lease: Lease) -> None:
        """Raise LeaseLostError if a newer holder exists."""
        lost = why_lost(lease, self.leases)
        if lost is not None:
            raise lost

    @contextmanager
    def deciding(self) -> Iterator[None]:
        """Hold the lock for a decision; if it changes anything, the next generation covers it."""
        with self.lock:
            before = self._decisions()
            yield
            if self._decisions() != before:
                self.begin_next()

    def begin_next(self) -> None:
        """Write a token for the next generation; one that is pending may be in the store already, and stays."""
        if self.generation.next_token is None:
            self.generation = replace(self.generation, next_token=random_uuid())
        else:
            self.is_renewal_due = True

    def _decisions(self) -> tuple[Hashable, ...]:
        wanting = {key for key, result in self.results.items() if result.anomalies > 0}
        return repr(sorted(self.topics.items(), key=lambda item: item[0])), frozenset(wanting), self.stop is not None


class Generations:
    """See MetadataGeneration. This place and these decisions are always the metadata's own: nothing is ever copied."""

    def __init__(self, content: Content) -> None:
        self._content = content

    @property
    def where(self) -> str:
        return self._content.where

    def read(self) -> Generation:
        with self._content.lock:
            return self._content.generation

    def pending(self) -> tuple[str | None, bool]:
        with self._content.lock:
            return self._content.generation.next_token, self._content.is_renewal_due

    def renew(self) -> None:
        with self._content.lock:
            self._content.begin_next()

    def confirm(self, published: Generation) -> None:
        with self._content.lock:
            known = self._content.generation
            if (known.number, known.next_token) != (published.number - 1, published.token):
                return
            following = random_uuid() if self._content.is_renewal_due else None
            self._content.generation = Generation(published.number, published.token, following)
            self._content.is_renewal_due = False

    def claim(self, newest_number: int) -> None:
        with self._content.lock:
            self._content.generation = Generation(newest_number, "", random_uuid())
            self._content.is_renewal_due = False

    def backed_up_at(self) -> int | None:
        with self._content.lock:
            return self._content.backed_up_at

    def record_backup(self, now: int) -> None:
        with self._content.lock:
            self._content.backed_up_at = now


_CONTENTS: dict[str, Content] = {}


def is_known(place: str) -> bool:
    """Return whether anybody opened the store at `place` to create it."""
    return place in _CONTENTS


def content_of(place: str) -> Content:
    """Return the content of the store at `place`, a new one for the first to ask."""
    return _CONTENTS.setdefault(place, Content(place))
