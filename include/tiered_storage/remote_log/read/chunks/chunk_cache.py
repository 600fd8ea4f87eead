"""A bounded cache of remote data, in memory and then on disk; concurrent readers share one fetch.

If a reader stops waiting and no other one waits, a fetch that has not begun leaves the queue; one that has begun
completes and is cached.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from tiered_storage.remote_log.read.chunks.reader_pools import ReaderPool

Kept = TypeVar("Kept")


class Overflow(Protocol[Kept]):
    """Takes what no longer fits into memory; called only by threads of the pool."""

    def put(self, key: Hashable, kept: Kept) -> None:
        """Keep it, if possible."""
        ...

    def take(self, key: Hashable) -> Kept | None:
        """Return it if it is unchanged; else None."""
        ...

    def close(self) -> None:
        """Drop everything."""
        ...


@dataclass(slots=True)
class SharedFetch(Generic[Kept]):
    """A fetch, and how many readers wait for it."""

    key: Hashable
    future: Future[Kept]
    waiting: int = 1


class ChunkCache(Generic[Kept]):
    """Caches the most recently used values, up to `memory_bytes` in all; `size_of` returns the size of one.

    Thread-safe.
    """

    def __init__(
        self,
        pool: ReaderPool,
        memory_bytes: int,
        size_of: Callable[[Kept], int],
        overflow: Overflow[Kept] | None = None,
    ) -> None:
        """Fetch on the threads of `pool`. `overflow` is closed with the cache."""
        self._pool = pool
        self._room = memory_bytes
        self._size_of = size_of
        self._overflow = overflow
        self._lock = threading.Lock()
        self._kept: OrderedDict[Hashable, Kept] = OrderedDict()
        self._fetching: dict[Hashable, SharedFetch[Kept]] = {}
        self.held_bytes = 0
        """How much is in memory."""
        self.fetches = 0
        """How many fetches have begun."""

    def known(self, key: Hashable) -> Kept | None:
        """Return what is in memory under `key`."""
        with self._lock:
            kept = self._kept.get(key)
            if kept is not None:
                self._kept.move_to_end(key)
            return kept

    def join(self, key: Hashable, fetch: Callable[[], Kept]) -> SharedFetch[Kept]:
        """Call `fetch` on a thread, or join the call that is under way; `leave` the result afterwards.

        Raises ReaderBusyError if the queue is full.
        """
        with self._lock:
            shared = self._fetching.get(key)
            if shared is not None:
                shared.waiting += 1
                return shared
            kept = self._kept.get(key)
            if kept is not None:
                future: Future[Kept] = Future()
                future.set_result(kept)
                self._kept.move_to_end(key)
                return SharedFetch(key, future)
            self.fetches += 1
            shared = SharedFetch(key, self._pool.submit(lambda: self._fetch(key, fetch)))
            self._fetching[key] = shared
            return shared

    def leave(self, shared: SharedFetch[Kept]) -> None:
        """Stop waiting; withdraw a fetch that has not begun and has no other waiter."""
        with self._lock:
            shared.waiting -= 1
            is_unwanted = shared.waiting == 0 and not shared.future.done()
            if is_unwanted and self._pool.withdraw(shared.future):
                self._fetching.pop(shared.key, None)

    def forget(self, key: Hashable) -> None:
        """Remove it from the cache."""
        with self._lock:
            self._drop(key)

    def close(self) -> None:
        """Drop everything that is cached."""
        with self._lock:
            self._kept.clear()
            self.held_bytes = 0
        if self._overflow is not None:
            self._overflow.close()

    def _fetch(self, key: Hashable, fetch: Callable[[], Kept]) -> Kept:
        evicted: list[tuple[Hashable, Kept]] = []
        try:
            kept = self._overflow.take(key) if self._overflow is not None else None
            if kept is None:
                kept = fetch()
            evicted = self._keep(key, kept)
        finally:
            with self._lock:
                self._fetching.pop(key, None)
        if self._overflow is not None:
            for each in evicted:
                self._overflow.put(*each)
        return kept

    def _keep(self, key: Hashable, kept: Kept) -> list[tuple[Hashable, Kept]]:
        """Cache it; return what was evicted."""
        size = self._size_of(kept)
        with self._lock:
            self._drop(key)
            if size > self._room:
                return []
            self._kept[key] = kept
            self.held_bytes += size
            evicted = []
            while self.held_bytes > self._room:
                oldest, value = self._kept.popitem(last=False)
                self.held_bytes -= self._size_of(value)
                evicted.append((oldest, value))
        return evicted

    def _drop(self, key: Hashable) -> None:
        kept = self._kept.pop(key, None)
        if kept is not None:
            self.held_bytes -= self._size_of(kept)
