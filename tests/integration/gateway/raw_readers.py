"""A consumer on a bare socket, which reads its answers when a test wants it to."""

from __future__ import annotations

import asyncio
import hashlib
import socket
import struct
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

from tiered_storage.gateway.allowed_apis import API_VERSIONS, FETCH, METADATA
from tiered_storage.kafka_wire.connections.frames import SIZE_BYTES, encode_request, request
from tiered_storage.kafka_wire.fetch import FetchAnswer, FetchDecoder, FetchLimits, FetchPosition, fetch_request
from tiered_storage.kafka_wire.metadata import metadata_request

_RECEIVE_BUFFER = 64 << 10


@dataclass
class RawReader:
    """A connection to a gateway, as `client_id`; a request is answered before the next one is sent."""

    client_id: str
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    number: int = 0
    on_answer: Callable[[FetchAnswer], object] = lambda _: None
    """Called with each answer."""

    async def ask(self, positions: list[FetchPosition], limits: FetchLimits) -> None:
        """Send a Fetch, and read nothing."""
        self.number += 1
        message = fetch_request(FETCH.latest, positions, limits, "")
        self.writer.write(encode_request(message, self.number, self.client_id))
        await self.writer.drain()

    async def answer(self, positions: list[FetchPosition]) -> FetchAnswer:
        """Read the answer to the last Fetch."""
        frame = await self._frame()
        return FetchDecoder(positions)(memoryview(frame), FETCH, FETCH.latest, self.number)

    async def fetch(self, positions: list[FetchPosition], limits: FetchLimits) -> FetchAnswer:
        """Fetch."""
        await self.ask(positions, limits)
        return await self.answer(positions)

    async def read_all(self, topic: str, topic_id: str, end: int, limits: FetchLimits, partition: int = 0) -> str:
        """Read a partition from offset 0 to `end` (exclusive), each offset once; return the hash of its batches."""
        return (await self.read_share(topic, topic_id, {partition: end}, limits))[partition]

    async def read_share(
        self, topic: str, topic_id: str, ends: Mapping[int, int], limits: FetchLimits, most_bytes: int = 8 << 20
    ) -> dict[int, str]:
        """Read partitions from offset 0 to their `ends` (exclusive), each offset once; return the hash of each.

        Each Fetch asks for `most_bytes` of every partition that is not read to its end.
        """
        offsets, seen = dict.fromkeys(ends, 0), {each: hashlib.sha256() for each in ends}
        while asked := [
            FetchPosition(topic, each, offset, most_bytes, topic_id)
            for each, offset in offsets.items()
            if offset < ends[each]
        ]:
            answer = await self.fetch(asked, limits)
            self.on_answer(answer)
            for found in answer.partitions:
                assert found.error_code == 0, found
                content, offset = whole_batches(found.records, offsets[found.partition])
                offsets[found.partition] = offset
                seen[found.partition].update(content)
        assert offsets == dict(ends)
        return {each: found.hexdigest() for each, found in seen.items()}

    async def describe(self, topic: str) -> bytes:
        """Ask for a topic's partitions and their leaders; return the answer without its correlation id."""
        self.number += 1
        message = metadata_request(METADATA.latest, [topic])
        self.writer.write(encode_request(message, self.number, self.client_id))
        frame = await self._frame()
        assert int.from_bytes(frame[:4], "big") == self.number
        return frame[4:]

    async def _frame(self) -> bytes:
        size = int.from_bytes(await self.reader.readexactly(SIZE_BYTES), "big")
        return await self.reader.readexactly(size)


_HEAD = struct.Struct(">qi")
"""A batch begins with its base offset and its length; its last offset delta is at 23."""
_BATCH_HEAD = 61


def whole_batches(records: bytes | bytearray | memoryview, offset: int) -> tuple[bytes, int]:
    """Return the whole batches of an answer, whose first offset is `offset`, and the offset after them."""
    content = bytes(records)
    at = 0
    while at + _BATCH_HEAD <= len(content):
        base, size = _HEAD.unpack_from(content, at)
        if at + 12 + size > len(content):
            break
        assert base == offset
        offset = base + int.from_bytes(content[at + 23 : at + 27], "big") + 1
        at += 12 + size
    return content[:at], offset


@asynccontextmanager
async def raw_reader(port: int, client_id: str) -> AsyncIterator[RawReader]:
    """Connect to a gateway at `port` of this machine."""
    opened = socket.socket()
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER)
    opened.setblocking(False)
    await asyncio.get_running_loop().sock_connect(opened, ("127.0.0.1", port))
    reader, writer = await asyncio.open_connection(sock=opened, limit=_RECEIVE_BUFFER)
    try:
        connected = RawReader(client_id, reader, writer)
        writer.write(encode_request(request(API_VERSIONS, 0), 0, client_id))
        await connected._frame()
        yield connected
    finally:
        writer.close()
