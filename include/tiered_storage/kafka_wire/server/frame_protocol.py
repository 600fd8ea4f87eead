"""Whole frames over one connection of asyncio, with back-pressure both ways.

Small frames are cut out of a buffer that is read again and again; a frame that does not fit gets memory of its own, and
the socket fills that directly. A frame that announces more than the limit ends the connection before memory is taken,
and one that finds no memory is read once there is some. `spliced` replaces parts of a frame without copying the rest.

What is sent waits here, in the buffers that were given, and goes to the transport in pieces, as the socket takes them:
asyncio copies what the socket does not take at once, and would copy most of a large answer, more than once.

Source: asyncio.BufferedProtocol; the protocol guide (a size of 4 bytes before each message).
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from tiered_storage.errors import MalformedAnswerError, TieredStorageError
from tiered_storage.kafka_wire.connections.frames import SIZE_BYTES

Buffer = bytes | bytearray | memoryview

_BUFFER_BYTES: Final = 16 << 10
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


class FrameListener(Protocol):
    """What a FrameProtocol reports to. Calls come from the event loop, one at a time."""

    def opened(self) -> None:
        """The connection is open."""

    def frame_received(self, frame: memoryview) -> None:
        """A whole frame arrived, with its size; the memory belongs to the listener. TieredStorageError closes."""

    def writing_paused(self) -> None:
        """Too many bytes wait to be sent."""

    def writing_resumed(self) -> None:
        """All of them were sent."""

    def lost(self, reason: Exception | None) -> None:
        """The connection is closed; None: as it should be. No other call follows."""


class FrameMemory(Protocol):
    """Counts the memory of frames that do not fit into the buffer."""

    def take(self, size: int, proceed: Callable[[], None]) -> bool:
        """Take `size` bytes and return True, or return False and call `proceed` once they are taken."""

    def give(self, size: int) -> None:
        """Give back `size` bytes."""


def memory_of(frame: memoryview) -> int:
    """Return how many bytes a FrameMemory was asked for `frame`."""
    return len(frame) if len(frame) > _BUFFER_BYTES else 0


class FrameProtocol(asyncio.BufferedProtocol):
    """The frames of one connection, `largest` bytes each at most (without the size)."""

    def __init__(self, listener: FrameListener, largest: int, memory: FrameMemory | None = None) -> None:
        """Report to `listener`; take memory for large frames from `memory`, or without a limit."""
        self._listener = listener
        self.largest = largest
        self._memory = memory
        self._unsent = 0
        self._moved = 0
        self._queued: deque[Buffer] = deque()
        self._is_full = False
        self._piece = _PIECE
        self._lingering: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray(_BUFFER_BYTES)
        self._filled = 0
        self._frame: memoryview | None = None
        self._frame_filled = 0
        self._reasons_to_wait = 0
        self._failure: Exception | None = None
        self._is_lost = False
        self.is_writable = True

    @property
    def is_gone(self) -> bool:
        """Whether nothing can be sent or received any more, or never could."""
        return self._is_lost or self._transport is None

    @property
    def is_open(self) -> bool:
        """Whether frames can be sent."""
        return self._transport is not None and not self._transport.is_closing()

    @property
    def peer(self) -> str:
        """The address of the other side, for messages."""
        found = self._transport.get_extra_info("peername") if self._transport else None
        return f"{found[0]}:{found[1]}" if found else "a closed connection"

    @property
    def carried(self) -> int:
        """How many bytes have gone over the connection so far, both ways."""
        return self._moved - (self._transport.get_write_buffer_size() if self._transport else 0)

    def send(self, buffers: Iterable[Buffer], memory: int = 0) -> None:
        """Send `buffers` one after the other; those of a closed connection are dropped.

        Give back `memory` bytes once they are sent.
        """
        if self.is_open:
            self._queued.extend(_pieces(buffers, self._piece))
            self._write_queued()
        self._unsent += memory
        if self.is_writable:
            self._give_unsent()

    def _write_queued(self, *, to_the_end: bool = False) -> None:
        """Hand over what the socket takes, or all, which the transport copies."""
        while self._queued and self.is_open and self._transport is not None and (to_the_end or not self._is_full):
            piece = self._queued.popleft()
            self._moved += len(piece)
            self._transport.write(piece)

    def _give_unsent(self) -> None:
        if self._memory is not None and self._unsent:
            given, self._unsent = self._unsent, 0
            self._memory.give(given)

    def hold(self) -> None:
        """Read no more, until `release` was called as often as this; frames that have arrived are still reported."""
        self._reasons_to_wait += 1
        if self._reasons_to_wait == 1 and self.is_open and self._transport is not None:
            self._transport.pause_reading()

    def release(self) -> None:
        """Take back one `hold`."""
        self._reasons_to_wait -= 1
        if self._reasons_to_wait == 0 and self.is_open and self._transport is not None:
            self._transport.resume_reading()

    def close(self, failure: Exception | None = None) -> None:
        """Send what waits to be sent, in LINGER_SECONDS at most, then close, because of `failure` if there is one."""
        self._failure = self._failure or failure
        if self._transport is not None:
            self._write_queued(to_the_end=True)
            self._linger()
            self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        self._queued.clear()
        if self._transport is not None:
            self._transport.abort()

    def _linger(self) -> None:
        """Cut the connection off after a time: its transport would wait for ever for a side that reads nothing."""
        if self._lingering is None and self._transport is not None and self._transport.get_write_buffer_size():
            self._lingering = asyncio.get_running_loop().call_later(LINGER_SECONDS, self.abort)

    # -------------------------------------------------------------------------------------------- asyncio's protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take over the connection."""
        if not isinstance(transport, asyncio.Transport):
            raise TypeError(f"{transport!r} is no stream")
        self._transport = transport
        if transport.get_extra_info("ssl_object") is not None:
            # A TLS transport calls a piece sent once the one below it has it, and that takes any size.
            self._piece = _WRITE_LIMIT
        # What comes while the transport keeps anything is copied, so it gets no more until all is sent.
        transport.set_write_buffer_limits(high=_WRITE_LIMIT, low=0)
        if self._reasons_to_wait:
            transport.pause_reading()
        self._listener.opened()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's signature
        """Return where the next bytes go."""
        if self._frame is not None:
            return self._frame[self._frame_filled :]
        return memoryview(self._buffer)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        """Report the frames that are whole now."""
        self._moved += nbytes
        try:
            if self._frame is None:
                self._filled += nbytes
                self._cut_frames()
                return
            self._frame_filled += nbytes
            if self._frame_filled == len(self._frame):
                frame, self._frame = self._frame, None
                self._listener.frame_received(frame)
        except TieredStorageError as error:
            self.close(error)

    def eof_received(self) -> bool:
        """Close, as the other side will send nothing more."""
        self._write_queued(to_the_end=True)
        self._linger()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Report the end."""
        self._frame = None
        self._queued.clear()
        self._is_lost = True
        if self._lingering is not None:
            self._lingering.cancel()
        self._give_unsent()
        self._listener.lost(self._failure or exc)

    def pause_writing(self) -> None:
        """Report that too many bytes wait, unless they did already."""
        self._is_full = True
        if self.is_writable:
            self.is_writable = False
            self._listener.writing_paused()

    def resume_writing(self) -> None:
        """Send what waits here, and report once all was sent."""
        self._is_full = False
        # Not now: asyncio calls this amid its own sending, and takes a transport that is closed meanwhile for its own.
        asyncio.get_running_loop().call_soon(self._resume)

    def _resume(self) -> None:
        self._write_queued()
        if self.is_open and not self._is_full and not self.is_writable:
            self.is_writable = True
            self._give_unsent()
            self._listener.writing_resumed()

    def _cut_frames(self) -> None:
        at = 0
        while self._filled - at >= SIZE_BYTES and self.is_open:
            (size,) = _SIZE.unpack_from(self._buffer, at)
            self._check(size)
            end = at + SIZE_BYTES + size
            if end > self._filled:
                if self._has_memory(SIZE_BYTES + size):
                    self._begin_frame(at, SIZE_BYTES + size)
                    at = self._filled
                else:
                    self.hold()
                break
            frame = memoryview(self._buffer[at:end])
            at = end
            self._listener.frame_received(frame)
        self._buffer[: self._filled - at] = self._buffer[at : self._filled]
        self._filled -= at

    def _has_memory(self, size: int) -> bool:
        """Take memory for a frame; False: the frame begins once there is some."""
        if self._memory is None or size <= _BUFFER_BYTES:
            return True
        return self._memory.take(size, lambda: self._proceed(size))

    def _proceed(self, size: int) -> None:
        """Begin the frame at the start of the buffer, which has waited for memory."""
        if not self._is_lost:
            self._begin_frame(0, size)
            self._filled = 0
            self.release()

    def _begin_frame(self, at: int, size: int) -> None:
        # Unlike a bytearray's, its memory is not filled with zeros first.
        self._frame = np.empty(size, np.uint8).data
        self._frame_filled = self._filled - at
        self._frame[: self._frame_filled] = memoryview(self._buffer)[at : self._filled]

    def _check(self, size: int) -> None:
        if not SIZE_BYTES <= size <= self.largest:
            raise MalformedAnswerError(
                f"{self.peer} announces a frame of {size:,} bytes, of at most {self.largest:,}: it does not speak "
                "Kafka's protocol, or speaks TLS to a listener without it"
            )


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
    """What comes instead of the bytes from `start` to `end` (exclusive) of a frame."""

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
