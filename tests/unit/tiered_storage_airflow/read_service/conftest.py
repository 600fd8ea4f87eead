"""The read service over a small remote log."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.read_service_site import ReadServiceSite, prepare_logins


@pytest.fixture(scope="session")
def logins() -> None:
    """Let Airflow's auth manager make and judge tokens."""
    prepare_logins()


@pytest.fixture(scope="session")
def site(logins: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReadServiceSite]:
    """The read service over a small remote log that no test changes."""
    with ReadServiceSite.open(tmp_path_factory.mktemp("site")) as site:
        yield site


@pytest.fixture
def own_site(logins: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ReadServiceSite]:
    """The same for one test alone, with rights that are looked at for each request."""
    monkeypatch.setattr("tiered_storage_airflow.read_service.service.SECONDS_OF_RIGHTS", 0)
    with ReadServiceSite.open(tmp_path) as site:
        yield site


@pytest.fixture
def ageless_site(logins: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ReadServiceSite]:
    """The same, and what was seen a moment ago is looked at again."""
    monkeypatch.setattr("tiered_storage.remote_log.read.partition_snapshot.AGE_PER_SNAPSHOT", 0)
    with ReadServiceSite.open(tmp_path, remote_log_reader_metadata_max_age_ms=0) as site:
        yield site
