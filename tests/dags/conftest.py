"""DAGs run in process, on small remote logs; the groups of a Spark job are done by this process unless a test says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.airflow_home import AirflowHome
from support.tiered_site import TieredSite


@pytest.fixture(scope="session")
def airflow() -> AirflowHome:
    return AirflowHome()


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TieredSite]:
    """A remote log that hooks and operators find by TIERED_STORAGE_CONFIG."""
    site = TieredSite(tmp_path)
    monkeypatch.setenv("TIERED_STORAGE_CONFIG", str(site.config))
    yield site
