"""S3 over HTTP for tests: two servers, in threads of the test process, on free ports of 127.0.0.1.

`localbucket_server` is quick and keeps its objects as files; `moto_server` knows more of S3, as checksums and its
errors. Whatever must hold on S3 has to hold on both.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import ThreadingHTTPServer
from pathlib import Path
from urllib.request import Request, urlopen

from localbucket import S3Handler
from moto.server import ThreadedMotoServer

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
