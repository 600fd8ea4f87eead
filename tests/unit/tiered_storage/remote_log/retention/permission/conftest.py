"""A remote log that waits a grace time before it deletes."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.remote_logs import ENABLED, RemoteLogFiles, a_copied_remote_log
from unit.tiered_storage.remote_log.retention.permission.clock_runs import DAY, GRACE


@pytest.fixture
def files(tmp_path: Path) -> RemoteLogFiles:
    """Three segments of a topic that keeps a week were copied by a right clock; a grace time of an hour."""
    kept = {**ENABLED, "retention.ms": 7 * DAY, "local.retention.ms": 7 * DAY}
    return a_copied_remote_log(tmp_path, topics={"orders": kept}, remote_log_deletion_grace_ms=GRACE)
