"""An empty database of PostgreSQL, and a site whose metadata moved there."""

from __future__ import annotations

from pathlib import Path

import pytest

from scenarios.postgres.postgres_sites import with_metadata_at
from servers.postgres import PASSWORD, postgres_url, the_server
from support.command_line import run_on
from support.remote_logs import RemoteLogFiles


@pytest.fixture(autouse=True)
def _password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPASSWORD", PASSWORD)


@pytest.fixture
def url(tmp_path: Path) -> str:
    """The URL of an empty database, as a settings file may have it: without a password."""
    return the_server().url(postgres_url(tmp_path).rpartition("/")[2], password=None)


@pytest.fixture
def own_database(url: str) -> str:
    """The name of its database."""
    return url.rpartition("/")[2]


@pytest.fixture
def moved(site: RemoteLogFiles, url: str) -> RemoteLogFiles:
    """The site with its metadata in PostgreSQL."""
    assert run_on(site, "metadata", "move", url).exit_code == 0
    return with_metadata_at(site, url)
