"""What goes out over a connection of asyncio: the buffers of frames, one after the other, as the socket takes them.

Buffers wait here as they were given, and go to the transport in pieces: asyncio copies what the socket does not take at
once, and would copy most of a large answer, more than once. `spliced` replaces parts of a frame without copying the
rest.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from tiered_storage.kafka_wire.connections.frames import SIZE_BYTES

Buffer = bytes | bytearray | memoryview

_SMALL_BUFFER: Final = 16 << 10
"""Buffers up to this size are joined before they are sent: a system call costs more than the copy."""
_PIECE: Final = 1 << 20
"""How much the transport gets at once: it copies a part of one piece each time the socket is full."""
_WRITE_LIMIT: Final = 64 << 10
"""How many bytes the transport may keep before it gets no more, and the other side is no longer read.

A TLS transport keeps the end of its handshake until it is read: a limit below that would stop both sides for ever.
"""
LINGER_SECONDS: Final = 30.0
"""How long the other side may take to read what waits for it once the connection is being closed."""
_SIZE: Final = struct.Struct(">i")


class SendQueue:
    """What waits to be sent over one connection, and the memory that it takes. For one event loop."""

    def __init__(self, give: Callable[[int], None]) -> None:
        """Call `give` with the bytes of memory that are free once what took them is sent."""
        self.is_writable = True
        """Whether all that was given is sent, or soon will be."""
        self._give = give
        self._transport: asyncio.Transport | None = None
        self._piece = _PIECE
        self._queued: deque[Buffer] = deque()
        self._held = 0
        """Bytes of memory to give back once all is sent."""
        self._written = 0
        self._is_full = False
        self._lingering: asyncio.TimerHandle | None = None

    def open(self, transport: asyncio.Transport) -> None:
        """Send over `transport`."""
        self._transport = transport
        if transport.get_extra_info("ssl_object") is not None:
            # A TLS transport counts a piece as sent once the transport below has it, and that one takes any size.
            self._piece = _WRITE_LIMIT
        # The transport copies what it cannot send at once, so give it no more until it has sent all.
        transport.set_write_buffer_limits(high=_WRITE_LIMIT, low=0)

    @property
    def sent(self) -> int:
        """How many bytes have gone out so far."""
        return self._written - (self._transport.get_write_buffer_size() if self._transport else 0)

    def send(self, buffers: Iterable[Buffer], memory: int) -> None:
        """Send `buffers` one after the other, or drop them if the connection is closed; give back `memory` after it."""
        transport = self._transport
        if transport is not None and not transport.is_closing():
            self._queued.extend(_pieces(buffers, self._piece))
            self._write(transport)
        self._held += memory
        if self.is_writable:
            self._give_back()

    def _write(self, transport: asyncio.Transport, *, to_the_end: bool = False) -> None:
        """Hand over what the socket takes, or all, which the transport copies."""
        queued = self._queued
        while queued and (to_the_end or not self._is_full) and not transport.is_closing():
            piece = queued.popleft()
            self._written += len(piece)
            transport.write(piece)

    def _give_back(self) -> None:
        if self._held:
            given, self._held = self._held, 0
            self._give(given)

    def pause(self) -> bool:
        """Wait, as the socket takes nothing; return whether that is new."""
        self._is_full = True
        was_writable, self.is_writable = self.is_writable, False
        return was_writable

    def unpause(self) -> None:
        """Note that the socket takes bytes again."""
        self._is_full = False

    def resume(self) -> bool:
        """Send what waits; return whether all was sent now."""
        transport = self._transport
        if transport is not None:
            self._write(transport)
        if transport is None or transport.is_closing() or self._is_full or self.is_writable:
            return False
        self.is_writable = True
        self._give_back()
        return True

    def finish(self) -> None:
        """Hand over all that waits, before the connection is closed; cut it off after LINGER_SECONDS.

        Its transport would wait for ever for a side that reads nothing.
        """
        if self._transport is not None:
            self._write(self._transport, to_the_end=True)
            if self._lingering is None and self._transport.get_write_buffer_size():
                self._lingering = asyncio.get_running_loop().call_later(LINGER_SECONDS, self.abort)

    def abort(self) -> None:
        """Drop what waits, and close the connection at once."""
        self._queued.clear()
        if self._transport is not None:
            self._transport.abort()

    def end(self) -> None:
        """Drop what waits, as the connection is closed, and give back its memory."""
        self._queued.clear()
        if self._lingering is not None:
            self._lingering.cancel()
        self._give_back()


def _pieces(buffers: Iterable[Buffer], piece: int) -> Iterator[Buffer]:
    """Yield the bytes of `buffers`: small ones joined, large ones in pieces of `piece` bytes."""
    small: list[Buffer] = []
    for buffer in buffers:
        if len(buffer) <= _SMALL_BUFFER:
            small.append(buffer)
            continue
        if small:
            yield b"".join(small)
            small = []
        view = memoryview(buffer)
        for at in range(0, len(view), piece):
            yield view[at : at + piece]
    if small:
        yield small[0] if len(small) == 1 else b"".join(small)


@dataclass(frozen=True, slots=True)
class Replacement:
    """Buffers that replace the bytes from `start` to `end` (exclusive) of a frame."""

    start: int
    end: int
    buffers: Sequence[Buffer]


def spliced(frame: memoryview, replacements: Sequence[Replacement]) -> list[Buffer]:
    """Return the buffers of `frame`, which has its size, with `replacements` in their order, and with its new size."""
    buffers: list[Buffer] = [b""]
    at = SIZE_BYTES
    for each in replacements:
        buffers.append(frame[at : each.start])
        buffers.extend(each.buffers)
        at = each.end
    buffers.append(frame[at:])
    buffers[0] = _SIZE.pack(sum(map(len, buffers)))
    return buffers
