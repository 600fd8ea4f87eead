"""Stands before an S3 server and refuses what is written below some names, as a bucket's policy does."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

from support.s3_server import S3Endpoint

_REFUSAL = b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
_BETWEEN_TWO_HOPS = {"connection", "keep-alive", "transfer-encoding", "content-length"}


@contextmanager
def refusing_proxy(endpoint: S3Endpoint, refused: str) -> Iterator[S3Endpoint]:
    """Pass all requests on to `endpoint`, but answer 403 to those that write where the path contains `refused`."""
    target = urlsplit(endpoint.url).netloc

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # Answers go out in several writes: Nagle's algorithm would hold the later ones back for 40 ms.
        disable_nagle_algorithm = True

        def handle_request(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if self.command in {"PUT", "POST"} and refused in unquote(self.path):
                self._answer(403, {"Content-Type": "application/xml"}, _REFUSAL)
                return
            with closing(HTTPConnection(target)) as connection:
                connection.request(self.command, self.path, body, dict(self.headers.items()))
                answer = connection.getresponse()
                content = answer.read()
                headers = {name: value for name, value in answer.getheaders() if name.lower() not in _BETWEEN_TWO_HOPS}
                # A HEAD is answered with the length of what a GET would bring.
                length = answer.getheader("Content-Length") if self.command == "HEAD" else None
                self._answer(answer.status, headers, content, length)

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_request  # noqa: N815 -- http.server looks for these

        def _answer(self, status: int, headers: dict[str, str], content: bytes, length: str | None = None) -> None:
            self.send_response_only(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", length or str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Say nothing of requests."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield replace(endpoint, url=f"http://127.0.0.1:{server.server_address[1]}")
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
