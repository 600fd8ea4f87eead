"""Of a damaged segment each batch is found that is still sound, however little of it is held at once."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.remote_logs import BATCH_BYTES, ORDERS_0, records
from tiered_storage.errors import RemoteObjectCorruptError
from tiered_storage.kafka_log.records.record_batch import encode_batch
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
