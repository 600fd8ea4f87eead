"""A remote log with one topic, whose records tests read as a table."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.remote_logs import RemoteLogFiles, a_copied_remote_log


@pytest.fixture
def files(tmp_path: Path) -> RemoteLogFiles:
    return a_copied_remote_log(tmp_path)
