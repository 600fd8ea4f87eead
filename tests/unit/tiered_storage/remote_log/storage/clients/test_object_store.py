"""What is particular to S3: refusals, failures midway, bounded waiting, and secrets that stay secret."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import MethodType
from typing import Any
from urllib.request import Request, urlopen

import pytest

from support.object_stores import S3Endpoint, localbucket_server, moto_server, options_for
from tiered_storage.errors import (
    ConfigurationError,
    RemoteObjectCorruptError,
    RemoteObjectNotFoundError,
    RemoteStorageError,
    RemoteStorageFullError,
    RemoteStorageRefusedError,
)
from tiered_storage.remote_log.storage.clients.object_client import delete_object
from tiered_storage.remote_log.storage.clients.object_store import PART_BYTES, ObjectStore
from tiered_storage.remote_log.storage.clients.options import ObjectStoreOptions

NAME = "folder/segment.log"
Call = Callable[[ObjectStore], object]
CALLS: dict[str, Call] = {
    "put": lambda store: put(store, 10),
    "put in parts": lambda store: put(store, 3 * PART_BYTES),
    "create": lambda store: store.create(NAME, b"x"),
    "get_range": lambda store: store.get_range(NAME, 0, 1),
    "size": lambda store: store.size(NAME),
    "delete": lambda store: delete_object(store, NAME),
    "list": lambda store: list(store.list("folder")),
}


def put(store: ObjectStore, size: int) -> None:
    store.put(NAME, size, (memoryview(bytes(min(1 << 20, size - at))) for at in range(0, size, 1 << 20)))


@dataclass
class ScriptedServer:
    """An S3 server that answers what a test wants, and remembers the requests: method, path with query, headers."""

    url: str
    answer: Callable[[str, str], int | None] = lambda _method, _path: None
    requests: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    shown_size: int = 0
    error_code: str = "Scripted"

    @property
    def calls(self) -> list[str]:
        """The requests as 'METHOD query', for those of multipart uploads, or 'METHOD'."""
        return [f"{method} {path.partition('?')[2]}".rstrip() for method, path, _ in self.requests]

    def options(self, **changes: Any) -> ObjectStoreOptions:
        return replace(options_for(S3Endpoint(self.url)), max_retries=2, **changes)

    def store(self, **changes: Any) -> ObjectStore:
        return ObjectStore("s3://bucket/root", self.options(**changes))


@contextmanager
def scripted_server() -> Iterator[ScriptedServer]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_request(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            script.requests.append((self.command, self.path, dict(self.headers)))
            status = script.answer(self.command, self.path) or 200
            body = (
                f"<Error><Code>{script.error_code}</Code></Error>".encode()
                if status != 200
                else _success(self.command, self.path)
            )
            self.send_response(status)
            shown = script.shown_size if self.command == "HEAD" and status == 200 else len(body)
            for header in ("Content-Length", str(shown)), ("ETag", '"tag"'):
                self.send_header(*header)
            self.send_header("Last-Modified", "Sat, 21 Nov 2026 11:00:00 GMT")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_request  # noqa: N815 -- the names that http.server calls

        def log_message(self, *args: object) -> None:
            pass

        def finish(self) -> None:
            try:
                super().finish()
            except BrokenPipeError:
                self.close_connection = True

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.handle_error = MethodType(lambda *_: None, server)  # type: ignore[method-assign]  # aborted uploads hang up
    script = ScriptedServer(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield script
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _success(method: str, path: str) -> bytes:
    if method == "POST" and "uploads" in path:
        return b"<R><Bucket>bucket</Bucket><Key>key</Key><UploadId>U1</UploadId></R>"
    return b"<R><ETag>tag</ETag></R>" if method == "POST" else b""


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with scripted_server() as script:
        yield script


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("status", [401, 403])
def test_a_store_that_refuses_is_named_and_not_tried_again(server: ScriptedServer, status: int, call: str) -> None:
    server.answer = lambda _method, _path: status
    with pytest.raises(RemoteStorageRefusedError, match="rights") as raised:
        CALLS[call](server.store())
    assert f"s3://bucket/root/{NAME if call != 'list' else 'folder'} at {server.url}" in str(raised.value)
    assert len(server.requests) == 1


@pytest.mark.parametrize("call", [call for call in CALLS if call != "size"])
def test_a_bucket_that_is_missing_is_reported(s3_endpoint: S3Endpoint, call: str) -> None:
    store = ObjectStore("s3://no-such-bucket/root", options_for(s3_endpoint))
    with pytest.raises(RemoteObjectNotFoundError, match=r"^s3://no-such-bucket/root"):
        CALLS[call](store)


@contextmanager
def moto_that_checks_credentials() -> Iterator[S3Endpoint]:
    """A server without users, which refuses every login; its bucket exists already."""
    with moto_server() as endpoint:
        let_pass(endpoint, b"0")
        try:
            yield endpoint
        finally:
            let_pass(endpoint, b"inf")


def let_pass(endpoint: S3Endpoint, requests: bytes) -> None:
    """Let moto accept so many requests unchecked from now on."""
    request = Request(  # noqa: S310 -- http it is, and our own
        f"{endpoint.url}/moto-api/reset-auth", requests, {"Content-Type": "text/plain"}
    )
    urlopen(request).close()  # noqa: S310 -- http it is, and our own


def test_wrong_credentials_are_refused_by_a_server_that_checks_them() -> None:
    with moto_that_checks_credentials() as endpoint:
        store = ObjectStore(f"s3://{endpoint.bucket}/root", options_for(endpoint))
        for call in CALLS.values():
            with pytest.raises(RemoteStorageRefusedError, match=re.escape(endpoint.url)) as raised:
                call(store)
            assert endpoint.secret_key not in str(raised.value)


@pytest.mark.timeout(60)
def test_a_server_that_is_gone_is_worth_another_try_soon(tmp_path: Path) -> None:
    with localbucket_server(tmp_path) as endpoint:
        store = ObjectStore(f"s3://{endpoint.bucket}/root", options_for(endpoint))

    def raised_by(call: Call) -> RemoteStorageError:
        with pytest.raises(RemoteStorageError) as raised:
            call(store)
        return raised.value

    # Side by side, as each of them mostly waits before it tries again.
    with ThreadPoolExecutor(len(CALLS)) as threads:
        errors = dict(zip(CALLS, threads.map(raised_by, CALLS.values()), strict=True))
    for call, error in errors.items():
        assert type(error) is RemoteStorageError, call
        assert error.retriable, call
        assert endpoint.url in str(error), call


def test_a_server_that_goes_midway_is_worth_another_try(tmp_path: Path) -> None:
    program = """
import sys, time
from pathlib import Path
from support.object_stores import localbucket_server

with localbucket_server(Path(sys.argv[1])) as endpoint:
    print(endpoint.url, flush=True)
    time.sleep(600)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        endpoint = S3Endpoint(process.stdout.readline().strip())
        store = ObjectStore(f"s3://{endpoint.bucket}/root", options_for(endpoint))

        def chunks() -> Iterator[memoryview]:
            for i in range(10):
                if i == 2:
                    process.kill()
                    process.wait()
                yield memoryview(bytes(PART_BYTES))

        with pytest.raises(RemoteStorageError, match="write") as raised:
            store.put(NAME, 10 * PART_BYTES, chunks())
    assert raised.value.retriable
    assert list((tmp_path / endpoint.bucket).rglob("*")) == []


def test_a_server_that_never_answers_is_given_up(server: ScriptedServer) -> None:
    ended = threading.Event()

    def hang(method: str, path: str) -> int:
        ended.wait(60)
        return 500

    server.answer = hang
    with pytest.raises(RemoteStorageError, match="look at"):
        server.store(request_timeout_ms=100).size(NAME)
    ended.set()


@pytest.mark.parametrize("call", CALLS)
def test_a_server_that_stumbles_is_tried_again(server: ScriptedServer, call: str) -> None:
    server.shown_size = {"put": 10, "put in parts": 3 * PART_BYTES}.get(call, 1)
    stumbles = iter([503, 500])
    server.answer = lambda _method, _path: next(stumbles, None)
    if call in {"get_range", "list"}:  # the scripted server has no content for them
        with pytest.raises(RemoteStorageError, match="could not"):
            CALLS[call](server.store())
    else:
        CALLS[call](server.store())
    assert next(stumbles, None) is None


def test_a_store_without_room_is_reported(server: ScriptedServer) -> None:
    server.answer = lambda method, _path: 507 if method == "PUT" else None
    with pytest.raises(RemoteStorageFullError, match=f"^s3://bucket/root/{NAME}.*no room"):
        put(server.store(), 10)


@pytest.mark.parametrize("part", [1, 3, 4])
def test_an_upload_is_aborted_when_a_part_fails(server: ScriptedServer, part: int) -> None:
    server.answer = lambda _method, path: 403 if f"partNumber={part}&" in path else None
    with pytest.raises(RemoteStorageRefusedError):
        put(server.store(), 3 * PART_BYTES + 5)
    assert "DELETE uploadId=U1" in server.calls
    assert "POST uploadId=U1" not in server.calls


def test_an_upload_is_aborted_when_it_cannot_be_completed(server: ScriptedServer) -> None:
    server.answer = lambda method, path: 500 if method == "POST" and "uploadId" in path else None
    with pytest.raises(RemoteStorageError, match="write"):
        put(server.store(), 3 * PART_BYTES)
    assert server.calls[-1] == "DELETE uploadId=U1"


def test_the_sources_own_error_is_reported_even_where_the_abort_fails(server: ScriptedServer) -> None:
    server.answer = lambda method, _path: 403 if method == "DELETE" else None

    def chunks() -> Iterator[memoryview]:
        yield memoryview(bytes(PART_BYTES))
        raise KeyError("the source")

    with pytest.raises(KeyError, match="the source"):
        server.store().put(NAME, 2 * PART_BYTES, chunks())


def test_a_put_compares_the_size_that_the_store_reports(server: ScriptedServer) -> None:
    server.shown_size = 9
    with pytest.raises(RemoteObjectCorruptError, match=r"\b10 .*\b9 "):
        put(server.store(), 10)


def test_every_upload_carries_a_sha256(server: ScriptedServer) -> None:
    server.shown_size = 10
    put(server.store(), 10)
    server.shown_size = 2 * PART_BYTES
    put(server.store(), 2 * PART_BYTES)
    sent = [headers for method, _, headers in server.requests if method == "PUT"]
    assert len(sent) == 3
    assert all("x-amz-checksum-sha256" in {name.lower() for name in headers} for headers in sent)


def test_a_machine_without_credentials_gets_an_error(server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_WEB_IDENTITY_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    server.answer = lambda _method, _path: 404
    store = server.store(access_key_id=None, secret_access_key=None, properties={"metadata_endpoint": server.url})
    with pytest.raises(RemoteStorageRefusedError, match="credentials"):
        put(store, 10)


def test_expired_credentials_are_no_passing_fault(server: ScriptedServer) -> None:
    server.answer = lambda _method, _path: 400
    server.error_code = "ExpiredToken"
    with pytest.raises(RemoteStorageRefusedError, match="credentials have expired"):
        put(server.store(), 10)


def test_secrets_do_not_show() -> None:
    options = ObjectStoreOptions(
        endpoint="http://127.0.0.1:9",
        access_key_id="the-id",
        secret_access_key="the-secret",
        session_token="the-token",
        allow_http=True,
        properties={"sse_kms_key_id": "the-key"},
        max_retries=0,
    )
    with pytest.raises(RemoteStorageError) as raised:
        ObjectStore("s3://bucket", options).size("x")
    shown = f"{options!r} {options} {raised.value} {raised.value.__cause__!r}"
    assert not re.search("the-(id|secret|token|key)", shown)


@pytest.mark.parametrize("bucket", ["logs--use1-az4--x-s3", "LOGS--use1-az4--X-S3"])
def test_directory_buckets_are_refused(bucket: str) -> None:
    with pytest.raises(ConfigurationError, match="directory bucket"):
        ObjectStore(f"s3://{bucket}/prefix", ObjectStoreOptions())


@pytest.mark.parametrize(
    "url",
    [
        "s3://user:hidden@bucket/x",
        "s3://bucket/x?secret=hidden",
        "s3:///x",
        "file:///x",
        "bucket/hidden",
        "s3://b#hidden",
    ],
)
def test_urls_that_name_no_bucket_or_hold_secrets_are_refused(url: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        ObjectStore(url, ObjectStoreOptions())
    assert "hidden" not in str(raised.value)


def test_http_must_be_allowed() -> None:
    with pytest.raises(ConfigurationError, match="not encrypted"):
        ObjectStore("s3://bucket", ObjectStoreOptions(endpoint="http://127.0.0.1:9"))


def test_settings_that_no_store_knows_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="make no store"):
        ObjectStore("s3://bucket", ObjectStoreOptions(properties={"colour": "blue"}))


@pytest.mark.parametrize("url", ["gs://bucket/root", "az://container/root"])
def test_other_clouds_are_opened_by_the_same_class(url: str) -> None:
    properties = (
        {"account_name": "account", "account_key": "a2V5"} if url.startswith("az") else {"skip_signature": "true"}
    )
    assert ObjectStore(url, ObjectStoreOptions(properties=properties)).root == url


def test_the_session_token_of_another_identity_is_not_sent_with_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "of the machine")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of the machine")
    seen: list[dict[str, str]] = []

    class Seen(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append({name.lower(): value for name, value in self.headers.items()})
            self.send_response(404)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Seen)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    endpoint = f"http://127.0.0.1:{server.server_port}"
    of_a_connection = ObjectStoreOptions(endpoint, "us-east-1", "ours", "a secret", allow_http=True)
    try:
        for options in (of_a_connection, replace(of_a_connection, session_token="ours too")):
            with pytest.raises(RemoteObjectNotFoundError):
                ObjectStore("s3://bucket", options).get_range(NAME, 0, 1)
    finally:
        server.shutdown()
        server.server_close()
    assert all("Credential=ours/" in each["authorization"] for each in seen)
    assert [each.get("x-amz-security-token") for each in seen] == [None, "ours too"]
