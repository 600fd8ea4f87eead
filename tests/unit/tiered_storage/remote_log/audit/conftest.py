"""A remote log whose objects are old enough to be looked at."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.remote_logs import RemoteLogFiles, a_copied_remote_log
from unit.tiered_storage.remote_log.audit.audited_logs import later


@pytest.fixture
def files(tmp_path: Path) -> RemoteLogFiles:
    """Three copied segments; by the clock their objects are long past the grace time."""
    files = a_copied_remote_log(tmp_path)
    files.clock = later()
    return files
