"""What settings make of a request to S3: its host, and what it asks for."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from threading import Barrier
from typing import Any
from uuid import uuid4

import pytest

from servers.s3_proxy import Asked, Refusal, proxy, without_conditional_writes
from support.object_stores import S3Endpoint, options_for
from tiered_storage.errors import ConfigurationError, RemoteObjectNotFoundError
from tiered_storage.remote_log.storage.clients.object_store import PART_BYTES, ObjectStore
from tiered_storage.remote_log.storage.clients.options import ObjectStoreOptions

NAME = "folder/segment.log"


@contextmanager
def watched(endpoint: S3Endpoint, seen: list[Asked], **options: Any) -> Iterator[ObjectStore]:
    """A store whose requests are in `seen`."""
    with proxy(endpoint, seen.append) as proxied:
        yield opened(proxied, **options)


def opened(endpoint: S3Endpoint, **options: Any) -> ObjectStore:
    """An empty store."""
    return ObjectStore(f"s3://{endpoint.bucket}/{uuid4().hex}", replace(options_for(endpoint), **options))


def use(store: ObjectStore) -> None:
    for size in (10, 2 * PART_BYTES):
        store.put(NAME, size, iter([memoryview(bytes(size))]))
    assert store.get_range(NAME, 0, 1) == b"\0"
    assert store.size(NAME) == 2 * PART_BYTES
    assert [found.name for found in store.list("folder")] == [NAME]


def test_the_payer_is_in_every_request(s3_endpoint: S3Endpoint) -> None:
    seen: list[Asked] = []
    with watched(s3_endpoint, seen, requester_pays=True) as store:
        use(store)
    assert len(seen) > 6
    assert {asked.headers.get("x-amz-request-payer") for asked in seen} == {"requester"}


@pytest.mark.parametrize("encryption", ["AES256", "aws:kms"])
def test_encryption_is_asked_of_the_server_for_each_object(s3_endpoint: S3Endpoint, encryption: str) -> None:
    seen: list[Asked] = []
    key = "arn:aws:kms:us-east-1:123456789012:key/ours" if encryption == "aws:kms" else None
    with watched(s3_endpoint, seen, server_side_encryption=encryption, kms_key_id=key) as store:
        use(store)
        assert store.create("another", b"x")
    begun = [asked.headers for asked in seen if asked.method in {"PUT", "POST"} and "uploadId" not in asked.path]
    assert len(begun) == 3
    assert {headers.get("x-amz-server-side-encryption") for headers in begun} == {encryption}
    assert {headers.get("x-amz-server-side-encryption-aws-kms-key-id") for headers in begun} == {key}


def test_a_write_that_is_acknowledged_and_not_kept_is_an_error(s3_endpoint: S3Endpoint) -> None:
    def look(asked: Asked) -> Refusal | None:
        return Refusal(200, "Wrong", {"ETag": '"wrong"'}) if asked.method == "PUT" else None

    with proxy(s3_endpoint, look) as proxied:
        store = opened(proxied)
        with pytest.raises(RemoteObjectNotFoundError, match="acknowledged 3 "):
            store.put(NAME, 3, iter([memoryview(b"abc")]))
        with pytest.raises(RemoteObjectNotFoundError, match="acknowledged 5 "):
            store.create(NAME, b"whole")


def test_the_bucket_may_be_in_the_host(s3_endpoint: S3Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Asked] = []

    def look(asked: Asked) -> Refusal | None:
        seen.append(asked)
        return Refusal(404, "NoSuchKey")

    with proxy(s3_endpoint, look) as proxied:
        # No host has that name: the server stands for a proxy, which is sent the whole URL.
        monkeypatch.setenv("HTTP_PROXY", proxied.url)
        reached = replace(options_for(proxied), endpoint="http://s3.example.com", path_style=False)
        with pytest.raises(RemoteObjectNotFoundError):
            ObjectStore("s3://a-bucket/root", reached).size(NAME)
    assert {asked.headers["host"] for asked in seen} == {"a-bucket.s3.example.com"}
    assert not any("a-bucket/" in asked.path for asked in seen)


def test_an_endpoint_of_the_environment_that_would_win_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "https://another.example.com")
    with pytest.raises(ConfigurationError, match="AWS_ENDPOINT_URL_S3"):
        ObjectStore("s3://bucket", ObjectStoreOptions(endpoint="https://ours.example.com"))


def test_without_conditional_writes_an_existing_object_is_kept(s3_endpoint: S3Endpoint) -> None:
    with without_conditional_writes(s3_endpoint) as endpoint:
        store = opened(endpoint, conditional_writes=False)
        assert store.create("identity.json", b"first")
        assert not store.create("identity.json", b"second")
        assert store.get_range("identity.json", 0, 5) == b"first"


def test_without_conditional_writes_the_last_of_two_creators_wins(s3_endpoint: S3Endpoint) -> None:
    both_looked, both_wrote = Barrier(2, timeout=20), Barrier(2, timeout=20)

    def look(asked: Asked) -> None:
        if asked.method == "PUT":
            both_looked.wait()
        if asked.method == "GET" and "identity.json" in asked.path:
            both_wrote.wait()

    with proxy(s3_endpoint, look) as endpoint:
        store = opened(endpoint, conditional_writes=False)
        with ThreadPoolExecutor(2) as threads:
            won = list(threads.map(lambda content: store.create("identity.json", content), [b"one", b"two"]))
    assert sum(won) == 1
