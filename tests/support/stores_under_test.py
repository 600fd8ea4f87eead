"""Empty stores of every kind, for suites that each of them has to pass."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen
from uuid import uuid4

from support.s3_server import S3Endpoint, localbucket_server, moto_server
from tiered_storage.remote_log.storage.object_client import ObjectStoreOptions

LOCAL_DIRECTORY = "local directory"
KINDS = (LOCAL_DIRECTORY, "localbucket", "moto")


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

    def empty(self, kind: str, directory: Path) -> StoreUnderTest:
        """Return an empty store of `kind`; one that keeps files does so in `directory`."""
        if kind == LOCAL_DIRECTORY:
            url = f"{directory.as_uri()}/a%20store"
            return StoreUnderTest(url, ObjectStoreOptions(), lambda: [str(path) for path in directory.rglob("*.tmp")])
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
