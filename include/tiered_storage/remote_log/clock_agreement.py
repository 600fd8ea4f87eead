"""Holds this machine's clock against others before anything is deleted: by that clock a plan says what is old.

Two clocks tell: the store's, by an object that is written for it, and the clock of earlier runs, by the times in the
metadata. A store in a local directory has this machine's own clock, unless it is mounted from elsewhere: there only the
grace time of marked segments (remote.log.deletion.grace.ms) is left to notice a clock that ran ahead.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from tiered_storage.clock import Clock, as_date
from tiered_storage.errors import DeletionRefusedError
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata, TopicIdPartition
from tiered_storage.remote_log.remote_log_parts import RemoteLogParts
from tiered_storage.remote_log.storage import RemoteStorageManager
from tiered_storage.remote_log.storage.segment_objects import ObjectRemoteStorageManager

STORE_PRECISION_MS = 1_000
"""Some stores tell whole seconds."""


@dataclass(frozen=True, slots=True)
class ClockAgreement:
    """Compares `clock` with the others; `max_skew_ms` is how far apart they may be (clock.max.skew.ms)."""

    clock: Clock
    storage: RemoteStorageManager
    max_skew_ms: int

    @classmethod
    def of(cls, parts: RemoteLogParts) -> Self:
        """Return that of an open remote log."""
        return cls(parts.clock, parts.storage, parts.settings.clock_max_skew_ms)

    def ensure_store_agrees(self) -> None:
        """Raise DeletionRefusedError unless the store's clock agrees with ours; write one small object to ask it.

        A user's own RemoteStorageManager has none that could be asked, nor does a store without room. Raises what the
        store raises.
        """
        if not isinstance(self.storage, ObjectRemoteStorageManager):
            return
        begun = self.clock()
        told = self.storage.time_of_a_write()
        ended = self.clock()
        if told is None or begun - told - STORE_PRECISION_MS <= self.max_skew_ms >= told - ended - STORE_PRECISION_MS:
            return
        raise DeletionRefusedError(
            f"{self.storage.place_of('')}: the store's clock showed {as_date(told)} when this machine's showed "
            f"{as_date(ended)}, more than clock.max.skew.ms ({self.max_skew_ms}) apart: nothing is deleted, since "
            "nobody knows what is old. Set both clocks by NTP, look at the plan again, and repeat the run"
        )

    def ensure_not_ahead(self, partition: TopicIdPartition, segments: Iterable[RemoteLogSegmentMetadata]) -> None:
        """Raise DeletionRefusedError where anything happened to `segments` of `partition` later than now."""
        now = self.clock()
        newest = max(segments, key=lambda segment: segment.event_timestamp, default=None)
        if newest is None or newest.event_timestamp <= now + self.max_skew_ms:
            return
        raise DeletionRefusedError(
            f"{partition}: segment {newest.segment_id.id} became {newest.state.name} at "
            f"{as_date(newest.event_timestamp)}, and this machine's clock shows {as_date(now)}: it is behind, or the "
            "one of an earlier run was ahead. Nothing of the partition is deleted. Set the clock by NTP. If it is "
            f"right, 'tiered-storage undelete {partition.topic}' takes back what was marked then; the partition is "
            "deleted from again once that time has come, or by a run with a larger clock.max.skew.ms"
        )
