"""A site with remote segments, for operators to work on."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.tiered_site import TIERED, TieredSite


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TieredSite:
    """A site of which the hours 0 to 3 of orders-0 are remote, and 0 and 1 of orders-1, a segment an hour."""
    site = TieredSite(tmp_path)
    monkeypatch.setenv("TIERED_STORAGE_CONFIG", str(site.config))
    site.write_logs({"orders-0": 4, "orders-1": 2})
    site.configure({"orders": TIERED})
    site.copy()
    return site
