from __future__ import annotations

import os
from typing import Any
from unittest import mock

import pytest
from structlog.testing import capture_logs

from support.read_service_site import ReadServiceSite, login

DESCRIBING = (
    "/topics/orders/partitions",
    "/topics/orders/partitions/0",
    "/topics/orders/partitions/0/segments",
)
READING = ("/topics/orders/partitions/0/records", "/topics/orders/partitions/0/segments/{}/data")
EVERYWHERE = ("/topics", *DESCRIBING, *READING)


def filled(site: ReadServiceSite, path: str) -> str:
    return path.format(site.segments()[0].segment_id.id)


def outcome(site: ReadServiceSite, path: str, headers: dict[str, str]) -> int:
    return int(site.client.get(filled(site, path), headers=headers).status_code)


@pytest.mark.parametrize("path", EVERYWHERE)
def test_nothing_is_answered_without_a_login(site: ReadServiceSite, path: str) -> None:
    assert outcome(site, path, {}) == 401
    assert outcome(site, path, {"Authorization": "Bearer garbled.to.ken"}) == 401
    assert outcome(site, path, {"Authorization": "Basic YTpi"}) == 401
    assert outcome(site, path, {"Cookie": "_token=garbled"}) == 401
    assert outcome(site, path, login("reader", seconds=-60)) == 401
    changed = login("reader")["Authorization"].rsplit(".", 1)[0] + "." + "A" * 86
    assert outcome(site, path, {"Authorization": changed}) == 401


def test_a_cookie_is_a_login_too(site: ReadServiceSite) -> None:
    from support.read_service_site import token

    assert outcome(site, READING[0], {"Cookie": f"_token={token('reader')}"}) == 200


@pytest.mark.parametrize("path", DESCRIBING)
def test_users_who_may_describe_or_read_see_metadata(site: ReadServiceSite, path: str) -> None:
    for name, role in (("reader", "VIEWER"), ("watcher", "VIEWER"), ("anybody", "OP")):
        assert outcome(site, path, login(name, role)) == 200
    assert outcome(site, path, login("unauthorized", "ADMIN")) == 404


@pytest.mark.parametrize("path", READING)
def test_only_who_may_read_gets_records(site: ReadServiceSite, path: str) -> None:
    assert outcome(site, path, login("reader")) == 200
    assert outcome(site, path, login("anybody", "OP")) == 200
    assert outcome(site, path, login("watcher")) == 403
    assert outcome(site, path, login("unauthorized", "ADMIN")) == 404


def test_a_topic_without_a_right_is_as_one_that_does_not_exist(site: ReadServiceSite) -> None:
    for path in (*DESCRIBING, *READING):
        hidden = site.get(filled(site, path).replace("orders", "payments"))
        absent = site.get(filled(site, path).replace("orders", "absents!"))
        assert hidden.status_code == absent.status_code == 404
        assert hidden.text.replace("payments", "absents!") == absent.text
    assert [each["topic"] for each in site.get("/topics").json()["topics"]] == ["orders"]
    assert "payments" not in site.get("/topics/orders/partitions/77").text
    everything = site.get("/topics", "anybody", "OP").json()["topics"]
    assert [(each["topic"], each["may_read"]) for each in everything] == [("orders", True), ("payments", True)]
    assert [each["may_read"] for each in site.get("/topics", "watcher").json()["topics"]] == [False]


def test_rights_hold_as_soon_as_their_file_has_changed(own_site: ReadServiceSite) -> None:
    assert own_site.get(READING[0]).status_code == 200
    own_site.rights.write_text("users:\n  reader:\n    describe: [orders]\n")
    assert own_site.get(READING[0]).status_code == 403
    own_site.rights.write_text("users:\n  reader: {read: [orders], write: [orders]}\n")
    assert own_site.get(READING[0]).status_code == 404
    own_site.rights.unlink()
    assert own_site.get(READING[0]).status_code == 404
    own_site.rights.write_text("users:\n  reader:\n    read: ['ord*']\n")
    assert own_site.get(READING[0]).status_code == 200


def test_a_passing_failure_to_read_the_rights_passes(own_site: ReadServiceSite) -> None:
    assert own_site.get(READING[0]).status_code == 200
    os.utime(own_site.rights, ns=(1, 1))
    opened = os.open

    def failing(path: Any, *arguments: Any, **options: Any) -> Any:
        if path == own_site.rights:
            raise OSError(24, "Too many open files")
        return opened(path, *arguments, **options)

    with mock.patch.object(os, "open", failing):
        assert own_site.get(READING[0]).status_code == 404
    assert own_site.get(READING[0]).status_code == 200


def test_the_file_is_looked_at_once_in_its_time_for_all_requests(
    own_site: ReadServiceSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tiered_storage_airflow.read_service.service import OpenService, SingleFlight

    async def opened() -> OpenService:
        return await own_site.service.opened()

    service: OpenService = own_site.client.portal.call(opened)  # type: ignore[union-attr]
    service.seen.rights = SingleFlight(3600)
    looks = mock.Mock(wraps=service.rights.current)
    monkeypatch.setattr(service.rights, "current", looks)
    for _ in range(30):
        assert own_site.get(DESCRIBING[1]).status_code == 200
    assert looks.call_count == 1
    own_site.rights.write_text("users: {reader: {read: [payments]}}")
    assert own_site.get(DESCRIBING[1]).status_code == 200
    service.seen.rights = SingleFlight(0)
    assert own_site.get(DESCRIBING[1]).status_code == 404


def test_a_file_of_the_same_size_and_time_is_another_one(own_site: ReadServiceSite) -> None:
    assert own_site.get(READING[0]).status_code == 200
    before = own_site.rights.stat()
    own_site.rights.write_text(own_site.rights.read_text().replace("reader", "redaer"))
    os.utime(own_site.rights, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert own_site.get(READING[0]).status_code == 404


@pytest.mark.parametrize(
    "topic",
    ["..", "%2e%2e%2forders", "orders%00", "*", ".*", "%F0%9F%92%A9", "a" * 5000, "orders%0a", "-0"],
)
def test_hostile_topic_names_are_not_found(site: ReadServiceSite, topic: str) -> None:
    for path in ("/topics/{}/partitions", "/topics/{}/partitions/0", "/topics/{}/partitions/0/records"):
        answer = site.get(path.format(topic), "anybody", "OP")
        assert answer.status_code in {404, 422}
        assert answer.headers["content-type"] == "application/problem+json"
        assert len(answer.text) < 1000


@pytest.mark.parametrize("partition", ["-1", "2147483648", "9" * 400, "0x0", "", "1.0"])
def test_invalid_partition_numbers_are_not_found(site: ReadServiceSite, partition: str) -> None:
    answer = site.get(f"/topics/orders/partitions/{partition}/records")
    assert answer.status_code in {404, 422}


def test_each_request_is_logged_in_one_line_with_its_user_and_offsets(site: ReadServiceSite) -> None:
    site.get("/topics")
    with capture_logs() as lines:
        answer = site.get(READING[0], params={"offset": 7, "max_records": 3})
        site.get(READING[0], "watcher")
        site.client.get(READING[0])
        data = site.get(filled(site, READING[1]), headers={"Range": "bytes=0-9"})
    assert data.status_code == 206
    read, refused, unknown, ranged = [line for line in lines if line["event"] == "remote log access"]
    assert {name: read[name] for name in ("user", "topic", "partition", "first_offset", "last_offset", "records")} == {
        "user": "reader", "topic": "orders", "partition": 0, "first_offset": 7, "last_offset": 9, "records": 3,
    }  # fmt: skip
    assert (read["bytes"], read["status"], read["is_whole"]) == (len(answer.content), 200, True)
    assert (refused["user"], refused["status"]) == ("watcher", 403)
    assert (unknown["status"], "user" in unknown) == (401, False)
    assert (ranged["bytes"], ranged["segment"]) == (10, site.segments()[0].segment_id.id)
