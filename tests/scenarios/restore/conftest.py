"""A remote log to restore from, and the target of a restore."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.remote_logs import RemoteLogFiles, a_copied_remote_log, unsynced


@pytest.fixture(autouse=True)
def _unsynced() -> object:
    with unsynced():
        yield


@pytest.fixture
def files(tmp_path: Path) -> RemoteLogFiles:
    return a_copied_remote_log(tmp_path, {("orders", 0): 3, ("orders", 1): 2})


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "restored"
