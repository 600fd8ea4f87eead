"""The pages over a small remote log."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from httpx import Response

from support.read_service_site import ReadServiceSite, login, prepare_logins

Look = Callable[..., Response]


@pytest.fixture(scope="session")
def logins() -> None:
    """Let Airflow's auth manager make and judge tokens."""
    prepare_logins()


@pytest.fixture
def own_site(logins: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ReadServiceSite]:
    """The read service over a small remote log, with rights that are looked at for each request."""
    monkeypatch.setattr("tiered_storage_airflow.read_service.service.SECONDS_OF_RIGHTS", 0)
    with ReadServiceSite.open(tmp_path) as site:
        yield site


@pytest.fixture
def look(own_site: ReadServiceSite) -> Iterator[Look]:
    """Ask for a page of it, as a user."""
    from tiered_storage_airflow.page.app import page_app

    with TestClient(page_app(own_site.service), raise_server_exceptions=False) as client:

        def ask(path: str, name: str = "reader", **options: str) -> Response:
            answer: Response = client.get(path, headers=login(name) if name else {}, **options)
            return answer

        yield ask
