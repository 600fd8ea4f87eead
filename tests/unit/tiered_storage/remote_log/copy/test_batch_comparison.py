"""Of a damaged segment each batch is found that is still sound, however little of it is held at once."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.remote_logs import BATCH_BYTES, ORDERS_0, records
from tiered_storage.errors import RemoteObjectCorruptError
from tiered_storage.kafka_log.records.compression import Compression
from tiered_storage.kafka_log.records.legacy_message import encode_messages, read_true_header
from tiered_storage.kafka_log.records.record import Record
from tiered_storage.kafka_log.records.record_batch import encode_batch, iterate_batches
from tiered_storage.remote_log.copy import batch_comparison
from tiered_storage.remote_log.copy.batch_comparison import sound_batches
from tiered_storage.remote_log.model import RemoteLogSegmentId, RemoteLogSegmentMetadata

BATCHES = 6
CONTENT = b"".join(encode_batch(records(5 * number, 5 * number + 5)) for number in range(BATCHES))
SEGMENT = RemoteLogSegmentMetadata(RemoteLogSegmentId(ORDERS_0, "a" * 22), 0, 5 * BATCHES - 1, 0, 0, len(CONTENT), ())


def reader(content: bytes) -> Callable[[int, int], bytes]:
    def read(position: int, size: int) -> bytes:
        if position + size > len(content):
            raise RemoteObjectCorruptError("it ends before that")
        return content[position : position + size]

    return read


def found(content: bytes) -> list[tuple[int, int]]:
    batches = list(sound_batches(SEGMENT, len(content), reader(content)))
    return [pair for each in batches for pair in zip(each.base.tolist(), each.last.tolist(), strict=True)]


@given(
    st.sets(st.integers(0, BATCHES - 1)),
    st.sampled_from([8, 9, 11, 16, 17, 20, 23, 26, 40, 57, 61, BATCH_BYTES - 1]),
    st.sampled_from([61, 64, 100, 500, 1 << 20]),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_broken_batches_are_left_out(
    monkeypatch: pytest.MonkeyPatch, broken: set[int], at: int, window_bytes: int
) -> None:
    monkeypatch.setattr(batch_comparison, "_WINDOW_BYTES", window_bytes)
    content = bytearray(CONTENT)
    for number in broken:
        content[number * BATCH_BYTES + at] ^= 0x41

    assert found(bytes(content)) == [(5 * each, 5 * each + 4) for each in range(BATCHES) if each not in broken]


@given(st.integers(0, len(CONTENT)))
def test_a_cut_batch_ends_the_comparison(size: int) -> None:
    assert found(CONTENT[:size]) == [(5 * each, 5 * each + 4) for each in range(size // BATCH_BYTES)]


def legacy_segment() -> list[bytes]:
    """Messages of magic 0 and 1, alone and compressed, and a batch between them."""
    without_headers = [Record(each.offset, each.timestamp, each.key, each.value) for each in records(0, 25)]
    alone = [encode_messages([record], number % 2) for number, record in enumerate(without_headers[:5])]
    wrapped = [encode_messages(without_headers[first : first + 5], first % 2, Compression.GZIP) for first in (5, 10)]
    short = encode_messages([Record(29, 0, None, None)], 0)
    return [*alone, *wrapped, encode_batch(records(15, 20)), encode_messages(without_headers[20:25], 1), short]


def offsets_of(batch: bytes) -> tuple[int, int]:
    header = read_true_header(batch)
    return header.base_offset, header.last_offset


@given(st.sets(st.integers(0, 8)), st.sampled_from([8, 16, 17, 18, 25]), st.sampled_from([61, 500, 1 << 20]))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_sound_messages_of_older_formats_are_found_between_broken_ones(
    monkeypatch: pytest.MonkeyPatch, broken: set[int], at: int, window_bytes: int
) -> None:
    monkeypatch.setattr(batch_comparison, "_WINDOW_BYTES", window_bytes)
    whole = legacy_segment()
    damaged = [bytearray(each) for each in whole]
    for number in broken:
        damaged[number][at] ^= 0x41
    every = [[offsets_of(bytes(batch)) for _, batch in iterate_batches(each)] for each in whole]
    expected = [pair for number, pairs in enumerate(every) if number not in broken for pair in pairs]
    if 8 in broken:
        # The first of five messages is broken, the others are not.
        expected = sorted([*expected, *every[8][1:]])

    assert found(b"".join(damaged)) == expected
