"""Answers that end early: clients that leave or hang, and services that are full."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Iterator, MutableMapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import httpx
import pytest
from fastapi import FastAPI

from support.command_line import mentions
from support.read_service_site import ReadServiceSite, login, served, token
from tiered_storage.errors import RemoteStorageError

RECORDS = "/topics/orders/partitions/0/records"
Message = MutableMapping[str, Any]


@pytest.fixture
def narrow_site(logins: None, tmp_path: Path) -> Iterator[ReadServiceSite]:
    """A service with one place for an answer, that waits a second for a client."""
    properties = {"read_service_max_streams": 1, "read_service_stalled_after_ms": 1000}
    with ReadServiceSite.open(tmp_path, **properties) as site:
        yield site


def streams(site: ReadServiceSite) -> int:
    async def count() -> int:
        return (await site.service.opened()).places.streams

    return int(site.client.portal.call(count))  # type: ignore[union-attr]


class Client:
    """A client by the words of ASGI. `takes` says how many pieces it takes before it stands still or leaves."""

    def __init__(self, site: ReadServiceSite, path: str, *, takes: int, leaves: bool) -> None:
        self.site = site
        self.takes = takes
        self.leaves = leaves
        self.sent: list[Message] = []
        self.broken_off: str | None = None
        self.scope: dict[str, Any] = {
            "type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "query_string": b"",
            "headers": [(b"authorization", login("reader")["Authorization"].encode())], "root_path": "",
            "http_version": "1.1", "scheme": "http", "server": ("testserver", 80), "client": ("client", 1),
            "state": {},
        }  # fmt: skip

    async def ask(self) -> None:
        left = asyncio.Event()

        async def send(message: Message) -> None:
            pieces = [each for each in self.sent if each.get("body")]
            if len(pieces) >= self.takes and message.get("body"):
                left.set()
                await asyncio.Event().wait()
            self.sent.append(message)

        async def receive() -> Message:
            if not self.leaves:
                await asyncio.Event().wait()
            await left.wait()
            return {"type": "http.disconnect"}

        from tiered_storage_airflow.read_service.streaming import BrokenOffError

        try:
            await self.site.client.app(self.scope, receive, send)
        except BrokenOffError as error:
            self.broken_off = str(error)

    def run(self) -> None:
        self.site.client.portal.call(self.ask)  # type: ignore[union-attr]


def figure(site: ReadServiceSite, name: str) -> float:
    found = [line for line in site.get("/metrics").text.splitlines() if line.startswith(name)]
    return float(found[0].rsplit(" ", 1)[1]) if found else 0.0


@pytest.mark.parametrize("takes", [0, 1])
def test_a_client_that_leaves_frees_its_place(narrow_site: ReadServiceSite, takes: int) -> None:
    client = Client(narrow_site, RECORDS, takes=takes, leaves=True)
    client.run()
    assert streams(narrow_site) == 0
    assert figure(narrow_site, 'remote_log_given_up_total{why="client left"}') == 1
    assert not any(message.get("more_body") is False for message in client.sent)
    assert narrow_site.get(RECORDS).status_code == 200


def test_a_client_that_stands_still_is_given_up(narrow_site: ReadServiceSite) -> None:
    client = Client(narrow_site, RECORDS, takes=1, leaves=False)
    client.run()
    assert client.broken_off
    assert streams(narrow_site) == 0
    assert figure(narrow_site, 'remote_log_given_up_total{why="client stalled"}') == 1


def test_without_a_free_place_records_are_retriable_and_metadata_are_served(narrow_site: ReadServiceSite) -> None:
    async def take() -> None:
        (await narrow_site.service.opened()).places.take()

    narrow_site.client.portal.call(take)  # type: ignore[union-attr]
    full = narrow_site.get(RECORDS)
    assert (full.status_code, full.headers["retry-after"]) == (429, "5")
    assert full.json()["retriable"] is True
    assert narrow_site.get("/topics").status_code == 200
    assert figure(narrow_site, 'remote_log_refused_total{what="stream"}') == 1
    assert narrow_site.get("/health").status_code == 503


def failing_after(pieces: int, error: Exception) -> Callable[..., Any]:
    async def produce(*_: object) -> Any:
        for _piece in range(pieces):
            yield b"piece"
        raise error

    return produce


def test_a_store_that_fails_before_the_first_byte_is_an_answer_of_its_own(own_site: ReadServiceSite) -> None:
    path = f"/topics/orders/partitions/0/segments/{own_site.segments()[0].segment_id.id}/data"
    with mock.patch(
        "tiered_storage_airflow.read_service.tiers.Tiers.segment_bytes",
        failing_after(0, RemoteStorageError("the store is down")),
    ):
        answer = own_site.get(path)
    assert (answer.status_code, answer.json()["detail"]) == (503, "the store is down")
    assert "content-length" in answer.headers
    assert int(answer.headers["content-length"]) == len(answer.content)
    assert streams(own_site) == 0


def test_a_store_that_fails_later_breaks_the_answer_off(own_site: ReadServiceSite) -> None:
    path = f"/topics/orders/partitions/0/segments/{own_site.segments()[0].segment_id.id}/data"
    client = Client(own_site, path, takes=9, leaves=False)
    with mock.patch(
        "tiered_storage_airflow.read_service.tiers.Tiers.segment_bytes",
        failing_after(1, RemoteStorageError("the store is down")),
    ):
        client.run()
    assert "the store is down" in str(client.broken_off)
    assert not any(message.get("more_body") is False for message in client.sent)
    assert streams(own_site) == 0


@pytest.mark.parametrize(
    ("rights", "why"),
    [
        ("users: {reader: {describe: [orders]}}", "Forbidden"),
        ("users: {reader: {read: [payments]}}", "NotFound"),
        ("users: {reader: {read: orders}}", "NotFound"),
    ],
)
@pytest.mark.parametrize("path", [RECORDS, "/topics/orders/partitions/0/segments/{}/data"])
def test_a_right_that_is_taken_away_ends_what_is_being_read(
    own_site: ReadServiceSite, path: str, rights: str, why: str
) -> None:
    async def produce(*_: object) -> Any:
        yield b"piece"
        own_site.rights.write_text(rights)
        yield b"secret"

    pieces = "record_stream.RecordStream.pieces" if path == RECORDS else "tiers.Tiers.segment_bytes"
    client = Client(own_site, path.format(own_site.segments()[0].segment_id.id), takes=9, leaves=False)
    with (
        mock.patch(f"tiered_storage_airflow.read_service.{pieces}", produce),
        mock.patch("tiered_storage_airflow.read_service.streaming.SECONDS_BETWEEN_CHECKS", 0),
    ):
        client.run()
    assert mentions(str(client.broken_off), "login", "right")
    assert [message["body"] for message in client.sent if isinstance(message.get("body"), bytes)] == [b"piece"]
    assert not any(message.get("more_body") is False for message in client.sent)
    assert figure(own_site, f'remote_log_given_up_total{{why="{why}"}}') == 1
    assert streams(own_site) == 0


SECONDS_OF_LOGIN = 4
"""Of the one that expires: long enough for a slow machine to begin an answer."""


def expire(_: str, __: pytest.MonkeyPatch) -> None:
    time.sleep(SECONDS_OF_LOGIN + 0.1)


def log_out(token: str, _: pytest.MonkeyPatch) -> None:
    from airflow.api_fastapi.app import get_auth_manager

    get_auth_manager().revoke_token(token)


def be_removed(_: str, patch: pytest.MonkeyPatch) -> None:
    """As FAB's auth manager finds no user any more."""
    from airflow.api_fastapi.app import get_auth_manager

    patch.setattr(get_auth_manager(), "deserialize_user", mock.Mock(side_effect=KeyError("no such user")))


def become(**attributes: Any) -> Callable[[str, pytest.MonkeyPatch], None]:
    def change(_: str, patch: pytest.MonkeyPatch) -> None:
        from airflow.api_fastapi.app import get_auth_manager

        user = SimpleNamespace(get_name=lambda: "anybody", **attributes)
        patch.setattr(get_auth_manager(), "deserialize_user", lambda _: user)

    return change


@pytest.mark.parametrize(
    ("credential", "meanwhile", "why"),
    [
        ("authorization", expire, "Token Expired"),
        ("authorization", log_out, "Invalid JWT token"),
        ("cookie", log_out, "Invalid JWT token"),
        ("authorization", be_removed, "Invalid JWT token"),
        ("authorization", become(role="OP", is_active=False), "deactivated"),
        ("authorization", become(role="VIEWER"), "no topic 'orders' that you may see"),
    ],
    ids=["expires", "logs out", "logs out with a cookie", "is removed", "is deactivated", "loses the role"],
)
def test_a_login_that_ends_also_ends_what_is_being_read(
    own_site: ReadServiceSite,
    monkeypatch: pytest.MonkeyPatch,
    credential: str,
    meanwhile: Callable[[str, pytest.MonkeyPatch], None],
    why: str,
) -> None:
    proof = token("anybody", "OP", seconds=SECONDS_OF_LOGIN if meanwhile is expire else 3600)

    async def produce(*_: object) -> Any:
        yield b"piece"
        await asyncio.to_thread(meanwhile, proof, monkeypatch)
        yield b"secret"

    client = Client(own_site, RECORDS, takes=9, leaves=False)
    value = f"Bearer {proof}" if credential == "authorization" else f"_token={proof}"
    client.scope["headers"] = [(credential.encode(), value.encode())]
    monkeypatch.setattr("tiered_storage_airflow.read_service.record_stream.RecordStream.pieces", produce)
    monkeypatch.setattr("tiered_storage_airflow.read_service.streaming.SECONDS_BETWEEN_CHECKS", 0)
    client.run()
    monkeypatch.undo()
    assert why in str(client.broken_off)
    assert [message["body"] for message in client.sent if isinstance(message.get("body"), bytes)] == [b"piece"]
    assert not any(message.get("more_body") is False for message in client.sent)
    assert streams(own_site) == 0


def test_a_disk_that_hangs_in_the_midst_of_an_answer_breaks_it_off(own_site: ReadServiceSite) -> None:
    async def produce(*_: object) -> Any:
        yield b"piece"
        await asyncio.Event().wait()

    async def hurry() -> None:
        (await own_site.service.opened()).seconds_to_answer = 0.1

    own_site.client.portal.call(hurry)  # type: ignore[union-attr]
    client = Client(own_site, RECORDS, takes=9, leaves=False)
    with mock.patch("tiered_storage_airflow.read_service.record_stream.RecordStream.pieces", produce):
        client.run()
    assert "TimeoutError" in str(client.broken_off)
    assert not any(message.get("more_body") is False for message in client.sent)
    assert streams(own_site) == 0


def test_a_request_that_is_cancelled_frees_its_place(own_site: ReadServiceSite) -> None:
    """Cancel as an outer task group does: each wait again."""
    import anyio

    client = Client(own_site, RECORDS, takes=9, leaves=False)

    async def ask() -> None:
        async with anyio.create_task_group() as group:

            async def send(message: Message) -> None:
                if message.get("body"):
                    group.cancel_scope.cancel()
                    await asyncio.Event().wait()

            async def receive() -> Message:
                await asyncio.Event().wait()
                raise AssertionError

            async def answer() -> None:
                await own_site.client.app(client.scope, receive, send)

            group.start_soon(answer)

    own_site.client.portal.call(ask)  # type: ignore[union-attr]
    assert streams(own_site) == 0


def wrapped_in(layers: list[str]) -> Callable[[FastAPI], None]:
    """Return what puts Airflow's layers around an application, the first one innermost."""
    from airflow.api_fastapi.auth.middlewares.refresh_token import JWTRefreshMiddleware
    from starlette.middleware.gzip import GZipMiddleware

    def wrap(app: FastAPI) -> None:
        for layer in layers:
            app.add_middleware(JWTRefreshMiddleware if layer == "jwt" else GZipMiddleware)

    return wrap


@pytest.mark.parametrize("layers", [[], ["jwt"], ["gzip"], ["jwt", "gzip"], ["gzip", "jwt"]])
def test_an_answer_that_breaks_off_is_no_whole_one_behind_airflows_layers(
    own_site: ReadServiceSite, layers: list[str]
) -> None:
    failing = mock.patch(
        "tiered_storage_airflow.read_service.record_stream.RecordStream.pieces",
        failing_after(2, RemoteStorageError("the store is down")),
    )
    with failing, served(own_site, wrapped_in(layers)) as address, httpx.Client(trust_env=False) as client:
        url = f"{address}/remote-log/v1{RECORDS}"
        with pytest.raises(httpx.RemoteProtocolError):
            client.get(url, headers=login("reader"))


def test_a_client_that_stalled_gets_no_complete_response_within_airflows_middleware(
    narrow_site: ReadServiceSite,
) -> None:
    async def produce(*_: object) -> Any:
        yield bytes(64 << 20)

    head = [f"GET /remote-log/v1{RECORDS} HTTP/1.1", "Host: x", f"Authorization: {login('reader')['Authorization']}"]
    patched = mock.patch("tiered_storage_airflow.read_service.record_stream.RecordStream.pieces", produce)
    with patched, served(narrow_site, wrapped_in(["jwt", "gzip"])) as address:
        host, port = address.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=20) as connection:
            connection.sendall("\r\n".join([*head, "", ""]).encode())
            found = connection.recv(1 << 16)
            assert found.startswith(b"HTTP/1.1 200")
            time.sleep(2)
            while piece := connection.recv(1 << 20):
                found = found[-5:] + piece
    assert not found.endswith(b"0\r\n\r\n")


def test_a_client_that_takes_its_time_is_not_given_up(narrow_site: ReadServiceSite) -> None:
    """It takes 64 KiB each 0.4 s: a piece of 320 KiB takes longer than a client may stand still."""
    size = 5 * 64 << 10
    client = Client(narrow_site, RECORDS, takes=99, leaves=False)

    async def slow(message: Message) -> None:
        await asyncio.sleep(0.4 if message.get("body") else 0)
        client.sent.append(message)

    async def receive() -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    async def produce(*_: object) -> Any:
        yield bytes(size)

    with mock.patch("tiered_storage_airflow.read_service.record_stream.RecordStream.pieces", produce):
        narrow_site.client.portal.call(narrow_site.client.app, client.scope, receive, slow)  # type: ignore[union-attr]
    assert sum(len(message.get("body", b"")) for message in client.sent) == size
    assert client.sent[-1]["more_body"] is False


def test_others_have_their_turn_after_a_few_parts_that_are_sent(own_site: ReadServiceSite) -> None:
    """Where the connection takes all at once: a piece of some MiB would hold up everybody else meanwhile."""
    from tiered_storage_airflow.read_service.streaming import SEND_BYTES

    client = Client(own_site, RECORDS, takes=99, leaves=False)
    turns_at_each_part: list[int] = []
    turns = 0

    async def send(message: Message) -> None:
        if message.get("body"):
            turns_at_each_part.append(turns)

    async def receive() -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    async def produce(*_: object) -> Any:
        yield bytes(20 * SEND_BYTES)

    async def ask() -> None:
        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        counting = asyncio.ensure_future(count())
        await own_site.client.app(client.scope, receive, send)
        counting.cancel()

    with mock.patch("tiered_storage_airflow.read_service.record_stream.RecordStream.pieces", produce):
        own_site.client.portal.call(ask)  # type: ignore[union-attr]
    assert len(turns_at_each_part) == 20
    assert max(turns_at_each_part.count(turn) for turn in turns_at_each_part) <= 4


def test_requests_for_metadata_wait_for_few_requests_for_bytes(own_site: ReadServiceSite) -> None:
    """All at once: checking a login blocks the event loop for every other client."""
    from airflow.api_fastapi.core_api.security import get_user

    judged: list[str] = []

    async def noted(request: Any, *arguments: Any) -> Any:
        judged.append(request.url.path)
        return await get_user(request, *arguments)

    async def ask() -> None:
        streams = [Client(own_site, RECORDS, takes=99, leaves=False) for _ in range(20)]
        metadata = Client(own_site, "/metrics", takes=99, leaves=False)
        await asyncio.gather(*(client.ask() for client in [*streams, metadata]))

    with mock.patch("tiered_storage_airflow.read_service.login.get_user", noted):
        own_site.client.portal.call(ask)  # type: ignore[union-attr]
    assert len(judged) == 21
    assert judged.index("/metrics") < 8
