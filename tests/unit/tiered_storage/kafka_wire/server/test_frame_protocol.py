from __future__ import annotations

import asyncio
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.wires import Wire, arrive, framed
from tiered_storage.errors import MalformedAnswerError
from tiered_storage.kafka_wire.server import send_queue
from tiered_storage.kafka_wire.server.frame_protocol import FrameProtocol
from unit.tiered_storage.resumed_protocols import resume

LARGEST = 100_000


class Seen:
    """What the protocol reports."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.ends: list[Exception | None] = []

    def opened(self) -> None:
        pass

    def frame_received(self, frame: memoryview) -> None:
        assert not frame.readonly
        self.frames.append(bytes(frame))

    def writing_paused(self) -> None:
        pass

    def writing_resumed(self) -> None:
        pass

    def lost(self, reason: Exception | None) -> None:
        self.ends.append(reason)


def connected() -> tuple[FrameProtocol, Wire, Seen]:
    seen, wire = Seen(), Wire()
    protocol = FrameProtocol(seen, LARGEST)
    protocol.connection_made(wire)
    return protocol, wire, seen


@given(
    sizes=st.lists(st.one_of(st.integers(4, 40), st.integers(16_000, 17_000), st.just(LARGEST)), max_size=8),
    at_once=st.integers(1, 50_000),
)
def test_frames_arrive_whole_however_they_are_cut(sizes: list[int], at_once: int) -> None:
    protocol, _, seen = connected()
    frames = [framed(bytes([number]) * size) for number, size in enumerate(sizes)]

    arrive(protocol, b"".join(frames), at_once if sum(sizes) < 100_000 else max(at_once, 997))

    assert seen.frames == frames


@pytest.mark.parametrize("size", [LARGEST + 1, 3, -1, (1 << 31) - 1])
def test_a_frame_that_announces_an_impossible_size_ends_the_connection(size: int) -> None:
    protocol, wire, seen = connected()

    arrive(protocol, framed(b"1234") + struct.pack(">i", size) + b"12345678", 1000)
    protocol.connection_lost(None)

    assert seen.frames == [framed(b"1234")]
    assert wire.closed
    assert isinstance(seen.ends[0], MalformedAnswerError)
    assert f"{size:,}" in str(seen.ends[0])


def test_a_listener_that_refuses_a_frame_gets_no_further_one() -> None:
    protocol, wire, seen = connected()

    def refuse(frame: memoryview) -> None:
        raise MalformedAnswerError("no")

    seen.frame_received = refuse  # type: ignore[method-assign]
    arrive(protocol, framed(b"1234") * 2, 1000)
    protocol.connection_lost(None)

    assert wire.closed
    assert [str(end) for end in seen.ends] == ["no"]


def test_pieces_are_sent_in_order_and_dropped_after_the_end() -> None:
    protocol, wire, _ = connected()
    large = bytes(50_000)

    protocol.send([b"a", memoryview(b"b"), large, b"c"])
    protocol.close()
    protocol.send([b"d"])

    assert wire.sent == b"ab" + large + b"c"


def test_reading_continues_when_the_last_reason_to_wait_is_gone() -> None:
    protocol, wire, _ = connected()

    protocol.hold()
    protocol.hold()
    protocol.release()
    assert not wire.is_read
    protocol.release()
    assert wire.is_read


def test_a_connection_held_before_it_opens_is_not_read() -> None:
    protocol, wire = FrameProtocol(Seen(), LARGEST), Wire()
    protocol.hold()
    protocol.connection_made(wire)

    assert not wire.is_read


class Pausing(Seen):
    """Notes when sending pauses and continues, and how much memory is given back."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []
        self.given = 0

    def writing_paused(self) -> None:
        self.calls.append("paused")

    def writing_resumed(self) -> None:
        self.calls.append("resumed")

    def take(self, size: int, proceed: object) -> bool:
        del size, proceed
        return True

    def give(self, size: int) -> None:
        self.given += size


class FullWire(Wire):
    """A socket that is full after each write, until the test resumes the protocol."""

    def __init__(self, protocol: FrameProtocol) -> None:
        super().__init__()
        self.protocol = protocol
        self.writes: list[int] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        super().write(data)
        self.writes.append(len(data))
        self.protocol.pause_writing()


def on_a_full_wire() -> tuple[FrameProtocol, FullWire, Pausing]:
    seen = Pausing()
    protocol = FrameProtocol(seen, LARGEST, seen)
    wire = FullWire(protocol)
    protocol.connection_made(wire)
    return protocol, wire, seen


LARGE = bytes(range(256)) * (10 << 10)
"""More than two pieces of what a transport gets at once."""


def test_the_transport_gets_a_large_answer_as_the_socket_takes_it() -> None:
    protocol, wire, seen = on_a_full_wire()

    protocol.send([b"head", LARGE, b"tail"], memory=7)
    assert len(wire.writes) == 1
    while not protocol.is_writable:
        assert seen.given == 0
        resume(protocol)

    assert wire.sent == b"head" + LARGE + b"tail"
    assert max(wire.writes) <= 1 << 20
    assert (seen.calls, seen.given) == (["paused", "resumed"], 7)


def test_what_is_sent_while_the_socket_is_full_comes_after_what_waits() -> None:
    protocol, wire, seen = on_a_full_wire()

    protocol.send([LARGE], memory=5)
    protocol.send([b"next"], memory=2)
    while not protocol.is_writable:
        resume(protocol)

    assert wire.sent == LARGE + b"next"
    assert (seen.calls, seen.given) == (["paused", "resumed"], 7)


@pytest.mark.parametrize("end", ["close", "eof"])
def test_what_waits_is_sent_before_a_connection_ends(end: str) -> None:
    protocol, wire, _ = on_a_full_wire()

    protocol.send([LARGE])
    protocol.close() if end == "close" else protocol.eof_received()

    assert wire.sent == LARGE


def test_what_waits_is_dropped_with_a_lost_connection() -> None:
    protocol, wire, seen = on_a_full_wire()
    content = bytearray(LARGE)

    protocol.send([content], memory=7)
    protocol.abort()
    protocol.connection_lost(None)
    resume(protocol)

    assert len(wire.writes) == 1
    assert seen.given == 7
    # Python refuses that while anything keeps a view of it.
    content.clear()


class Answering(Seen):
    """Answers a frame with more than a socket takes, and knows when the connection is over."""

    def __init__(self) -> None:
        super().__init__()
        self.protocol = FrameProtocol(self, LARGEST)
        self.is_over = asyncio.Event()

    def frame_received(self, frame: memoryview) -> None:
        super().frame_received(frame)
        self.protocol.send([bytes(64 << 20)])

    def lost(self, reason: Exception | None) -> None:
        super().lost(reason)
        self.is_over.set()


def test_a_client_that_closes_its_half_and_reads_nothing_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(send_queue, "LINGER_SECONDS", 0.05)

    async def work() -> None:
        answering = Answering()
        server = await asyncio.get_running_loop().create_server(lambda: answering.protocol, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname(), limit=1)
        writer.write(framed(b"anything"))
        writer.write_eof()
        await answering.is_over.wait()
        assert reader
        writer.close()
        server.close()

    asyncio.run(asyncio.wait_for(work(), 30))


class Closing(Answering):
    """Closes once its answer is sent, as when what a client sent meanwhile is garbage."""

    def writing_resumed(self) -> None:
        self.protocol.close()


def test_a_connection_that_is_closed_once_all_is_sent_ends_once() -> None:
    failures: list[dict[str, object]] = []

    async def work() -> None:
        loop, closing = asyncio.get_running_loop(), Closing()
        loop.set_exception_handler(lambda _, context: failures.append(context))
        server = await loop.create_server(lambda: closing.protocol, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(framed(b"anything"))
        assert len(await reader.read(-1)) == 64 << 20
        await closing.is_over.wait()
        await asyncio.sleep(0.01)
        writer.close()
        server.close()
        assert closing.ends == [None]

    asyncio.run(asyncio.wait_for(work(), 30))
    assert not failures
