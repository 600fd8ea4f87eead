"""Which segments a follower may delete from its own disk (KIP-405, section Manage Remote Log Segments).

    remote    the remote tier holds all of the segment, or the log start over both tiers is above it, and local
              retention is over
    expired   total retention is over: then also if it was never copied, if remote deletion is allowed too, since it
              may be the last copy

What `retain` asks first is asked here too, before each deletion: the stop, the generation, the topic's rights, the
results of audits, the clock, and whether the store has the objects. So nothing of a topic that is not tiered goes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from tiered_storage.kafka_log.log.local_log import LocalLog
from tiered_storage.kafka_log.log.log_config import LogConfig
from tiered_storage.remote_log.coverage import Coverage, CoveredRange
from tiered_storage.remote_log.tiering_policy import TieringPolicy


def delete_local_segments(
    log: LocalLog,
    config: LogConfig,
    policy: TieringPolicy,
    coverage: Coverage,
    log_start_offset: int,
    ensure_may_delete: Callable[[Sequence[CoveredRange]], object],
) -> int:
    """Delete what local or total retention lets go from `log`, whose topic has `policy`; return how many segments.

    `coverage` is what the remote tier holds, `log_start_offset` the log start over both tiers, and `config` what the
    log is rolled by. `ensure_may_delete` is called once something is due, with the remote ranges that hold it; what it
    raises keeps all of it.
    """
    if not policy.trims:
        return 0
    limits = policy.settings
    local = replace(config, retention_ms=limits.local_retention_ms, retention_bytes=limits.local_retention_bytes)
    total = replace(config, retention_ms=limits.retention_ms, retention_bytes=limits.retention_bytes)
    reached = remote_end(log, coverage, log_start_offset)
    held_end, end = log.end_of_old_segments(local, reached), 0
    if policy.topic.remote_deletion_allowed:
        end = log.end_of_old_segments(total)
    first = log.segments[0].base_offset
    if max(held_end, end) > first:
        ensure_may_delete([each for run in coverage.runs(first, max(held_end, end) - 1) for each in run])
    # Not more than was asked for, although the clock goes on.
    return len(log.delete_old_segments(local, held_end)) + len(log.delete_old_segments(total, end))


def remote_end(log: LocalLog, coverage: Coverage, log_start_offset: int) -> int:
    """Return up to which offset (exclusive) the remote tier holds the local log, from its first segment on."""
    first = max(log.segments[0].base_offset, log_start_offset)
    missing = coverage.missing(first, log.log_end_offset - 1)
    return missing[0][0] if missing else max(first, log.log_end_offset)
