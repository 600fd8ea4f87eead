from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from support.records import batches_of
from tiered_storage.kafka_log.kernels import constants
from tiered_storage.kafka_log.kernels.checksum import crc32c
from tiered_storage.kafka_log.kernels.constants import BATCH_OVERHEAD, CRC_END, INT32_MAX
from tiered_storage.kafka_log.kernels.machine_code import address_of, has_checksum_instructions, load_kernels
from tiered_storage.kafka_log.records.batch_table import BatchTable

KERNELS = load_kernels()
HEADER = struct.Struct(">qiibIhiqqqhii")
int16, int32, int64 = (st.integers(-(1 << bits - 1), (1 << bits - 1) - 1) for bits in (16, 32, 64))


@st.composite
def headers(draw: st.DrawFn) -> bytes:
    """The header of a batch and some bytes after it, each field right most of the time."""
    size = draw(st.integers(49, 60) | st.sampled_from([49, 48, 0, -1, INT32_MAX]))
    magic = draw(st.sampled_from([2] * 20 + [0, 1, 3]))
    delta = draw(st.integers(0, 5) | st.sampled_from([-1, INT32_MAX]))
    count = draw(st.integers(0, 6) | st.just(-1))
    attributes = draw(st.integers(0, 4) | int16)
    fields = (draw(st.integers(0, 60) | int64), size, draw(int32), magic, draw(st.integers(0, (1 << 32) - 1)))
    more = (attributes, delta, draw(int64), draw(int64), draw(int64), draw(int16), draw(int32), count)
    return HEADER.pack(*fields, *more) + bytes(max(0, min(size, 100) - 49))


@settings(deadline=None)
@given(
    batches=st.lists(headers(), max_size=8),
    cut=st.integers(0, 70),
    position=st.integers(0, 1 << 40),
    base_offset=st.integers(0, 20),
    capacity=st.integers(0, 10),
)
def test_headers_are_read_as_a_plain_loop_reads_them(
    batches: list[bytes], cut: int, position: int, base_offset: int, capacity: int
) -> None:
    data = b"".join(batches)
    window = _window(data[: max(0, len(data) - cut)])

    count = KERNELS.count_batches(address_of(window), window.size)
    table, result = BatchTable.allocate(capacity), np.empty(2, np.int64)
    places = (address_of(table.base_offset), capacity, address_of(result))
    status = KERNELS.read_headers(address_of(window), window.size, position, base_offset, base_offset, *places)
    found = (*result.tolist(), status)

    assert count == _count_batches(window.tobytes())
    rows, *expected = _read_headers(window.tobytes(), count, position, base_offset, capacity)
    assert found == (len(rows), *expected)
    assert [tuple(int(column[i]) for column in table.columns()) for i in range(len(rows))] == rows


@settings(deadline=None)
@given(counts=st.lists(st.integers(1, 3), min_size=1, max_size=6), flips=st.lists(st.floats(0, 1, exclude_max=True)))
def test_checksums_are_those_of_a_plain_loop(counts: list[int], flips: list[float]) -> None:
    data = bytearray(b"".join(batches_of(counts)))
    positions, sizes = _places(batches_of(counts), first=500)
    for flip in flips:
        data[int(flip * len(data))] ^= 1

    found = _first_mismatch(_window(bytes(data)), 500, positions, sizes)

    sound = [
        crc32c(data[at - 500 + CRC_END : at - 500 + size]).to_bytes(4, "big")
        == data[at - 500 + 17 : at - 500 + CRC_END]
        for at, size in zip(positions.tolist(), sizes.tolist(), strict=True)
    ]
    assert found == (sound.index(False) if False in sound else -1)


@pytest.mark.parametrize(
    ("data", "checksum"),
    [(b"123456789", 0xE3069283), (bytes(32), 0x8A9136AA), (b"\xff" * 32, 0x62A8AB43), (bytes(range(32)), 0x46DD794E)],
)
def test_the_compiled_checksum_has_the_vectors_of_rfc_3720(data: bytes, checksum: int) -> None:
    window = _window(bytes(17) + checksum.to_bytes(4, "big") + data)
    place = np.array([0]), np.array([CRC_END + len(data)])

    assert _first_mismatch(window, 0, *place) == -1


def _first_mismatch(
    window: NDArray[np.uint8], position: int, positions: NDArray[np.int64], sizes: NDArray[np.int64]
) -> int:
    assert has_checksum_instructions(), "the machines that run these tests have them"
    places = (address_of(positions), address_of(sizes), positions.size)
    return KERNELS.first_mismatch(address_of(window), window.size, position, *places)


def _window(data: bytes) -> NDArray[np.uint8]:
    window = np.frombuffer(data, np.uint8)
    window.flags.writeable = False
    return window


def _places(batches: list[bytes], first: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    sizes = np.array([len(batch) for batch in batches])
    return first + np.cumsum(sizes) - sizes, sizes


def _count_batches(window: bytes) -> int:
    count = at = 0
    while at + BATCH_OVERHEAD <= len(window):
        size = 12 + int.from_bytes(window[at + 8 : at + 12], "big", signed=True)
        if size < BATCH_OVERHEAD or at + size > len(window):
            break
        count += 1
        at += size
    return count


def _read_headers(
    window: bytes, count: int, position: int, base_offset: int, capacity: int
) -> tuple[list[tuple[int, ...]], int, int]:
    rows: list[tuple[int, ...]] = []
    at = 0
    lowest = base_offset
    for row in range(count):
        if row == capacity:
            return rows, at, constants.TABLE_FULL
        (
            first, length, epoch, magic, _, attributes, delta, base_timestamp, max_timestamp,
            producer_id, producer_epoch, base_sequence, record_count,
        ) = HEADER.unpack_from(window, at)  # fmt: skip
        last = first + delta
        if magic != 2 or first < 0 or delta < 0 or not 0 <= record_count <= delta + 1 or attributes & 7 > 4:
            return rows, at, constants.BROKEN_HEADER
        if first < lowest or last - base_offset > INT32_MAX:
            return rows, at, constants.BROKEN_OFFSETS
        rows.append((
            first, last, position + at, 12 + length, base_timestamp, max_timestamp, epoch, attributes, record_count,
            producer_id, producer_epoch, base_sequence,
        ))  # fmt: skip
        lowest = last + 1
        at += 12 + length
    return rows, at, constants.HEADERS_SOUND
