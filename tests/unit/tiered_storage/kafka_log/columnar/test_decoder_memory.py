"""A decoder uses its memory again, and never what somebody still looks at."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from types import FrameType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from support.records import Row, batches_of, expected_rows
from tiered_storage.kafka_log.columnar import decoder as columnar
from tiered_storage.kafka_log.columnar.chunk_memory import ChunkMemory
from tiered_storage.kafka_log.columnar.decoder import ColumnDecoder, RecordRange
from tiered_storage.kafka_log.columnar.record_columns import SCHEMA
from tiered_storage.kafka_log.kernels.constants import KEYS, VALUES
from tiered_storage.kafka_log.kernels.machine_code import address_of
from tiered_storage.kafka_log.records.record_batch import Compression, Record, encode_batch
from tiered_storage.kafka_log.records.segment_scan import SegmentScanner
from unit.tiered_storage.kafka_log.columnar.decoded_batches import MIB, decode, record_batches


def test_one_batch_of_very_many_records_makes_chunks_of_equal_size() -> None:
    batch = encode_batch([Record(i, 0, None, None) for i in range(150_000)], Compression.LZ4)

    decoded = [*record_batches([batch], chunk_bytes=MIB)]

    assert [each.num_rows for each in decoded] == [50_000, 50_000, 50_000]
    assert pa.Table.from_batches(decoded)["offset"].to_pylist() == [*range(150_000)]


def test_chunks_of_more_records_than_fit_are_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columnar, "_MOST_ROWS", 1000)
    decoder, addresses = ColumnDecoder("a segment"), set()
    for records in (1120, 1150, 1200, 1300, 1900) * 2:
        window = b"".join(batches_of([records // 10] * 10))
        table, _ = SegmentScanner("a segment", 0).feed(memoryview(window))
        rows = []
        for batch in decoder.decode(memoryview(window), table):
            rows.append(batch.num_rows)
            addresses.add(batch.column("offset").buffers()[1].address)
        assert rows == [records // 2, records // 2]

    assert len(addresses) <= 6


def test_decoded_batches_do_not_keep_their_chunk_in_memory() -> None:
    batches = batches_of([1000, 1000], value=bytes(500))

    decoded = [*record_batches(batches, within=RecordRange(first_offset=1999))]

    assert [batch.num_rows for batch in decoded] == [1]
    assert decoded[0].get_total_buffer_size() < 10_000


@pytest.mark.parametrize("value_views", [False, True])
def test_a_chunk_is_used_again_only_when_nobody_keeps_anything_of_it(value_views: bool) -> None:
    batches = [encode_batch([Record(offset, offset, b"k%d" % offset, b"v%d" % offset * 50)]) for offset in range(60)]
    kept: list[pa.Array] = []
    dropped: set[int] = set()

    for batch in record_batches(batches, chunk_bytes=500, value_views=value_views):
        address = batch.column("offset").buffers()[1].address
        assert address not in {each.buffers()[1].address for each in kept}
        if len(kept) < 3:
            kept.append(batch.column("offset"))
        else:
            dropped.add(address)

    offsets = [offset for each in kept for offset in each.to_pylist()]
    assert offsets == [*range(len(offsets))]
    assert 0 < len(dropped) < 5


def test_the_memory_of_a_large_batch_is_freed() -> None:
    batches = [encode_batch([Record(0, 0, None, bytes(20 * MIB))]), encode_batch([Record(1, 1, None, b"v")])]
    before = pa.total_allocated_bytes()

    decoded = record_batches(batches, ["value"])
    assert [next(decoded).num_rows, pa.total_allocated_bytes() > before + 20 * MIB] == [1, True]
    assert next(decoded).num_rows == 1
    assert pa.total_allocated_bytes() < before + MIB


def test_a_profiler_does_not_make_the_decoder_overwrite_its_results() -> None:
    batches = [encode_batch([Record(offset, offset, b"k", b"v" * 100)]) for offset in range(60)]
    looks: list[int] = []

    def look(frame: FrameType, event: str, _: object) -> None:
        if "chunk_memory" in frame.f_code.co_filename and event != "call":
            looks.append(len(frame.f_locals))

    sys.setprofile(look)
    try:
        kept = [*record_batches(batches, ["offset", "value"], chunk_bytes=500)]
    finally:
        sys.setprofile(None)

    assert looks
    assert [offset for batch in kept for offset in batch.column("offset").to_pylist()] == [*range(60)]


@pytest.mark.parametrize("missing", range(6))
def test_a_chunk_that_finds_no_memory_leaves_the_decoder_whole(missing: int, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = ChunkMemory(SCHEMA)
    memory.allocate(4, 100)
    found: list[int] = []

    def take(make: Callable[..., NDArray[Any]]) -> Callable[..., NDArray[Any]]:
        def take_or_fail(size: int, *arguments: object) -> NDArray[Any]:
            if len(found) == missing:
                raise MemoryError
            found.append(size)
            return make(size, *arguments)

        return take_or_fail

    with monkeypatch.context() as patch, pytest.raises(MemoryError):
        patch.setattr(np, "empty", take(np.empty))
        patch.setattr(np, "zeros", take(np.zeros))
        memory.allocate(4, 10_000)

    for size in (100, 10_000):
        chunk = memory.allocate(4, size)
        kept: list[NDArray[Any]] = [memory.keys, *memory.header_texts, *memory.header_ends]
        assert min(memory.keys.size, memory.header_texts[0].size, memory.header_texts[1].size) >= size
        assert {*chunk.places[KEYS:].tolist()} - {chunk.places[VALUES]} == {address_of(array) for array in kept}


@pytest.mark.parametrize("last_timestamp", [1000, 10])
def test_views_release_decompressed_batches_without_selected_records(last_timestamp: int) -> None:
    times = [1000] * 20 + [last_timestamp]
    batches = [
        encode_batch([Record(offset, time, None, bytes(2 * MIB))], Compression.ZSTD)
        for offset, time in enumerate(times)
    ]

    tracemalloc.start()
    decoded = [*record_batches(batches, ["value"], RecordRange(end_timestamp=500), value_views=True)]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert sum(batch.num_rows for batch in decoded) == (last_timestamp < 500)
    assert peak < 10 * MIB


def test_a_decoder_in_each_thread_reads_alike() -> None:
    # No two are alike, so that nothing of another thread's could pass for one's own.
    segments = [
        batches_of([50] * 20, base_offset=number << 20, value=b"value %d" % number, compression=codec)
        for number, codec in enumerate([*Compression] * 4)
    ]
    expected = [[*expected_rows(batches)] for batches in segments]
    all_begin = Barrier(4)

    def decode_after_the_others_are_there(batches: list[bytes]) -> list[Row]:
        all_begin.wait(60)
        return decode(batches)

    with ThreadPoolExecutor(4) as pool:
        assert [*pool.map(decode_after_the_others_are_there, segments)] == expected
