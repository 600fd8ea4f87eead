"""One structured log line and one set of metrics for each request, written when its response has ended."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tiered_storage.remote_log.metrics.exposition import FetchCounts

_KEY = "remote_log_access"
MOST_CHARACTERS = 1000
METRICS_MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_log = structlog.get_logger("remote_log.access")


@dataclass(slots=True)
class Access:
    """The data of a request's log line, filled in meanwhile. Offsets are inclusive; `bytes` are of the body."""

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
    """Whether the user may see the topic."""

    def took(self, first_offset: int, last_offset: int, records: int | None) -> None:
        """Add the offsets and records just sent."""
        self.first_offset = first_offset if self.first_offset is None else self.first_offset
        self.last_offset = last_offset
        if records is not None:
            self.records = (self.records or 0) + records


def access_of(request: Request) -> Access:
    """Return the log data of `request`."""
    found: Access = request.scope["state"].setdefault(_KEY, Access())
    return found


class AccessLog:
    """The ASGI layer that logs and counts requests, and forbids clients to cache responses or guess their type."""

    def __init__(self, app: ASGIApp, metrics: Metrics, below: str = "") -> None:
        """Count the routes of `app` under the path `below`."""
        self._app = app
        self._metrics = metrics
        self._below = below

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
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
            self._metrics.answered(self._below + route, access.status or 0, access.bytes, time.monotonic() - begin)
            _log.info("remote log access", method=scope["method"], path=plain_text(scope["path"]), **_shown(access))


def _shown(access: Access) -> dict[str, Any]:
    return {
        name: plain_text(value) if isinstance(value, str) else value
        for name, value in asdict(access).items()
        if value is not None and name != "has_right"
    }


def plain_text(text: str) -> str:
    """Return `text` for a log line, with everything escaped that a terminal would not show as text."""
    return (text if text.isprintable() else ascii(text)[1:-1])[:MOST_CHARACTERS]


class Metrics:
    """Metrics of one process in Prometheus' text format. No label names a topic: every logged-in user sees them.

    `fetched` counts by topic what is read from the remote tier; `text` leaves it out.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.fetched = FetchCounts()
        self._requests = Counter(
            "remote_log_requests", "Requests with a response", ["route", "status"], registry=self.registry
        )
        self._bytes = Counter("remote_log_sent_bytes", "Bytes of response bodies", ["route"], registry=self.registry)
        self._seconds = Histogram(
            "remote_log_request_seconds",
            "Time from a request to the end of its response",
            ["route"],
            buckets=(0.005, 0.02, 0.1, 0.5, 2, 10, 60),
            registry=self.registry,
        )
        self.streams = Gauge(
            "remote_log_streams", "Responses with bytes or records in progress", registry=self.registry
        )
        self.refused = Counter(
            "remote_log_refused", "Requests refused for lack of room", ["what"], registry=self.registry
        )
        self.given_up = Counter(
            "remote_log_given_up", "Responses aborted before their end", ["why"], registry=self.registry
        )

    def answered(self, route: str, status: int, size: int, seconds: float) -> None:
        """Count a response; `status` 0: there was none."""
        self._requests.labels(route, str(status)).inc()
        self._bytes.labels(route).inc(size)
        self._seconds.labels(route).observe(seconds)

    def text(self) -> bytes:
        """Return all metrics as text."""
        return generate_latest(self.registry)
