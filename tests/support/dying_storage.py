"""A user's own RemoteStorageManager, for tests: its process is killed in the middle of one copy, the first time."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tiered_storage.remote_log.copy.job import COPIES_AT_ONCE
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata
from tiered_storage.remote_log.storage.remote_storage_manager import LogSegmentData
from tiered_storage.remote_log.storage.segment_objects import ObjectRemoteStorageManager
from tiered_storage_airflow.embedded.processes import wait_until

VICTIM = "TEST_DYING_STORAGE_VICTIM"
"""The variable with the partition whose first copy is never finished; so is the one naming a file that tells."""
ALREADY_DEAD = "TEST_DYING_STORAGE_ALREADY_DEAD"


def _results_below(folder: Path) -> int:
    # The last line of each is its signature.
    return sum(len(path.read_bytes().splitlines()) - 1 for path in folder.rglob("result-*.jsonl"))


class DyingStorage(ObjectRemoteStorageManager):
    """Stores as its base class does, once it has died."""

    def copy_log_segment_data(self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData) -> bytes:
        """Copy, or read one chunk of the segment and be killed.

        Another copy is under way at the same time: it may end, and its result may be written, before that.
        """
        told = Path(os.environ[ALREADY_DEAD])
        if str(metadata.topic_id_partition) == os.environ[VICTIM] and not told.exists():
            next(data.chunks)
            wait_until(lambda: _results_below(told.parent) >= COPIES_AT_ONCE, seconds=30)
            told.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().copy_log_segment_data(metadata, data)
