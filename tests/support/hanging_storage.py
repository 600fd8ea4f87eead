"""A user's own RemoteStorageManager, for tests: one segment's copy hangs for as long as a file is there."""

from __future__ import annotations

import os
import time
from pathlib import Path

from tiered_storage.remote_log.model import RemoteLogSegmentMetadata
from tiered_storage.remote_log.storage.remote_storage_manager import LogSegmentData
from tiered_storage.remote_log.storage.segment_objects import ObjectRemoteStorageManager

VICTIM = "TEST_HANGING_STORAGE_VICTIM"
"""The variable with the partition and first offset of the segment, as orders-0@10; the other names the file."""
WHILE_THERE = "TEST_HANGING_STORAGE_WHILE_THERE"


class HangingStorage(ObjectRemoteStorageManager):
    """Stores as its base class does, but for one segment, of which it takes a chunk and then waits."""

    def copy_log_segment_data(self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData) -> bytes:
        """Copy, or hang."""
        marker = Path(os.environ[WHILE_THERE])
        if f"{metadata.topic_id_partition}@{metadata.start_offset}" == os.environ[VICTIM] and marker.exists():
            next(data.chunks)
            while marker.exists():
                time.sleep(0.05)
        return super().copy_log_segment_data(metadata, data)
