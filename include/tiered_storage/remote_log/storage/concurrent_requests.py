"""Requests about many segments or partitions: several at the same time, since each mostly waits for the store."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

REQUESTS_AT_ONCE = 8


def concurrent_map(work: Callable[[Item], Result], items: Collection[Item]) -> Iterator[Result]:
    """Yield what `work` returns for each of `items`, in their order; at most REQUESTS_AT_ONCE run at the same time.

    Raises what `work` raises, in place of that item's result, once all that run have ended.
    """
    if len(items) < 2:
        yield from map(work, items)
        return
    with ThreadPoolExecutor(min(REQUESTS_AT_ONCE, len(items))) as pool:
        yield from pool.map(work, items)
