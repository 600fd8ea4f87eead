from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

import pytest

from support.read_service_site import ReadServiceSite, login
from tiered_storage import errors
from tiered_storage.remote_log.metadata.generation import GenerationGuard
from tiered_storage.remote_log.storage.documents.store_generation import StoredGeneration
from tiered_storage.remote_log.storage.segment_objects import ObjectRemoteStorageManager

T = TypeVar("T")

PATHS = ("/health", "/metrics", "/openapi.json", "/docs")
RECORDS = "/topics/orders/partitions/0/records"


@pytest.mark.parametrize("path", PATHS)
def test_also_the_service_and_its_documentation_ask_for_a_login(site: ReadServiceSite, path: str) -> None:
    assert site.client.get(path).status_code == 401
    assert site.client.get(path, headers={"Authorization": "Bearer x"}).status_code == 401
    assert site.get(path, "unauthorized").status_code == 200


def test_no_answer_is_kept_by_others_or_taken_for_something_else(site: ReadServiceSite) -> None:
    data = f"/topics/orders/partitions/0/segments/{site.segments()[0].segment_id.id}/data"
    for path in ("/topics", *PATHS, RECORDS, data, "/nothing", "/topics/absent/partitions"):
        answers = [site.get(path), site.client.get(path)]
        answers += [site.get(path, headers={"Range": "bytes=0-3"})]
        if path == data:
            etag = answers[0].headers["etag"]
            answers.append(site.get(path, headers={"If-None-Match": etag}))
            answers.append(site.client.head(path, headers=login("reader")))
            assert [answer.status_code for answer in answers] == [200, 401, 206, 304, 200]
        for answer in answers:
            assert answer.headers["x-content-type-options"] == "nosniff", path
            assert answer.headers["cache-control"] in {"no-store", "private, no-cache"}, path


def test_every_route_asks_who_it_is(site: ReadServiceSite) -> None:
    from fastapi.routing import APIRoute

    from tiered_storage_airflow.read_service.login import visitor_of
    from tiered_storage_airflow.read_service.routes.api import read_api

    routes = [route for route in read_api(site.service).routes if isinstance(route, APIRoute)]
    assert len(routes) > 12
    for route in routes:
        assert visitor_of in {dependency.call for dependency in route.dependant.dependencies}, route.path


def test_a_router_that_brings_no_guard_has_the_applications(site: ReadServiceSite) -> None:
    from fastapi import APIRouter
    from fastapi.testclient import TestClient

    from tiered_storage_airflow.read_service.routes.api import read_api

    router = APIRouter()

    @router.get("/forgotten")
    async def forgotten() -> str:
        return "shown"

    app = read_api(site.service)
    app.include_router(router)
    with TestClient(app, raise_server_exceptions=False) as client:
        assert client.get("/forgotten").status_code == 401
        assert client.get("/forgotten", headers=login("reader")).json() == "shown"


def test_unknown_paths_reveal_nothing(site: ReadServiceSite) -> None:
    answer = site.get("/nothing/here")
    assert answer.status_code == 404
    assert answer.headers["content-type"] == "application/problem+json"
    assert site.client.post(RECORDS, headers=login("reader")).status_code == 405


def test_health_names_what_is_wrong_and_no_topic(own_site: ReadServiceSite) -> None:
    found = own_site.get("/health", "unauthorized")
    assert (found.status_code, found.json()["ok"]) == (200, True)
    own_site.rights.write_text("users: {reader: {read: payments}}")
    broken = own_site.get("/health", "unauthorized")
    assert broken.status_code == 503
    assert [check["name"] for check in broken.json()["checks"] if not check["ok"]] == ["rights"]
    assert "payments" not in broken.text
    assert str(own_site.files.root) not in broken.text


def test_metrics_count_answers_and_bytes_and_name_no_topic(own_site: ReadServiceSite) -> None:
    size = len(own_site.get(RECORDS).content)
    own_site.get(RECORDS, "watcher")
    text = own_site.get("/metrics", "unauthorized").text
    route = 'route="/topics/{topic}/partitions/{partition}/records"'
    assert f'remote_log_requests_total{{{route},status="200"}} 1.0' in text
    assert f'remote_log_requests_total{{{route},status="403"}} 1.0' in text
    assert "remote_log_streams 0.0" in text
    assert "orders" not in text
    [sent] = [line for line in text.splitlines() if line.startswith(f"remote_log_sent_bytes_total{{{route}")]
    assert float(sent.rsplit(" ", 1)[1]) >= size


def test_the_documentation_loads_nothing(site: ReadServiceSite) -> None:
    page = site.get("/docs")
    assert page.headers["content-security-policy"].startswith("default-src 'none'")
    assert "<script" not in page.text
    assert "http://" not in page.text.replace("http://testserver", "")
    for path in site.get("/openapi.json").json()["paths"]:
        assert path in page.text


def test_a_service_that_is_set_up_wrongly_says_so_without_a_word_of_how(logins: None) -> None:
    from fastapi.testclient import TestClient

    from tiered_storage.remote_log.manager import RemoteLogManager
    from tiered_storage_airflow.read_service.routes.api import read_api
    from tiered_storage_airflow.read_service.service import ReadService

    attempts = []

    def open_log() -> RemoteLogManager:
        attempts.append(1)
        raise errors.ConfigurationError("topics: secret-topic: no such property")

    service = ReadService(open_log)
    try:
        with TestClient(read_api(service), raise_server_exceptions=False) as client:
            for _ in range(2):
                answer = client.get("/topics", headers=login("reader"))
                assert (answer.status_code, answer.json()["title"]) == (502, "Misconfigured")
                assert "secret" not in answer.text
    finally:
        service.close()
    assert len(attempts) == 2


def test_requests_that_wait_for_the_opening_share_one_attempt() -> None:
    import asyncio
    import time

    from tiered_storage.remote_log.manager import RemoteLogManager
    from tiered_storage_airflow.read_service.service import ReadService

    attempts = []

    def open_log() -> RemoteLogManager:
        attempts.append(1)
        time.sleep(0.05)
        raise errors.MetadataUnavailableError("out of reach")

    async def ask() -> None:
        outcomes = await asyncio.gather(*(service.opened() for _ in range(20)), return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [errors.MetadataUnavailableError] * 20

    service = ReadService(open_log)
    try:
        asyncio.run(ask())
        assert len(attempts) == 1
    finally:
        service.close()


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.OffsetOutOfRangeError("orders-0", 9, 0, 5), 416),
        (errors.RecordsDeletedError("orders-0", 1, 5, 9), 410),
        (errors.RemoteObjectNotFoundError("lost"), 502),
        (errors.RemoteObjectCorruptError("rotten"), 502),
        (errors.CorruptRecordError("a.log", 7, "no batch"), 502),
        (errors.CorruptIndexError("a.index", 7, "torn"), 502),
        (errors.RemoteStorageRefusedError("no credentials"), 502),
        (errors.LaterVersionError("a", 2, 1), 502),
        (errors.RemoteStorageError("down"), 503),
        (errors.MetadataUnavailableError("locked"), 503),
        (errors.LogDirectoryLockedError("held"), 503),
        (errors.ReadTimedOutError("too late"), 504),
        (errors.ReaderBusyError("full"), 429),
        (errors.ReadQuotaExceededError("too much"), 429),
        (errors.UnsupportedTopicError("compacted"), 409),
        (errors.ConfigurationError("anything"), 502),
    ],
)
def test_each_error_has_its_status(error: errors.TieredStorageError, status: int) -> None:
    from tiered_storage_airflow.read_service.problem import problem_of

    answer = problem_of(error).response()
    assert answer.status_code == status
    assert ("retry-after" in answer.headers) == error.retriable


def test_roles_are_taken_from_the_users_of_every_auth_manager() -> None:
    from types import SimpleNamespace

    from tiered_storage_airflow.read_service.login import _roles

    assert set(_roles(SimpleNamespace(role="op"))) == {"OP"}
    assert set(_roles(SimpleNamespace(role=None))) == set()
    of_fab = SimpleNamespace(roles=[SimpleNamespace(name="Viewer"), SimpleNamespace(name="Analyst")])
    assert set(_roles(of_fab)) == {"Viewer", "Analyst"}
    assert set(_roles(SimpleNamespace(groups=["team-a"]))) == {"team-a"}
    assert set(_roles(SimpleNamespace())) == set()


def test_a_store_that_hangs_holds_up_no_metadata(own_site: ReadServiceSite) -> None:
    import threading
    from collections.abc import Iterator
    from unittest import mock

    from tiered_storage.remote_log.storage.segment_objects import ObjectRemoteStorageManager
    from tiered_storage_airflow.read_service.routes import service

    released = threading.Event()

    def hang(*_: object) -> Iterator[object]:
        released.wait(60)
        return iter(())

    try:
        with (
            mock.patch.object(ObjectRemoteStorageManager, "list_objects", hang),
            mock.patch.object(service, "HEALTH_SECONDS", 0.1),
        ):
            for _ in range(8):
                answer = own_site.get("/health", "unauthorized")
                assert answer.status_code == 503
                assert [check["name"] for check in answer.json()["checks"] if not check["ok"]] == ["store"]
            assert own_site.get("/topics/orders/partitions/0").status_code == 200
    finally:
        released.set()


@pytest.mark.parametrize(
    ("error", "is_told"),
    [
        (errors.MetadataUnavailableError("sqlite:////srv/metadata.db is locked; payments-0"), False),
        (errors.LogDirectoryLockedError("/srv/kafka-logs is held"), True),
    ],
)
def test_users_without_rights_see_no_paths_hosts_or_topics(
    own_site: ReadServiceSite, error: errors.TieredStorageError, is_told: bool
) -> None:
    """Only operators of the service see messages about the metadata as a whole."""
    from unittest import mock

    from tiered_storage.remote_log.metadata.sql.segments import SqlRemoteLogMetadataManager

    with mock.patch.object(SqlRemoteLogMetadataManager, "list_partitions", side_effect=error):
        answers = [own_site.get(path) for path in ("/topics", "/topics/orders/partitions")]
        answers.append(own_site.get("/topics", "unauthorized"))
    titles = {(answer.status_code, answer.json()["title"]) for answer in answers}
    assert titles == {(503, type(error).__name__.removesuffix("Error"))}
    assert ["/srv/" in answer.text for answer in answers] == [False, is_told, False]


def test_unforeseen_errors_are_counted_and_reported_without_details(own_site: ReadServiceSite) -> None:
    from unittest import mock

    unforeseen = mock.patch(
        "tiered_storage_airflow.read_service.partitions._known", side_effect=ZeroDivisionError("secret")
    )
    with unforeseen:
        answer = own_site.get("/topics")
    assert (answer.status_code, answer.headers["content-type"]) == (500, "application/problem+json")
    assert "secret" not in answer.text
    assert 'remote_log_requests_total{route="/topics",status="500"} 1.0' in own_site.get("/metrics").text


def test_a_line_of_the_log_holds_nothing_that_a_terminal_obeys() -> None:
    from tiered_storage_airflow.read_service.access import plain_text

    assert plain_text("orders-0") == "orders-0"
    assert plain_text("a\x1b[2Jb\nc") == "a\\x1b[2Jb\\nc"
    assert len(plain_text("x" * 5000)) == 1000


def test_metadata_that_others_replaced_are_not_served_any_more(
    own_site: ReadServiceSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tiered_storage_airflow.read_service.service.SECONDS_BETWEEN_CHECKS", 0)
    assert own_site.get(RECORDS).status_code == 200
    with own_site.files.open() as remote_log:
        storage = remote_log.context.storage
        assert isinstance(storage, ObjectRemoteStorageManager)
        number = storage.generations.newest_number()
        storage.generations.publish(StoredGeneration(number + 1, "another's token", "an expiry", 5))

    answer = eventually(lambda: own_site.get(RECORDS), lambda found: found.status_code != 200)

    assert (answer.status_code, answer.json()["retriable"]) == (502, False)
    assert own_site.get("/health").status_code == 502


@pytest.mark.parametrize("error", [errors.RemoteStorageError("away"), errors.MetadataUnavailableError("locked")])
def test_a_look_that_fails_or_hangs_stops_no_answer(
    own_site: ReadServiceSite, monkeypatch: pytest.MonkeyPatch, error: errors.TieredStorageError
) -> None:
    monkeypatch.setattr("tiered_storage_airflow.read_service.service.SECONDS_BETWEEN_CHECKS", 0)
    assert own_site.get(RECORDS).status_code == 200
    looks: list[int] = []

    def look(_: GenerationGuard) -> None:
        looks.append(1)
        if len(looks) == 1:
            raise error
        hangs.wait(20)

    hangs = threading.Event()
    monkeypatch.setattr(GenerationGuard, "ensure_readable", look)
    try:
        eventually(lambda: own_site.get(RECORDS).status_code, lambda status: status != 200 or len(looks) == 2)
        assert own_site.get(RECORDS).status_code == 200
    finally:
        hangs.set()


def eventually(ask: Callable[[], T], is_so: Callable[[T], bool]) -> T:
    """Ask until it is so; the last answer is returned."""
    deadline = time.monotonic() + 15
    while not is_so(found := ask()):
        assert time.monotonic() < deadline, found
        time.sleep(0.02)
    return found
