"""Send responses in pieces. Each response holds one of the service's places, and must not stall.

The first piece is read before the status is sent, so an error before it becomes an error response. A later error
aborts the connection, so that no client takes a part for the whole. The connection is also aborted if a piece takes too
long, or if the client's login or right to read ends.
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

SECONDS_BETWEEN_CHECKS = 5.0
"""How often, in seconds, a long response checks that its reader is still logged in and may read."""
SEND_BYTES = 64 << 10
"""The size of one write: a client that takes this much in time is not stalled."""


class BrokenOffError(BaseException):
    """A response that cannot be completed; the client finds its connection closed.

    Not an Exception: outer layers (starlette's BaseHTTPMiddleware) swallow an Exception of a started response, and end
    the response as if it were complete.
    """


class _Unsendable:
    """A body that cannot be sent, so that the outermost layer fails and closes the connection."""


class PiecesResponse(Response):
    """A response in pieces, which takes a place of the service when it begins."""

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
        # Airflow compresses responses without an encoding, which would delay pieces and change what ranges mean.
        self.init_headers({"content-encoding": "identity", **headers})

    def init_headers(self, headers: Mapping[str, str] | None = None) -> None:
        """Set `headers` without a default length."""
        named = {**(headers or {}), "content-type": str(self.media_type)}
        self.raw_headers = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in named.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - ASGI's
        """Send the response until its end, or until the client leaves. Raises ProblemError if no place is free."""
        self._service.places.take()
        self._looked = asyncio.get_running_loop().time()
        try:
            await self._send_while_there(receive, send)
        finally:
            # Release the place before anything awaits: in a cancelled request every await fails at once.
            self._service.places.free()

    async def _send_while_there(self, receive: Receive, send: Send) -> None:
        sending = asyncio.ensure_future(self._send(send))
        leaving = asyncio.ensure_future(_left(receive))
        try:
            await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
            else:
                self._service.metrics.given_up.labels("client left").inc()
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
                # A fast connection never makes this wait, so yield between pieces: requests for metadata need a turn.
                await self._service.sending.take()
                await self._look_at_the_right(send)
                async with asyncio.timeout(self._service.stalled_after_seconds):
                    body = bytes(piece[position : position + SEND_BYTES])
                    await send({"type": "http.response.body", "body": body, "more_body": True})
        except TimeoutError as error:
            self._service.metrics.given_up.labels("client stalled").inc()
            raise BrokenOffError("the client read nothing of its response for too long") from error

    async def _look_at_the_right(self, send: Send) -> None:
        now = asyncio.get_running_loop().time()
        if now < self._looked + SECONDS_BETWEEN_CHECKS:
            return
        self._looked = now
        try:
            async with asyncio.timeout(self._service.seconds_to_answer):
                await self._ensure_right()
        except Exception as error:
            why = "the login or the right to read has ended, or cannot be checked"
            raise await self._broken_off(send, error, why) from error

    async def _following(self, send: Send) -> bytes | None:
        try:
            async with asyncio.timeout(self._service.seconds_to_answer):
                return await anext(self._pieces, None)
        except Exception as error:
            raise await self._broken_off(send, error, "the next piece cannot be read") from error

    async def _broken_off(self, send: Send, error: Exception, why: str) -> BrokenOffError:
        """Log why the response ends early, and abort the connection; return the exception to raise."""
        name = type(error).__name__
        name, said = (error.title, error.detail) if isinstance(error, ProblemError) else (name, str(error) or name)
        self._service.metrics.given_up.labels(name).inc()
        message = f"{why}: {said}"
        _log.error("a response was aborted: %s", message)
        with suppress(Exception):
            async with asyncio.timeout(self._service.stalled_after_seconds):
                await send({"type": "http.response.body", "body": _Unsendable(), "more_body": True})
        return BrokenOffError(message)


async def _left(receive: Receive) -> None:
    """Return when the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass
