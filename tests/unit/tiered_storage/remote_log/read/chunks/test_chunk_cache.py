from __future__ import annotations

import threading
from collections.abc import Hashable, Iterator

import pytest

from tiered_storage.errors import ReaderBusyError, RemoteStorageError
from tiered_storage.remote_log.read.chunks.chunk_cache import ChunkCache
from tiered_storage.remote_log.read.chunks.reader_pools import ReaderPool


@pytest.fixture
def pool() -> Iterator[ReaderPool]:
    pool = ReaderPool("reads", 2, 2)
    yield pool
    pool.close()


class Disk:
    """Keeps everything that has no room in memory."""

    def __init__(self) -> None:
        self.kept: dict[Hashable, bytes] = {}

    def put(self, key: Hashable, kept: bytes) -> None:
        self.kept[key] = kept

    def take(self, key: Hashable) -> bytes | None:
        return self.kept.get(key)

    def close(self) -> None:
        self.kept.clear()


def get(cache: ChunkCache[bytes], key: Hashable, content: bytes) -> bytes:
    shared = cache.join(key, lambda: content)
    try:
        return shared.future.result(10)
    finally:
        cache.leave(shared)


def test_two_readers_of_a_chunk_share_one_fetch(pool: ReaderPool) -> None:
    cache: ChunkCache[bytes] = ChunkCache(pool, 100, len)
    proceed, calls = threading.Event(), []

    def fetch() -> bytes:
        calls.append(1)
        assert proceed.wait(10)
        return b"content"

    both = [cache.join("key", fetch) for _ in range(2)]
    proceed.set()
    assert [each.future.result(10) for each in both] == [b"content"] * 2
    assert get(cache, "key", b"never asked for") == b"content"
    assert (len(calls), cache.fetches) == (1, 1)


def test_memory_is_bounded_and_keeps_what_was_used_last(pool: ReaderPool) -> None:
    cache: ChunkCache[bytes] = ChunkCache(pool, 100, len)
    for key in "abc":
        get(cache, key, bytes(40))
        get(cache, "a", bytes(40))
        assert cache.held_bytes <= 100
    assert [cache.known(key) is not None for key in "abc"] == [True, False, True]
    get(cache, "too large", bytes(101))
    assert cache.known("too large") is None
    assert cache.held_bytes == 80


def test_chunks_evicted_from_memory_are_read_from_the_disk(pool: ReaderPool) -> None:
    disk = Disk()
    cache: ChunkCache[bytes] = ChunkCache(pool, 100, len, disk)
    get(cache, "a", b"a" * 60)
    get(cache, "b", b"b" * 60)
    pool.submit(lambda: None).result(10)  # the evicted chunk is written after the answer
    assert get(cache, "a", b"fetched again") == b"a" * 60
    cache.close()
    assert (cache.held_bytes, disk.kept) == (0, {})


def test_an_error_reaches_all_who_wait_and_is_not_cached(pool: ReaderPool) -> None:
    cache: ChunkCache[bytes] = ChunkCache(pool, 100, len)

    def fail() -> bytes:
        raise RemoteStorageError("down")

    shared = cache.join("key", fail)
    with pytest.raises(RemoteStorageError, match="down"):
        shared.future.result(10)
    assert get(cache, "key", b"up again") == b"up again"


def test_leaving_withdraws_only_unstarted_chunks_with_no_other_waiter() -> None:
    pool = ReaderPool("reads", 1, 2)
    cache: ChunkCache[bytes] = ChunkCache(pool, 100, len)
    proceed, begun = threading.Event(), threading.Event()

    def wait() -> bytes:
        begun.set()
        assert proceed.wait(10)
        return b"running"

    running = cache.join("running", wait)
    assert begun.wait(10)
    wanted_by_two = [cache.join("two", lambda: b"two") for _ in range(2)]
    wanted_by_one = cache.join("one", lambda: b"one")
    with pytest.raises(ReaderBusyError):
        cache.join("another", lambda: b"")

    cache.leave(running)
    cache.leave(wanted_by_one)
    cache.leave(wanted_by_two[0])
    assert wanted_by_one.future.cancelled()
    assert pool.pending == 1
    proceed.set()
    assert wanted_by_two[1].future.result(10) == b"two"
    assert cache.known("running") == b"running"
    assert get(cache, "one", b"asked again") == b"asked again"
    pool.close()
