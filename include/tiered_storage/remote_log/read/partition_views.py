"""Keeps what was seen of partitions for as long as it is fresh enough, within a bounded number of segments."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from tiered_storage.remote_log.model import TopicIdPartition
from tiered_storage.remote_log.read.fetch_deadline import FetchDeadline, ReadTiming
from tiered_storage.remote_log.read.partition_view import PartitionView
from tiered_storage.remote_log.read.reader_pools import ReaderPool

MOST_SEGMENTS = 200_000
"""The most segments that are kept of all partitions together, about 1 KB each; the last used partition always is."""
AGE_A_COST = 20
"""So many times as old as it took to look may a view be: looking takes at most a twentieth of the time."""


@dataclass(frozen=True, slots=True)
class _Seen:
    view: PartitionView
    fresh_until: float
    rested_from: float
    """When (seconds) as much time will have passed since the look as it took."""

    @property
    def segments(self) -> int:
        local = 0 if self.view.local is None else len(self.view.local.segments)
        return 1 + len(self.view.coverage.ranges) + local


class PartitionViews:
    """What was seen of partitions; two who ask for the same at once share one look. Safe from any thread."""

    def __init__(
        self,
        look: Callable[[TopicIdPartition], PartitionView],
        pool: ReaderPool,
        max_age_ms: int,
        timing: ReadTiming,
        most_segments: int = MOST_SEGMENTS,
    ) -> None:
        """Look by `look`, on the threads of `pool`, at what is older than `max_age_ms`."""
        self._look = look
        self._pool = pool
        self._max_age = max_age_ms / 1000
        self._timing = timing
        self._most_segments = most_segments
        self._lock = threading.Lock()
        self._seen: OrderedDict[TopicIdPartition, _Seen] = OrderedDict()
        self._looking: dict[TopicIdPartition, Future[PartitionView]] = {}

    def fresh(self, partition: TopicIdPartition) -> PartitionView | None:
        """Return the view that is kept, if it is fresh."""
        with self._lock:
            seen = self._seen.get(partition)
            if seen is None or self._timing.now() > seen.fresh_until:
                return None
            self._seen.move_to_end(partition)
            return seen.view

    async def get(self, partition: TopicIdPartition, deadline: FetchDeadline) -> PartitionView:
        """Return a view that is fresh. Raises what looking raises, and ReadTimedOutError."""
        known = self.fresh(partition)
        return await deadline.outcome(self._begin(partition), str(partition)) if known is None else known

    async def anew(self, partition: TopicIdPartition, deadline: FetchDeadline) -> PartitionView:
        """Return what a look sees that begins after this call, whatever is known. Raises as `get`.

        Between two looks passes as much time as the first one took, whoever asks and how often: looking at one
        partition never takes more than half of a thread.
        """
        with self._lock:
            under_way, before = self._looking.get(partition), self._seen.get(partition)
        earlier = None if before is None else before.view
        if under_way is not None:
            earlier = await deadline.outcome(under_way, str(partition))
        seen = self._last_seen(partition)
        if seen is not None and seen.view is earlier:
            await deadline.pass_until(seen.rested_from, str(partition))
            seen = self._last_seen(partition)
        if seen is not None and seen.view is not earlier:
            return seen.view
        return await deadline.outcome(self._begin(partition), str(partition))

    def _last_seen(self, partition: TopicIdPartition) -> _Seen | None:
        with self._lock:
            return self._seen.get(partition)

    def _begin(self, partition: TopicIdPartition) -> Future[PartitionView]:
        """Return the look that is under way, or else a new one."""
        with self._lock:
            looking = self._looking.get(partition)
            if looking is None:
                looking = self._looking[partition] = self._pool.submit(lambda: self._look_now(partition))
            return looking

    def _look_now(self, partition: TopicIdPartition) -> PartitionView:
        begun = self._timing.now()
        try:
            view = self._look(partition)
        except BaseException:
            with self._lock:
                self._looking.pop(partition, None)
                self._seen.pop(partition, None)
            raise
        now = self._timing.now()
        cost = now - begun
        seen = _Seen(view, now + max(self._max_age, AGE_A_COST * cost), now + cost)
        with self._lock:
            self._looking.pop(partition, None)
            self._seen[partition] = seen
            self._seen.move_to_end(partition)
            held = sum(each.segments for each in self._seen.values())
            while held > self._most_segments and len(self._seen) > 1:
                held -= self._seen.popitem(last=False)[1].segments
        return view
