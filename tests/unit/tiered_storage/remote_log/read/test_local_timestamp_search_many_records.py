"""A batch may hold very many small records: few bytes on their way, many as objects."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from itertools import islice

import pytest

from tiered_storage.kafka_log.records.compression import Compression
from tiered_storage.kafka_log.records.record import Record
from tiered_storage.kafka_log.records.record_batch import encode_batch
from tiered_storage.kafka_log.records.segment_scan import SegmentScanner
from tiered_storage.remote_log.read.local_timestamp_search import ScannedBatches
from tiered_storage.remote_log.read.read_values import FetchedBatches, FoundOffset, Tier

MANY = 60_000
MOST_MEMORY = 3 << 20
"""Bytes; as objects all of them together take three times as many."""

# The last but one is the newest.
BATCH = encode_batch([Record(offset, offset % (MANY - 1), None, None) for offset in range(MANY)], Compression.ZSTD)
TABLE, _ = SegmentScanner("test", 0).feed(memoryview(BATCH))
SCANNED = ScannedBatches(BATCH, TABLE, "test", 0)


def memory_of(work: Callable[[], object]) -> int:
    """The bytes that `work` takes at most, the second time."""
    work()
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_the_first_records_are_given_before_the_last_are_made() -> None:
    fetched = FetchedBatches(BATCH, 7, MANY, Tier.REMOTE, "test", 0, TABLE)
    found: list[int] = []
    assert memory_of(lambda: found.extend(each.offset for each in islice(fetched.records(), 3))) < MOST_MEMORY
    assert found == [7, 8, 9] * 2


@pytest.mark.parametrize("timestamp", [0, MANY - 2, MANY - 1])
def test_a_search_by_time_does_not_hold_all_records_in_memory(timestamp: int) -> None:
    found: list[FoundOffset | None] = []
    assert memory_of(lambda: found.append(SCANNED.first_at_or_after(timestamp, 0, MANY))) < MOST_MEMORY
    assert found[0] == (FoundOffset(timestamp, timestamp, 0) if timestamp < MANY - 1 else None)


@pytest.mark.parametrize(("end", "expected"), [(MANY, MANY - 2), (MANY - 5, MANY - 6)])
def test_a_search_for_the_newest_does_not_hold_all_records_in_memory(end: int, expected: int) -> None:
    found: list[int] = []
    assert memory_of(lambda: found.append(SCANNED.largest(1, end))) < MOST_MEMORY
    assert found[0] == expected
