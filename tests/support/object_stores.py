"""Object stores for tests: S3 servers, and an empty store of every kind.

`localbucket_server` is quick and keeps its objects as files; `moto_server` knows more of S3, as checksums and its
errors. Whatever must hold on S3 has to hold on both.
"""

from __future__ import annotations

import logging
import re
import runpy
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.request import Request, urlopen
from uuid import uuid4

from moto.server import ThreadedMotoServer

from servers.azurite import CONTAINER, AzureEndpoint, azurite_server
from servers.s3_proxy import without_conditional_writes
from tiered_storage.remote_log.storage.clients.object_client import ObjectClient
from tiered_storage.remote_log.storage.clients.opening import open_object_client
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


LOCAL_DIRECTORY = "local directory"
OWN = "a class of one's own"
AZURITE = "azurite"
UNCONDITIONAL = "s3 without conditional writes"
KINDS = (LOCAL_DIRECTORY, "localbucket", "moto", UNCONDITIONAL, AZURITE, OWN)
OWN_STORE = Path(__file__).parents[2] / "docs" / "examples" / "own_store.py"
"""The example of a store of your own, which must keep the contract too."""


@dataclass(frozen=True, slots=True)
class StoreUnderTest:
    """An empty store: how to open it, and how to see directly what an unfinished write left there."""

    url: str
    options: ObjectStoreOptions
    unfinished: Callable[[], list[str]]
    open: Callable[[str, ObjectStoreOptions], ObjectClient] = open_object_client


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
        if kind == OWN:
            objects = runpy.run_path(str(OWN_STORE))["SqliteObjects"]
            return StoreUnderTest(
                f"sqlite://{directory}/objects.db", ObjectStoreOptions(), list, lambda url, _: objects(url, 30_000)
            )
        if kind == AZURITE:
            # Blocks that were never committed have no names; Azure drops them by itself.
            return StoreUnderTest(f"az://{CONTAINER}/{uuid4().hex}/root", self._azure().options, list)
        endpoint = self._server(kind)
        return StoreUnderTest(
            f"s3://{endpoint.bucket}/{uuid4().hex}/root",
            replace(options_for(endpoint), conditional_writes=kind != UNCONDITIONAL),
            lambda: _uploads_in_moto(endpoint) if kind == "moto" else self._uploads_in_localbucket(),
        )

    def _server(self, kind: str) -> S3Endpoint:
        if kind not in self._servers:
            if kind == UNCONDITIONAL:
                server = without_conditional_writes(self._server("localbucket"))
            else:
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
