"""The site of scenarios that need no other."""

from __future__ import annotations

from pathlib import Path

import pytest

from scenarios.bound_sites import a_bound_site
from support.remote_logs import RemoteLogFiles


@pytest.fixture
def site(tmp_path: Path) -> RemoteLogFiles:
    """A remote log with its metadata in SQLite, bound to its store."""
    return a_bound_site(tmp_path / "live")
