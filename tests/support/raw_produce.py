"""Batches sent to a broker as they are, byte for byte: what no client would make itself.

One Produce request of version 7, the first that lets zstd pass (strings have an int16 length, bytes and arrays int32):

    request    size int32; api key int16 0, api version int16 7, correlation id int32, client id string
               transactional id string, -1: null; acks int16 -1: all; timeout int32 in ms
               1 topic: name string; 1 partition: number int32, records bytes
    response   size int32; correlation id int32; 1 topic: name string; 1 partition: number int32
               error code int16, base offset int64, log append time int64, log start offset int64; throttle time int32

Source: Kafka's protocol guide.
"""

from __future__ import annotations

import socket
import struct
import time

_TIMEOUT_SECONDS = 30
_NOT_YET = frozenset({3, 6})
"""Unknown topic or partition, and not its leader: what a broker says of partitions that were created just now."""
_CORRELATION_ID = 7


class ProduceRefusedError(RuntimeError):
    """A broker did not take a batch; `code` is Kafka's number of the error."""

    def __init__(self, code: int) -> None:
        super().__init__(f"the broker refused the batch with error code {code}")
        self.code = code


def produce_batch(bootstrap_servers: str, topic: str, partition: int, batch: bytes) -> int:
    """Have the broker append `batch` and return the offset it got; ProduceRefusedError where it does not."""
    end = time.monotonic() + _TIMEOUT_SECONDS
    while True:
        code, base_offset = _ask(bootstrap_servers, topic, partition, batch)
        if not code:
            return base_offset
        if code not in _NOT_YET or time.monotonic() > end:
            raise ProduceRefusedError(code)
        time.sleep(0.05)


def _ask(bootstrap_servers: str, topic: str, partition: int, batch: bytes) -> tuple[int, int]:
    """Send `batch` once and return error code and base offset."""
    host, port = bootstrap_servers.split(":")
    with socket.create_connection((host, int(port)), _TIMEOUT_SECONDS) as connection:
        connection.sendall(_request(topic, partition, batch))
        with connection.makefile("rb") as answers:
            (size,) = struct.unpack(">i", answers.read(4))
            answer = answers.read(size)
    code, base_offset = struct.unpack_from(">hq", answer, 4 + 4 + 2 + len(topic) + 4 + 4)
    return code, base_offset


def _request(topic: str, partition: int, batch: bytes) -> bytes:
    header = struct.pack(">hhi", 0, 7, _CORRELATION_ID) + _string("golden")
    body = struct.pack(">hhi", -1, -1, _TIMEOUT_SECONDS * 1000)
    body += struct.pack(">i", 1) + _string(topic) + struct.pack(">iii", 1, partition, len(batch)) + batch
    return struct.pack(">i", len(header + body)) + header + body


def _string(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()
