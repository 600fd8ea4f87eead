"""A remote log with one topic encrypted and another plain."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from scenarios.encryption.encrypted_logs import DAYS, PARTITIONS, TOPICS
from support.clocks import ManualClock
from support.key_rings import ring_of_three
from support.remote_logs import RemoteLogFiles, a_remote_log, copy, unsynced


@pytest.fixture
def files(tmp_path: Path) -> RemoteLogFiles:
    """Orders are compressed and encrypted by the key `first`, clicks are not; all are copied."""
    files = a_remote_log(
        tmp_path,
        PARTITIONS,
        topics=TOPICS,
        rsm_config_encryption_key_ring_file=str(ring_of_three(tmp_path / "keys")),
        rsm_config_encryption_key_pair_id="first",
    )
    files.clock = ManualClock(time.time_ns() // 1_000_000 + DAYS)
    with unsynced(), files.open() as remote_log:
        assert copy(remote_log).is_whole
    return files
