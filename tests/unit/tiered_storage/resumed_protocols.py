"""Protocols whose socket takes bytes again."""

from __future__ import annotations

import asyncio

from tiered_storage.kafka_wire.server.frame_protocol import FrameProtocol


def resume(protocol: FrameProtocol) -> None:
    """Let the socket take bytes again."""

    async def work() -> None:
        protocol.resume_writing()
        await asyncio.sleep(0)

    asyncio.run(work())
