"""What a hostile client may send to a gateway: garbage, half frames, frames of any version."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import zip_longest
from typing import Literal

from hypothesis import strategies as st

from support.gateways import RunningGateway
from support.wires import framed
from tiered_storage.gateway.allowed_apis import (
    API_VERSIONS,
    DESCRIBE_CLUSTER,
    FETCH,
    FIND_COORDINATOR,
    LIST_OFFSETS,
    METADATA,
    OFFSET_FOR_LEADER_EPOCH,
)
from tiered_storage.gateway.deletions.client_deletions import DELETE_RECORDS, DELETE_TOPICS
from tiered_storage.kafka_log.files.kafka_uuid import decode_uuid, encode_uuid
from tiered_storage.kafka_wire.connections.frames import SIZE_BYTES, encode_request
from tiered_storage.kafka_wire.fetch import FetchLimits, FetchPosition, IsolationLevel, fetch_request
from tiered_storage.kafka_wire.metadata import TopicPartition
from tiered_storage.kafka_wire.partition_requests import ListOffsets

SECONDS = 150


def connected(gateway: RunningGateway) -> socket.socket:
    opened = socket.create_connection(("127.0.0.1", gateway.port), SECONDS)
    opened.settimeout(SECONDS)
    return opened


def is_closed_by_the_other_side(opened: socket.socket) -> bool:
    try:
        return opened.recv(1) == b""
    except ConnectionError:
        return True


ASKED = (
    API_VERSIONS, DELETE_RECORDS, DELETE_TOPICS, DESCRIBE_CLUSTER, FETCH, FIND_COORDINATOR, LIST_OFFSETS, METADATA,
    OFFSET_FOR_LEADER_EPOCH,
)  # fmt: skip
KINDS = (*6 * [(FETCH, False)], *2 * [(LIST_OFFSETS, False)], *((each, True) for each in ASKED))
"""An API, and whether what follows the header is random."""
SIZES = (0, 1, -1, 5000, (1 << 31) - 1)
ANSWERED_SECONDS = 0.05
"""How long an answer is waited for that may never come."""
NO_TOPIC_ID = encode_uuid(b"\x11" * 16)


@st.composite
def requests(draw: st.DrawFn, topic: str) -> bytes:
    """A frame of an API that clients call: random bytes after its header, or a Fetch or ListOffsets, mostly garbled.

    NO_TOPIC_ID stands for the id of `topic`.
    """
    api, is_random = draw(st.sampled_from(KINDS))
    version, number = draw(st.integers(api.oldest, api.latest)), draw(st.integers(-2, 3))
    if is_random:
        head = struct.pack(">hhih", api.key, version, number, -1)
        return framed(head + draw(st.binary(max_size=60)))
    offset, size = draw(st.sampled_from([0, 1, 150, 10_000, -1, (1 << 63) - 1])), draw(st.sampled_from(SIZES))
    if api.key == FETCH.key:
        isolation = draw(st.sampled_from(list(IsolationLevel)))
        position = FetchPosition(topic, 0, offset, size, NO_TOPIC_ID)
        message = fetch_request(version, [position], FetchLimits(0.01, 0, size, isolation), "")
    else:
        partition = TopicPartition(topic, 0)
        message = ListOffsets({partition: draw(st.integers(-2, 1 << 62))}).build(version, {partition: -1}, 1.0)
    frame = bytearray(encode_request(message, number, "fuzz"))
    for at in draw(st.lists(st.integers(SIZE_BYTES, len(frame) - 1), max_size=2)):
        frame[at] = draw(st.integers(0, 255))
    return bytes(frame)


def send_anything(gateway: RunningGateway, content: bytes, topic_id: bytes, piece: int, *, reads: bool) -> None:
    """Send `content` in pieces of so many bytes, with the topic's true id, and take what is answered if it `reads`."""
    content = content.replace(decode_uuid(NO_TOPIC_ID), topic_id)
    with connected(gateway) as opened, suppress(ConnectionError):
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for at in range(0, len(content), piece):
            opened.sendall(content[at : at + piece])
        opened.settimeout(ANSWERED_SECONDS)
        with suppress(TimeoutError):
            while reads and opened.recv(1 << 16):
                pass


KEYS, VERSIONS, NAME_SIZES = st.integers(-2, 100), st.integers(-1, 20), st.sampled_from([-1, 0, 4, -2, 30_000])
WRONG_SIZES = st.sampled_from([0, 3, -1, 12, 5000, 5 << 20, 100 << 20, (1 << 31) - 1])
ENDS = ("closes", "closes its half", "resets")
READ_SECONDS = 0.01
"""How long one of many visits waits for answers."""
CLOSE_BY_RESET = struct.pack("ii", 1, 0)


@dataclass(frozen=True, slots=True)
class Visit:
    """What a client sends over one connection, in pieces of so many bytes, whether it reads, and how it ends."""

    content: bytes
    piece: int
    reads: bool
    end: Literal["closes", "closes its half", "resets"]

    def pieces(self, topic_id: bytes) -> Iterator[bytes]:
        """Cut the content, with the topic's true id."""
        content = self.content.replace(decode_uuid(NO_TOPIC_ID), topic_id)
        return (content[at : at + self.piece] for at in range(0, len(content), self.piece))


@st.composite
def any_frames(draw: st.DrawFn) -> bytes:
    """A frame of any API and version, or one with a wrong size; nothing after its header makes sense."""
    head = struct.pack(">hhih", draw(KEYS), draw(VERSIONS), draw(st.integers(-2, 3)), draw(NAME_SIZES))
    body = head + draw(st.binary(max_size=60))
    return framed(body) if draw(st.booleans()) else struct.pack(">i", draw(WRONG_SIZES)) + body


def visits(topic: str) -> st.SearchStrategy[Visit]:
    """Requests of clients with others among them that end the connection, while the client sends on."""
    frames = st.lists(st.one_of(requests(topic), any_frames(), st.binary(max_size=40)), min_size=1, max_size=8)
    return st.builds(
        lambda parts, cut, *rest: Visit(b"".join(parts)[: -cut or None], *rest),
        frames,
        st.sampled_from([0, 1, 40]),
        st.sampled_from([1 << 20, 7, 1]),
        st.booleans(),
        st.sampled_from(ENDS),
    )


def visit_together(gateway: RunningGateway, several: Sequence[Visit], topic_id: bytes) -> None:
    """Open a connection for each of the visits, and send their pieces in turns."""
    with ExitStack() as stack:
        opened = [stack.enter_context(connected(gateway)) for _ in several]
        for each in opened:
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for pieces in zip_longest(*(each.pieces(topic_id) for each in several), fillvalue=b""):
            for each, piece in zip(opened, pieces, strict=True):
                with suppress(ConnectionError):
                    each.sendall(piece)
        for each, visit in zip(opened, several, strict=True):
            _leave(each, visit)


def _leave(opened: socket.socket, visit: Visit) -> None:
    opened.settimeout(READ_SECONDS)
    # Its half of a connection that the gateway has closed cannot be closed either.
    with suppress(OSError):
        if visit.end == "closes its half":
            opened.shutdown(socket.SHUT_WR)
        while visit.reads and opened.recv(1 << 16):
            pass
    if visit.end == "resets":
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, CLOSE_BY_RESET)


HOSTILE = {
    "two gigabytes": struct.pack(">i", (1 << 31) - 1) + b"much",
    "a negative size": struct.pack(">i", -1),
    "HTTP": b"GET / HTTP/1.1\r\nHost: a-gateway\r\n\r\n",
    "DescribeQuorum": framed(struct.pack(">hhih", 55, 0, 1, -1) + b"\0"),
    "an unknown API": framed(struct.pack(">hhih", 999, 0, 1, -1)),
    "a version of the future": framed(struct.pack(">hhih", 1, 99, 1, -1)),
}
"""What neither kind of gateway serves."""
