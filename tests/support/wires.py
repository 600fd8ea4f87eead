"""A connection of asyncio without a peer."""

from __future__ import annotations

import asyncio
import struct

from tiered_storage.kafka_wire.server.frame_protocol import FrameProtocol


class Wire(asyncio.Transport):
    """What the protocol sends, and whether it is read."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = bytearray()
        self.is_read = True
        self.closed = False
        self.aborted = False
        self.unsent = 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.sent += data

    def pause_reading(self) -> None:
        self.is_read = False

    def resume_reading(self) -> None:
        self.is_read = True

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = self.aborted = True

    def get_extra_info(self, name: str, default: object = None) -> object:
        return ("127.0.0.1", 1) if name == "peername" else default

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass


def framed(body: bytes) -> bytes:
    """Return the frame of `body`."""
    return struct.pack(">i", len(body)) + body


def arrive(protocol: FrameProtocol, data: bytes, at_once: int = 1 << 30) -> None:
    """Let `data` arrive at `protocol`, in buffers of `at_once` bytes at most."""
    while data:
        buffer = protocol.get_buffer(-1)
        count = min(len(buffer), len(data), at_once)
        assert count
        buffer[:count] = data[:count]
        protocol.buffer_updated(count)
        data = data[count:]
