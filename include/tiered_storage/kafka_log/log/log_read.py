"""Isolation levels of a read, and its result.

Source: KIP-98 (isolation levels); released Kafka.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from tiered_storage.kafka_log.indexes.transaction_index import AbortedTxn


class Isolation(Enum):
    """How far a log is read."""

    LOG_END = "log_end"
    """To the log's end, as a follower reads it."""
    READ_UNCOMMITTED = "read_uncommitted"
    """Up to the high watermark."""
    READ_COMMITTED = "read_committed"
    """Up to the last stable offset, with the aborted transactions."""


@dataclass(frozen=True, slots=True)
class LogReadInfo:
    """Whole batches of a log, unchanged, and the log's offsets at that moment.

    `aborted` are the aborted transactions with records in `batches`: a read_committed consumer skips the records of
    that producer between the first offset and the abort marker. Offsets are exclusive ends, except `log_start_offset`.
    """

    batches: bytes
    aborted: tuple[AbortedTxn, ...]
    log_start_offset: int
    last_stable_offset: int
    high_watermark: int
