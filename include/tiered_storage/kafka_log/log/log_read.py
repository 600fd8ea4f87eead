"""What a reader gets of a log: up to where, and with which aborted transactions.

Source: KIP-98 (isolation levels); released Kafka.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from tiered_storage.kafka_log.indexes.transaction_index import AbortedTransaction


class Isolation(Enum):
    """Up to where a log is read."""

    LOG_END = "log_end"
    """All that there is, as a follower reads it."""
    READ_UNCOMMITTED = "read_uncommitted"
    """Up to the high watermark."""
    READ_COMMITTED = "read_committed"
    """Up to the last stable offset, and told which transactions were aborted."""


@dataclass(frozen=True, slots=True)
class FetchedBatches:
    """Whole batches of a log, as they stand in it, and the log's offsets at that moment.

    `aborted` are the transactions of which `batches` hold records that a read_committed consumer skips: those between
    the first offset and the abort marker, of that producer. Offsets are exclusive ends, but for `log_start_offset`.
    """

    batches: bytes
    aborted: tuple[AbortedTransaction, ...]
    log_start_offset: int
    last_stable_offset: int
    high_watermark: int
