"""Answers that go out piece by piece: each holds a place, has its first piece before its status, and stands not still.

What goes wrong before the first piece is an answer of its own. After it the connection is broken off, so that nobody
takes a part for the whole: also if a piece does not come in time, and if the login or the right to read has ended.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import suppress

import anyio
from fastapi import Response
from starlette.types import Receive, Scope, Send

from tiered_storage_airflow.read_service.problem import ProblemError
from tiered_storage_airflow.read_service.service import OpenService

_log = logging.getLogger(__name__)

SECONDS_BETWEEN_LOOKS = 5.0
"""How often a long answer looks whether its reader is still logged in and still has the right."""
SEND_BYTES = 64 << 10
"""So much is handed on at once: who takes this much in its time does not stand still."""


class BrokenOffError(BaseException):
    """An answer that cannot be ended as it was begun; the client finds its connection closed.

    No Exception: the layers around (starlette's BaseHTTPMiddleware) keep those of an answer that has begun to
    themselves, and end it as if it were whole.
    """


class _Unsendable:
    """A body that nobody can send: it makes the outermost layer, which holds the connection, fail and close it."""


class PiecesResponse(Response):
    """An answer made of pieces, in a place of the service that it takes when it begins."""

    def __init__(
        self,
        service: OpenService,
        pieces: AsyncGenerator[bytes, None],
        ensure_right: Callable[[], Awaitable[None]],
        *,
        status_code: int = 200,
        headers: Mapping[str, str],
        media_type: str,
    ) -> None:
        self._service = service
        self._pieces = pieces
        self._ensure_right = ensure_right
        self._looked = 0.0
        self.status_code = status_code
        self.media_type = media_type
        self.background = None
        # Airflow compresses what names no encoding, which would hold pieces back and change what ranges mean.
        self.init_headers({"content-encoding": "identity", **headers})

    def init_headers(self, headers: Mapping[str, str] | None = None) -> None:
        """Set `headers` and no length: what has one names it itself."""
        named = {**(headers or {}), "content-type": str(self.media_type)}
        self.raw_headers = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in named.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - ASGI's
        """Send it, until it ends or the client has left. Raises ProblemError if no place is free."""
        self._service.take_place()
        self._looked = asyncio.get_running_loop().time()
        try:
            await self._send_while_there(receive, send)
        finally:
            # Before it nothing may wait: where the request was cancelled each wait ends at once.
            self._service.free_place()

    async def _send_while_there(self, receive: Receive, send: Send) -> None:
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
            with anyio.CancelScope(shield=True):
                await asyncio.gather(sending, leaving, return_exceptions=True)
                await self._pieces.aclose()

    async def _send(self, send: Send) -> None:
        piece = await anext(self._pieces, None)
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        while piece is not None:
            await self._send_piece(send, memoryview(piece))
            piece = await self._following(send)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_piece(self, send: Send, piece: memoryview) -> None:
        try:
            for position in range(0, len(piece), SEND_BYTES):
                # A connection that takes all at once never waits: who asks for metadata is to have a turn in between.
                await self._service.sending.take()
                await self._look_at_the_right(send)
                async with asyncio.timeout(self._service.stalled_after_seconds):
                    body = bytes(piece[position : position + SEND_BYTES])
                    await send({"type": "http.response.body", "body": body, "more_body": True})
        except TimeoutError as error:
            self._service.figures.given_up.labels("client stalled").inc()
            raise BrokenOffError("the client took nothing of its answer for too long") from error

    async def _look_at_the_right(self, send: Send) -> None:
        now = asyncio.get_running_loop().time()
        if now < self._looked + SECONDS_BETWEEN_LOOKS:
            return
        self._looked = now
        try:
            async with asyncio.timeout(self._service.seconds_to_answer):
                await self._ensure_right()
        except Exception as error:
            why = "the login or the right to read it is gone, or cannot be looked at"
            raise await self._broken_off(send, error, why) from error

    async def _following(self, send: Send) -> bytes | None:
        try:
            async with asyncio.timeout(self._service.seconds_to_answer):
                return await anext(self._pieces, None)
        except Exception as error:
            raise await self._broken_off(send, error, "what follows cannot be had") from error

    async def _broken_off(self, send: Send, error: Exception, why: str) -> BrokenOffError:
        """Break the connection off; return what to raise."""
        name = type(error).__name__
        name, said = (error.title, error.detail) if isinstance(error, ProblemError) else (name, str(error) or name)
        self._service.figures.given_up.labels(name).inc()
        told = f"{why}: {said}"
        _log.error("an answer was broken off: %s", told)
        with suppress(Exception):
            async with asyncio.timeout(self._service.stalled_after_seconds):
                await send({"type": "http.response.body", "body": _Unsendable(), "more_body": True})
        return BrokenOffError(told)


async def _left(receive: Receive) -> None:
    """Return when the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass
