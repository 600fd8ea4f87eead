from __future__ import annotations

import pytest

from tiered_storage.kafka_log.kernels.checksum import crc32c

ISCSI_READ_COMMAND = bytes.fromhex(
    "01c000000000000000000000000000001400000000000400000000140000001828000000000000000200000000000000"
)


@pytest.mark.parametrize(
    ("data", "checksum"),
    [
        (b"", 0),
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
        (ISCSI_READ_COMMAND, 0xD9963A56),
    ],
)
def test_the_vectors_of_rfc_3720_hold(data: bytes, checksum: int) -> None:
    assert crc32c(data) == checksum


def test_any_part_of_a_writable_buffer_is_read_where_it_lies() -> None:
    assert crc32c(memoryview(bytearray(b"xx123456789yy"))[2:11]) == 0xE3069283
