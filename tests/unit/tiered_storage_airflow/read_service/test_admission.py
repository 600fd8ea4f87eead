from __future__ import annotations

import asyncio

import pytest
from fastapi import Request

from support.read_service_site import ReadServiceSite
from tiered_storage_airflow.read_service import admission
from tiered_storage_airflow.read_service.admission import Admission, ShortCalls
from tiered_storage_airflow.read_service.problem import ProblemError

RECORDS = "/topics/orders/partitions/0/records"


def a_request(**headers: str) -> Request:
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    return Request({"type": "http", "headers": raw, "path": "/", "method": "GET"})


def test_an_accepted_login_does_not_wait_for_unknown_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "SECONDS_BETWEEN", 0.05)

    async def ask() -> tuple[int, bool]:
        short = ShortCalls(seconds=60)
        door = Admission(short)
        accepted = a_request(authorization="Bearer good")
        with short.one():
            door.know(accepted)
            unknown = [asyncio.ensure_future(door.wait(a_request(authorization=f"Bearer {n}"))) for n in range(30)]
            await asyncio.sleep(0)
            await asyncio.wait_for(door.wait(accepted), 10)
            came_in = sum(each.done() for each in unknown)
            without = asyncio.ensure_future(door.wait(a_request()))
            await asyncio.sleep(0)
            is_in = without.done()
        for each in unknown:
            each.cancel()
        return came_in, is_in

    came_in, is_in = asyncio.run(ask())
    assert came_in < 10
    assert is_in


def test_so_many_unknown_logins_may_wait_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "MOST_UNKNOWN", 3)

    async def ask() -> int:
        short = ShortCalls(seconds=60)
        door = Admission(short)
        with short.one():
            waiting = [asyncio.ensure_future(door.wait(a_request(cookie=f"_token={n}"))) for n in range(5)]
            await asyncio.sleep(0)
            with pytest.raises(ProblemError) as refused:
                await door.wait(a_request(cookie="_token=another"))
        for each in waiting:
            each.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        return refused.value.status

    assert asyncio.run(ask()) == 429


def test_as_many_are_remembered_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "MOST_KNOWN", 2)
    door = Admission(ShortCalls())
    for number in range(5):
        door.know(a_request(cookie=f"_token={number}"))
    assert len(door._known) == 2


def test_only_good_credentials_are_remembered(site: ReadServiceSite) -> None:
    known = site.service.admission._known
    before = len(known)
    assert site.client.get(RECORDS, headers={"Authorization": "Bearer bad"}).status_code == 401
    assert site.client.get(RECORDS).status_code == 401
    assert len(known) == before
    assert site.get(RECORDS).status_code == 200
    assert len(known) >= 1
