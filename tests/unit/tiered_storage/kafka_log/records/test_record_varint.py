from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiered_storage.kafka_log.records.record import append_varint, read_varint, read_varlong

int32, int64 = (st.integers(-(1 << bits - 1), (1 << bits - 1) - 1) for bits in (32, 64))


@given(int64, st.binary(max_size=3), st.binary(max_size=3))
def test_every_varlong_survives_between_other_bytes(value: int, before: bytes, after: bytes) -> None:
    out = bytearray(before)

    append_varint(out, value)

    assert read_varlong(bytes(out) + after, len(before)) == (value, len(out))


@given(int32, st.binary(max_size=3), st.binary(max_size=3))
def test_every_varint_survives_between_other_bytes(value: int, before: bytes, after: bytes) -> None:
    out = bytearray(before)

    append_varint(out, value)

    assert read_varint(bytes(out) + after, len(before)) == (value, len(out))


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (0, "00"),
        (-1, "01"),
        (1, "02"),
        (63, "7e"),
        (-64, "7f"),
        (64, "8001"),
        (-65, "8101"),
        (8191, "fe7f"),
        (8192, "808001"),
        ((1 << 31) - 1, "feffffff0f"),
        (-(1 << 63), "ffffffffffffffffff01"),
    ],
)
def test_values_are_encoded_as_protocol_buffers_do(value: int, encoded: str) -> None:
    out = bytearray()

    append_varint(out, value)

    assert out.hex() == encoded
    assert read_varlong(bytes(out), 0) == (value, len(out))


@given(int64.filter(lambda value: not -64 <= value < 64))
def test_a_value_that_the_buffer_cuts_is_an_index_error(value: int) -> None:
    out = bytearray()
    append_varint(out, value)

    for end in range(len(out)):
        with pytest.raises(IndexError):
            read_varlong(bytes(out[:end]), 0)


@pytest.mark.parametrize(
    ("encoded", "value"),
    [("ffffffffffffffffff02", -(1 << 62)), ("ff" * 9 + "7f", -(1 << 63)), ("84" + "80" * 8 + "02", 2)],
)
def test_more_than_64_bits_are_dropped(encoded: str, value: int) -> None:
    assert read_varlong(bytes.fromhex(encoded), 0) == (value, 10)


@pytest.mark.parametrize(
    ("encoded", "value"), [("ffffffff10", -(1 << 27)), ("ffffffff7f", -(1 << 31)), ("8180808010", -1)]
)
def test_more_than_32_bits_are_dropped(encoded: str, value: int) -> None:
    assert read_varint(bytes.fromhex(encoded), 0) == (value, 5)


@pytest.mark.parametrize(("read", "most"), [(read_varint, 5), (read_varlong, 10)])
def test_an_endless_varint_is_refused(read: Callable[[bytes, int], tuple[int, int]], most: int) -> None:
    with pytest.raises(ValueError, match=f"longer than {most} bytes"):
        read(b"\x80" * 1000, 0)
