"""Whole frames over one connection of asyncio, with back-pressure both ways.

Small frames are cut out of a buffer that is read again and again; a frame that does not fit gets memory of its own, and
the socket fills that directly. A frame that announces more than the limit ends the connection before memory is taken,
and one that finds no memory is read once there is some.

Source: asyncio.BufferedProtocol; the protocol guide (a size of 4 bytes before each message).
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Iterable
from typing import Final, Protocol

import numpy as np

from tiered_storage.errors import MalformedAnswerError, TieredStorageError
from tiered_storage.kafka_wire.connections.frames import SIZE_BYTES
from tiered_storage.kafka_wire.server.send_queue import Buffer, SendQueue

_BUFFER_BYTES: Final = 16 << 10
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


class _LargeFrame:
    """A frame that does not fit into the buffer: it has memory of its own."""

    def __init__(self, size: int, beginning: memoryview) -> None:
        # Unlike a bytearray's, its memory is not filled with zeros first.
        self.frame = np.empty(size, np.uint8).data
        self._filled = len(beginning)
        self.frame[: self._filled] = beginning

    def room(self) -> memoryview:
        """Return where the next bytes go."""
        return self.frame[self._filled :]

    def is_whole(self, more: int) -> bool:
        """Count `more` bytes that came, and return whether all have come now."""
        self._filled += more
        return self._filled == len(self.frame)


class FrameProtocol(asyncio.BufferedProtocol):
    """The frames of one connection, `largest` bytes each at most (without the size)."""

    def __init__(self, listener: FrameListener, largest: int, memory: FrameMemory | None = None) -> None:
        """Report to `listener`; take memory for large frames from `memory`, or without a limit."""
        self._listener = listener
        self.largest = largest
        self._memory = memory
        self._sending = SendQueue(memory.give if memory is not None else lambda _: None)
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray(_BUFFER_BYTES)
        self._filled = 0
        self._large: _LargeFrame | None = None
        """The frame that does not fit into the buffer, and is being read."""
        self._received = 0
        self._reasons_to_wait = 0
        self.failure: Exception | None = None
        """Why it was closed from here, if not as it should be."""
        self._is_lost = False

    @property
    def is_writable(self) -> bool:
        """Whether little waits to be sent."""
        return self._sending.is_writable

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
        return self._received + self._sending.sent

    def send(self, buffers: Iterable[Buffer], memory: int = 0) -> None:
        """Send `buffers` one after the other; those of a closed connection are dropped.

        Give back `memory` bytes once they are sent.
        """
        self._sending.send(buffers, memory)

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
        self.failure = self.failure or failure
        if self._transport is not None:
            self._sending.finish()
            self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        self._sending.abort()

    # -------------------------------------------------------------------------------------------- asyncio's protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take over the connection."""
        if not isinstance(transport, asyncio.Transport):
            raise TypeError(f"{transport!r} is not a stream")
        self._transport = transport
        self._sending.open(transport)
        if self._reasons_to_wait:
            transport.pause_reading()
        self._listener.opened()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's signature
        """Return where the next bytes go."""
        if self._large is not None:
            return self._large.room()
        return memoryview(self._buffer)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        """Report the frames that are whole now."""
        self._received += nbytes
        try:
            if self._large is None:
                self._filled += nbytes
                self._cut_frames()
            elif self._large.is_whole(nbytes):
                large, self._large = self._large, None
                self._listener.frame_received(large.frame)
        except TieredStorageError as error:
            self.close(error)

    def eof_received(self) -> bool:
        """Close, as the other side will send nothing more."""
        self._sending.finish()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Report the end."""
        self._large = None
        self._is_lost = True
        self._sending.end()
        self._listener.lost(self.failure or exc)

    def pause_writing(self) -> None:
        """Report that too many bytes wait, unless they did already."""
        if self._sending.pause():
            self._listener.writing_paused()

    def resume_writing(self) -> None:
        """Send what waits here, and report once all was sent."""
        self._sending.unpause()
        # Not now: asyncio calls this amid its own sending, and takes a transport that is closed meanwhile for its own.
        asyncio.get_running_loop().call_soon(self._resume)

    def _resume(self) -> None:
        if self._sending.resume():
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
        self._large = _LargeFrame(size, memoryview(self._buffer)[at : self._filled])

    def _check(self, size: int) -> None:
        if not SIZE_BYTES <= size <= self.largest:
            raise MalformedAnswerError(
                f"{self.peer} announces a frame of {size:,} bytes, of at most {self.largest:,}: it does not speak "
                "Kafka's protocol, or speaks TLS to a listener without it"
            )
