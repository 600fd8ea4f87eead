"""A site with remote segments, for operators to work on."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from support.remote_logs import be_the_original
from support.tiered_site import TIERED, TieredSite


@pytest.fixture(scope="session")
def copied_once(tmp_path_factory: pytest.TempPathFactory) -> TieredSite:
    """The site that each test gets a copy of."""
    site = TieredSite(tmp_path_factory.mktemp("site"))
    site.write_logs({"orders-0": 4, "orders-1": 2})
    site.configure({"orders": TIERED})
    site.copy()
    return site


@pytest.fixture
def site(copied_once: TieredSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TieredSite:
    """A site of which the hours 0 to 3 of orders-0 are remote, and 0 and 1 of orders-1, a segment an hour."""
    site = TieredSite(tmp_path)
    monkeypatch.setenv("TIERED_STORAGE_CONFIG", str(site.config))
    shutil.copytree(copied_once.root, site.root, dirs_exist_ok=True)
    be_the_original(site.state / "remote_log_metadata.db")
    site.configure({"orders": TIERED})
    return site
