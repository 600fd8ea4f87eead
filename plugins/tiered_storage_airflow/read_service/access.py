"""Who read what: one structured line of the log for each request, when its answer has ended, however it ended."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any

import structlog
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tiered_storage_airflow.read_service.metrics import Metrics

_KEY = "remote_log_access"
MOST_CHARACTERS = 1000
_log = structlog.get_logger("remote_log.access")


@dataclass(slots=True)
class Access:
    """What is known of a request by and by. Offsets are inclusive; `bytes` were sent as the answer's body."""

    user: str | None = None
    topic: str | None = None
    partition: int | None = None
    segment: str | None = None
    first_offset: int | None = None
    last_offset: int | None = None
    records: int | None = None
    bytes: int = 0
    status: int | None = None
    is_whole: bool = False
    has_right: bool = False
    """Whether the topic was one that the user may see."""

    def took(self, first_offset: int, last_offset: int, records: int | None) -> None:
        """Add what was just given away of a partition."""
        self.first_offset = first_offset if self.first_offset is None else self.first_offset
        self.last_offset = last_offset
        if records is not None:
            self.records = (self.records or 0) + records


def access_of(request: Request) -> Access:
    """Return what is known of `request`."""
    found: Access = request.scope["state"].setdefault(_KEY, Access())
    return found


class AccessLog:
    """The ASGI layer that writes the lines, counts them, and lets nobody keep an answer or guess what it is."""

    def __init__(self, app: ASGIApp, figures: Metrics, below: str = "") -> None:
        """Count the routes of `app` as those `below` a path."""
        self._app = app
        self._figures = figures
        self._below = below

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass one request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        access = Access()
        scope.setdefault("state", {})[_KEY] = access
        begin = time.monotonic()

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.setdefault("Cache-Control", "no-store")
                headers.setdefault("X-Content-Type-Options", "nosniff")
            await send(message)
            if message["type"] == "http.response.start":
                access.status = message["status"]
            elif message["type"] == "http.response.body":
                access.bytes += len(message.get("body", b""))
                access.is_whole = not message.get("more_body", False)

        try:
            await self._app(scope, receive, counted)
        except Exception:
            access.status = access.status or 500
            raise
        finally:
            route = getattr(scope.get("route"), "path", "none")
            self._figures.answered(self._below + route, access.status or 0, access.bytes, time.monotonic() - begin)
            _log.info("remote log access", method=scope["method"], path=plain_text(scope["path"]), **_shown(access))


def _shown(access: Access) -> dict[str, Any]:
    return {
        name: plain_text(value) if isinstance(value, str) else value
        for name, value in asdict(access).items()
        if value is not None and name != "has_right"
    }


def plain_text(text: str) -> str:
    """Return `text` for a line of the log: what a terminal would not show as text is escaped."""
    return (text if text.isprintable() else ascii(text)[1:-1])[:MOST_CHARACTERS]
