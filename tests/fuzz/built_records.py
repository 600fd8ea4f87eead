"""Records made field by field from a fuzzer's bytes: sound but for a number here and there that is a little off.

Bytes that are only flipped seldom make a length wrong by one and leave all others right. Here most of the input chooses
among sound fields, and few of its values put one off.
"""

from __future__ import annotations

from tiered_storage.kafka_log.kernels.constants import BATCH_OVERHEAD, CRC_END
from tiered_storage.kafka_log.records.record import append_varint
from tiered_storage.kafka_log.records.record_batch import Record, encode_batch

_FIELDS = (None, b"", b"k", b"value", bytes(16), bytes(17), b"a" * 64, b"a" * 300)
_HEADER_KEYS = (
    b"", b"k", "größe".encode(), b"a" * 8, b"12345678\xc3\xa9", b"\xc3", b"abc\xe2\x82", b"\xed\xa0\x80",
    b"\xf4\x90\x80\x80", b"\xf0\x9f\x98\x80", b"\x80", b"1234567\xf0", None,
)  # fmt: skip
_SOUND = 240
_OFF_BY = (1, 1, 1, 1, 1, 1, -1, -1, -1, 2, -2, 64, 8192, (1 << 31) - 1, -(1 << 31), 1 << 33)
_TEMPLATE = encode_batch([Record(0, 5, None, None), Record(1, 125, None, None)])[:BATCH_OVERHEAD]
"""A latest time with most records before it and some after: readers trust it, whether it is true or not."""


class _Choices:
    """The input's bytes, one after the other, then zeros."""

    def __init__(self, content: bytes) -> None:
        self._bytes = iter(content)

    def next(self) -> int:
        return next(self._bytes, 0)

    def of(self, options: tuple[bytes | None, ...]) -> bytes | None:
        return options[self.next() % len(options)]

    def near(self, number: int) -> int:
        """Return `number`, or now and then another one."""
        chosen = self.next()
        return number if chosen < _SOUND else number + _OFF_BY[chosen - _SOUND]


def build_batch(content: bytes, *, with_codec: bool) -> bytes:
    """Return a batch whose length and checksum are not set, and whose records are not compressed yet."""
    choices = _Choices(content)
    count = choices.next() % 5
    batch = bytearray(_TEMPLATE)
    batch[8:12] = bytes(4)
    batch[CRC_END + 1] = choices.next() & 0b111000 | (choices.next() % 5 if with_codec else 0)
    batch[CRC_END + 2 : CRC_END + 6] = (choices.near(max(count, 1) - 1) & 0x7FFFFFFF).to_bytes(4, "big")
    batch[57:61] = (choices.near(count) & 0x7FFFFFFF).to_bytes(4, "big")
    for number in range(count):
        batch += _record(choices, number)
    return bytes(batch) + bytes(max(0, choices.near(0)) & 7)


def _record(choices: _Choices, number: int) -> bytes:
    body = bytearray(1)
    append_varint(body, choices.near(choices.next()))
    append_varint(body, choices.near(number))
    _append_field(body, choices.of(_FIELDS), choices)
    _append_field(body, choices.of(_FIELDS), choices)
    count = choices.next() % 4
    append_varint(body, choices.near(count))
    for _ in range(count):
        _append_field(body, choices.of(_HEADER_KEYS), choices)
        _append_field(body, choices.of(_FIELDS), choices)
    record = bytearray()
    append_varint(record, choices.near(len(body)))
    return bytes(record + body)


def _append_field(body: bytearray, content: bytes | None, choices: _Choices) -> None:
    append_varint(body, choices.near(-1 if content is None else len(content)))
    body += content or b""
