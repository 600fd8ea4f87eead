"""Small logs of several segments."""

from __future__ import annotations

from pathlib import Path

from support.local_logs import create
from support.transactions import ABORT, data
from tiered_storage.kafka_log.log.local_log import LocalLog
from tiered_storage.kafka_log.log.log_config import LogConfig

SMALL_SEGMENTS = LogConfig(segment_bytes=3 * len(data(0, 1, 0)), index_interval_bytes=0)


def many_segments(directory: Path) -> LocalLog:
    """Four segments of three batches, of which the second aborts a transaction that the first begins."""
    log = create(directory, config=SMALL_SEGMENTS)
    log.append_encoded_batch(data(0, 9, 0, transactional=True))
    for sequence in range(3):
        log.append_encoded_batch(data(0, 1, sequence))
    log.append_end_marker(9, 0, ABORT)
    for sequence in range(3, 9):
        log.append_encoded_batch(data(0, 1, sequence))
    log.close()
    return log
