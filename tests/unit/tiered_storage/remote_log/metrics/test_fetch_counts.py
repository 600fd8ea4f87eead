from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import generate_latest

from support.remote_logs import a_copied_remote_log, segments_of
from support.scraping import KAFKA, Scrape
from tiered_storage.errors import RemoteObjectNotFoundError
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.metrics.fetch_counts import CountedStorage, FetchCounts


@pytest.fixture
def remote_log(tmp_path: Path) -> Iterator[RemoteLogManager]:
    with a_copied_remote_log(tmp_path).open() as opened:
        yield opened


def fetched(counts: FetchCounts) -> list[float | None]:
    found = Scrape.of(generate_latest(counts.registry).decode())
    return [found.value(f"{KAFKA}remotefetch{name}_total", topic="orders") for name in ("requests", "bytes", "errors")]


def test_reads_of_segments_are_counted_by_topic_with_their_bytes(remote_log: RemoteLogManager) -> None:
    counts = FetchCounts()
    storage = CountedStorage(remote_log.context.storage, counts)
    first, second, _ = segments_of(remote_log)
    assert fetched(counts) == [None, None, None]
    whole = b"".join(storage.fetch_log_segment(first))
    assert len(b"".join(storage.fetch_log_segment(second, 10, 19))) == 10
    assert fetched(counts)[:2] == [2, len(whole) + 10]


def test_a_failed_read_is_an_error(remote_log: RemoteLogManager) -> None:
    counts = FetchCounts()
    storage = CountedStorage(remote_log.context.storage, counts)
    first, *_ = segments_of(remote_log)
    storage.delete_log_segment_data(first)
    with pytest.raises(RemoteObjectNotFoundError):
        list(storage.fetch_log_segment(first))
    assert fetched(counts) == [1, None, 1]
