"""Object stores for tests: S3 servers, a proxy that refuses writes, and an empty store of every kind.

`localbucket_server` is quick and keeps its objects as files; `moto_server` knows more of S3, as checksums and its
errors. Whatever must hold on S3 has to hold on both.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit
from urllib.request import Request, urlopen
from uuid import uuid4

from localbucket import S3Handler
from moto.server import ThreadedMotoServer

from support.azurite import CONTAINER, AzureEndpoint, azurite_server
from tiered_storage.remote_log.storage.clients.options import ObjectStoreOptions

REGION = "us-east-1"
BUCKET = "remote-log-tests"


@dataclass(frozen=True, slots=True)
class S3Endpoint:
    """Where an S3 server is, credentials (any will do), and a bucket that it has, named by path and not by host."""

    url: str
    access_key: str = "test-access-key"
    secret_key: str = "test-secret-key"
    region: str = REGION
    bucket: str = BUCKET


@contextmanager
def localbucket_server(directory: Path) -> Iterator[S3Endpoint]:
    """Serve the buckets in `directory`, which are folders, their objects files."""
    directory.mkdir(parents=True, exist_ok=True)
    # Answers go out in two writes: Nagle's algorithm would hold the second one back for 40 ms.
    settings = {"data_root": directory.resolve(), "disable_nagle_algorithm": True}
    handler = type("Handler", (S3Handler,), settings)
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield _with_bucket(f"http://127.0.0.1:{server.server_address[1]}")
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def moto_server() -> Iterator[S3Endpoint]:
    """Serve buckets that are kept in memory; two of these at once would see each other's."""
    # The server notes every request that went well, in colours.
    logging.getLogger("werkzeug").setLevel(logging.WARNING)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield _with_bucket(f"http://{host}:{port}")
    finally:
        server.stop()


def _with_bucket(url: str) -> S3Endpoint:
    endpoint = S3Endpoint(url)
    with urlopen(Request(f"{url}/{endpoint.bucket}", method="PUT")):  # noqa: S310 -- http it is, and our own
        return endpoint


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


LOCAL_DIRECTORY = "local directory"
AZURITE = "azurite"
KINDS = (LOCAL_DIRECTORY, "localbucket", "moto", AZURITE)


@dataclass(frozen=True, slots=True)
class StoreUnderTest:
    """An empty store: how to open it, and how to see, behind its back, what an unfinished write left there."""

    url: str
    options: ObjectStoreOptions
    unfinished: Callable[[], list[str]]


class Stores:
    """Gives empty stores, and starts the server of a kind when one is first asked for."""

    def __init__(self, running: ExitStack, buckets: Path) -> None:
        self._running = running
        self._buckets = buckets
        self._servers: dict[str, S3Endpoint] = {}
        self._azurite: AzureEndpoint | None = None

    def empty(self, kind: str, directory: Path) -> StoreUnderTest:
        """Return an empty store of `kind`; one that keeps files does so in `directory`."""
        if kind == LOCAL_DIRECTORY:
            url = f"{directory.as_uri()}/a%20store"
            return StoreUnderTest(url, ObjectStoreOptions(), lambda: [str(path) for path in directory.rglob("*.tmp")])
        if kind == AZURITE:
            # Blocks that were never committed have no names; Azure drops them by itself.
            return StoreUnderTest(f"az://{CONTAINER}/{uuid4().hex}/root", self._azure().options, list)
        endpoint = self._server(kind)
        return StoreUnderTest(
            f"s3://{endpoint.bucket}/{uuid4().hex}/root",
            options_for(endpoint),
            lambda: _uploads_in_moto(endpoint) if kind == "moto" else self._uploads_in_localbucket(),
        )

    def _server(self, kind: str) -> S3Endpoint:
        if kind not in self._servers:
            server = moto_server() if kind == "moto" else localbucket_server(self._buckets)
            self._servers[kind] = self._running.enter_context(server)
        return self._servers[kind]

    def _azure(self) -> AzureEndpoint:
        if self._azurite is None:
            self._azurite = self._running.enter_context(azurite_server(self._buckets / AZURITE))
        return self._azurite

    def _uploads_in_localbucket(self) -> list[str]:
        # It lists no uploads, and keeps them beside its buckets: a folder is one as long as this file is in it. A part
        # that was still on its way when its upload was aborted can leave a folder without it, which no request reaches.
        return [str(path.parent) for path in (self._buckets / ".localbucket-uploads").glob("*/upload.json")]


@contextmanager
def running_stores(buckets: Path) -> Iterator[Stores]:
    """Run what the stores need; the server that keeps files does so in `buckets`."""
    with ExitStack() as running:
        yield Stores(running, buckets)


def options_for(endpoint: S3Endpoint) -> ObjectStoreOptions:
    """Return how our code reaches `endpoint`."""
    return ObjectStoreOptions(
        endpoint=endpoint.url,
        region=endpoint.region,
        access_key_id=endpoint.access_key,
        secret_access_key=endpoint.secret_key,
        allow_http=True,
    )


def _uploads_in_moto(endpoint: S3Endpoint) -> list[str]:
    with urlopen(f"{endpoint.url}/{endpoint.bucket}?uploads") as answer:  # noqa: S310 -- http it is, and our own
        return re.findall(r"<Key>(.*?)</Key>", answer.read().decode())
