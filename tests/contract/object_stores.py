"""Empty object stores of every kind, for the contract suites."""

from __future__ import annotations

import re
import runpy
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.request import urlopen
from uuid import uuid4

from servers.azurite import CONTAINER, AzureEndpoint, azurite_server
from servers.s3_proxy import without_conditional_writes
from support.object_stores import OWN, OWN_STORE, S3Endpoint, localbucket_server, moto_server, options_for
from support.remote_segments import INDEXES, reused_chunks
from tiered_storage.remote_log.storage.clients.object_client import ObjectClient
from tiered_storage.remote_log.storage.clients.opening import open_object_client
from tiered_storage.remote_log.storage.clients.options import ObjectStoreOptions
from tiered_storage.remote_log.storage.remote_storage_manager import LogSegmentData

LOCAL_DIRECTORY = "local directory"
AZURITE = "azurite"
UNCONDITIONAL = "s3 without conditional writes"
KINDS = (LOCAL_DIRECTORY, "localbucket", "moto", UNCONDITIONAL, AZURITE, OWN)


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


def _uploads_in_moto(endpoint: S3Endpoint) -> list[str]:
    with urlopen(f"{endpoint.url}/{endpoint.bucket}?uploads") as answer:  # noqa: S310 -- http it is, and our own
        return re.findall(r"<Key>(.*?)</Key>", answer.read().decode())


def failing_data(content: bytes, error: BaseException, after: int, chunk_size: int = 1 << 20) -> LogSegmentData:
    """Return a segment whose source raises `error` after so many bytes."""

    def chunks() -> Iterator[memoryview]:
        yield from reused_chunks(content[:after], chunk_size)
        raise error

    return LogSegmentData(len(content), chunks(), lambda: dict(INDEXES))


def hdfs_store(url: str) -> StoreUnderTest:
    """Return an empty store in the file system at `url`."""
    url = f"{url}/{uuid4().hex}/root"
    client = open_object_client(url, ObjectStoreOptions())
    return StoreUnderTest(
        url, ObjectStoreOptions(), lambda: [found.name for found in client.list() if found.name.endswith(".tmp")]
    )
