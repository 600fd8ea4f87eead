"""Answers that go out piece by piece: each holds a place, has its first piece before its status, and stands not still.

What goes wrong before the first piece is an answer of its own. Behind it the connection is broken off, so that nobody
takes a part for the whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping

from fastapi import Response
from starlette.types import Receive, Scope, Send

from tiered_storage_airflow.read_service.service import OpenService


class BrokenOffError(Exception):
    """An answer that cannot be ended as it was begun; the client finds its connection closed."""


class PiecesResponse(Response):
    """An answer made of pieces, in a place of the service that it takes when it begins."""

    def __init__(
        self,
        service: OpenService,
        pieces: AsyncGenerator[bytes, None],
        *,
        status_code: int = 200,
        headers: Mapping[str, str],
        media_type: str,
    ) -> None:
        self._service = service
        self._pieces = pieces
        self.status_code = status_code
        self.media_type = media_type
        self.background = None
        # Airflow compresses what names no encoding, which would hold pieces back and change what ranges mean.
        self.init_headers({"content-encoding": "identity", "cache-control": "private, no-cache", **headers})

    def init_headers(self, headers: Mapping[str, str] | None = None) -> None:
        """Set `headers` and no length: what has one names it itself."""
        named = {**(headers or {}), "content-type": str(self.media_type)}
        self.raw_headers = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in named.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - ASGI's
        """Send it, until it ends or the client has left. Raises ProblemError where no place is free."""
        self._service.take_place()
        sending = asyncio.ensure_future(self._send(send))
        leaving = asyncio.ensure_future(_left(receive))
        try:
            await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
            else:
                self._service.figures.given_up.labels("client left").inc()
        finally:
            sending.cancel()
            leaving.cancel()
            await asyncio.gather(sending, leaving, return_exceptions=True)
            await self._pieces.aclose()
            self._service.free_place()

    async def _send(self, send: Send) -> None:
        piece = await anext(self._pieces, None)
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        while piece is not None:
            try:
                async with asyncio.timeout(self._service.stalled_after_seconds):
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
            except TimeoutError as error:
                self._service.figures.given_up.labels("client stalled").inc()
                raise BrokenOffError("the client took nothing of its answer for too long") from error
            piece = await self._following()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _following(self) -> bytes | None:
        try:
            return await anext(self._pieces, None)
        except Exception as error:
            self._service.figures.given_up.labels(type(error).__name__).inc()
            raise BrokenOffError(f"what follows cannot be had: {error}") from error


async def _left(receive: Receive) -> None:
    """Return when the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass
