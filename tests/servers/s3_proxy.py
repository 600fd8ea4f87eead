"""A proxy before an S3 server, which looks at each request: it refuses some, takes headers away, or changes answers."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from support.object_stores import S3Endpoint

_BETWEEN_TWO_HOPS = {"connection", "keep-alive", "transfer-encoding", "content-length"}


@dataclass(frozen=True, slots=True)
class Asked:
    """A request: its path is unquoted, the names of its headers are in small letters. Changed headers are passed on."""

    method: str
    path: str
    headers: dict[str, str]


@dataclass(frozen=True, slots=True)
class Refusal:
    """What is answered in place of the server: an HTTP status, S3's code of an error, and headers."""

    status: int
    code: str
    headers: dict[str, str] = field(default_factory=dict)


Look = Callable[[Asked], Refusal | None]
Change = Callable[[Asked, bytes], bytes]
"""Returns what is passed on in place of an answer's content."""


@contextmanager
def proxy(
    endpoint: S3Endpoint,
    look: Look,
    tls: ssl.SSLContext | None = None,
    change: Change = lambda _, content: content,
) -> Iterator[S3Endpoint]:
    """Pass on to `endpoint` what `look` does not refuse, with answers that `change` may change.

    With `tls` as https://localhost.
    """
    target = urlsplit(endpoint.url).netloc

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # Answers go out in several writes: Nagle's algorithm would hold the later ones back for 40 ms.
        disable_nagle_algorithm = True

        def handle_request(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            asked = Asked(self.command, unquote(self.path), headers)
            refusal = look(asked)
            if refusal is not None:
                content = f"<Error><Code>{refusal.code}</Code><Message>{refusal.code}</Message></Error>".encode()
                self._answer(refusal.status, {"Content-Type": "application/xml", **refusal.headers}, content)
                return
            with closing(HTTPConnection(target)) as connection:
                connection.request(self.command, self.path, body, headers)
                answer = connection.getresponse()
                content = change(asked, answer.read())
                passed = {name: value for name, value in answer.getheaders() if name.lower() not in _BETWEEN_TWO_HOPS}
                # A HEAD is answered with the length of what a GET would bring.
                length = answer.getheader("Content-Length") if self.command == "HEAD" else None
                self._answer(answer.status, passed, content, length)

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_request  # noqa: N815 -- http.server looks for these

        def _answer(self, status: int, headers: dict[str, str], content: bytes, length: str | None = None) -> None:
            self.send_response_only(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", length or str(len(content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Say nothing of requests."""

    with served(Handler, tls) as url:
        yield replace(endpoint, url=url)


@contextmanager
def without_conditional_writes(
    endpoint: S3Endpoint, tls: ssl.SSLContext | None = None, seen: Look = lambda _: None
) -> Iterator[S3Endpoint]:
    """Pass on to `endpoint` as a server that ignores If-None-Match; `seen` looks before that."""

    def look(asked: Asked) -> Refusal | None:
        refusal = seen(replace(asked, headers=dict(asked.headers)))
        asked.headers.pop("if-none-match", None)
        return refusal

    with proxy(endpoint, look, tls) as proxied:
        yield proxied


@contextmanager
def served(handler: type[BaseHTTPRequestHandler], tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """Serve by `handler` on this machine; yield the URL."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        host = "http://127.0.0.1" if tls is None else "https://localhost"
        yield f"{host}:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def refusing_proxy(endpoint: S3Endpoint, refused: str) -> Iterator[S3Endpoint]:
    """Pass all requests on to `endpoint`, but answer 403 to those that write where the path contains `refused`."""

    def look(asked: Asked) -> Refusal | None:
        writes = asked.method in {"PUT", "POST"} and refused in asked.path
        return Refusal(403, "AccessDenied") if writes else None

    with proxy(endpoint, look) as proxied:
        yield proxied
