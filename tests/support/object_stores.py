"""S3 servers for tests, and where the example of a store of your own is.

`localbucket_server` is quick and keeps its objects as files; `moto_server` knows more of S3, as checksums and its
errors. Whatever must hold on S3 has to hold on both.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.request import Request, urlopen

from moto.server import ThreadedMotoServer

from tiered_storage.remote_log.storage.clients.options import ObjectStoreOptions
from tiered_storage_airflow.demo_cluster.s3_server import http_server

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
    server = http_server(directory, 0)
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
    # The server would log every successful request, in colours.
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


OWN = "a class of one's own"
OWN_STORE = Path(__file__).parents[2] / "docs" / "examples" / "own_store.py"
"""The example of a store of your own, which must keep the contract too."""


def options_for(endpoint: S3Endpoint) -> ObjectStoreOptions:
    """Return how our code reaches `endpoint`."""
    return ObjectStoreOptions(
        endpoint=endpoint.url,
        region=endpoint.region,
        access_key_id=endpoint.access_key,
        secret_access_key=endpoint.secret_key,
        allow_http=True,
    )
