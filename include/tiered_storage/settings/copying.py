"""Settings of copy runs: sizes, limits of a run, leases."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import ValidationInfo, field_validator

from tiered_storage.settings.properties.model import Contradiction, PropertyModel, Source, contradiction, setting
from tiered_storage.settings.properties.types import UNLIMITED, Whole

COPYING = "Copying"
_MIB = 1 << 20


def ensure_no_wait_is_stuck(kind: str, sample_seconds: int, known: Mapping[str, int]) -> None:
    """Raise a contradiction if a job that waits for its quota would be ended as stuck.

    `kind` is `copy` or `fetch`; `known` has the settings before this one.
    """
    prefix = f"remote_log_manager_{kind}"
    seconds = known.get(f"{prefix}_quota_window_num", 0) * sample_seconds
    stuck_after_ms = known.get("copy_stuck_after_ms")
    if known.get(f"{prefix}_max_bytes_per_second", UNLIMITED) == UNLIMITED or stuck_after_ms is None:
        return
    if seconds * 1000 >= stuck_after_ms:
        why = (
            f"copy.stuck.after.ms is {stuck_after_ms}, not more than the {seconds} s of the {kind} quota's window "
            f"(remote.log.manager.{kind}.quota.window.num and .size.seconds): a job that waits for its quota would "
            "be ended as stuck; shorten the window, or raise copy.stuck.after.ms"
        )
        raise contradiction(Contradiction(why))


class CopyingSettings(PropertyModel):
    """How much a copy run takes, and how."""

    remote_log_index_chunk_bytes: Whole = setting(
        "remote.log.index.chunk.bytes", _MIB, COPYING, Source.OURS, unit="bytes", at_least=_MIB, at_most=4 * _MIB
    )
    """How much of a segment one remoteLogIndex entry covers, and a remote read fetches."""

    index_interval_bytes: Whole = setting("index.interval.bytes", 4096, COPYING, Source.KAFKA, unit="bytes", at_least=1)
    """The bytes between two entries of a rebuilt offset or time index."""

    copy_window_bytes: Whole = setting(
        "copy.window.bytes", 8 * _MIB, COPYING, Source.OURS, unit="bytes", at_least=64 << 10, at_most=256 * _MIB
    )
    """How much of a segment a copier holds in memory."""

    copy_max_segments_per_run: Whole = setting(
        "copy.max.segments.per.run", 10_000, COPYING, Source.OURS, unit="segments", at_least=1
    )
    """How many segments one run copies."""

    remote_log_manager_copy_max_bytes_per_second: Whole = setting(
        "remote.log.manager.copy.max.bytes.per.second",
        UNLIMITED,
        COPYING,
        Source.KAFKA,
        unit="bytes",
        at_least=64 << 10,
        special={UNLIMITED: "unlimited"},
    )
    """How much one run copies per second, with all its workers (Kafka's default: 9223372036854775807)."""

    remote_log_manager_copy_quota_window_num: Whole = setting(
        "remote.log.manager.copy.quota.window.num",
        11,
        COPYING,
        Source.KAFKA,
        unit="samples",
        at_least=1,
        at_most=3600,
    )
    """The samples over which the limit is averaged."""

    remote_log_manager_copy_quota_window_size_seconds: Whole = setting(
        "remote.log.manager.copy.quota.window.size.seconds",
        1,
        COPYING,
        Source.KAFKA,
        unit="seconds",
        at_least=1,
        at_most=3600,
    )
    """How long such a sample is."""

    copy_stuck_after_ms: Whole = setting(
        "copy.stuck.after.ms", 600_000, COPYING, Source.OURS, unit="ms", at_least=10_000, at_most=86_400_000
    )
    """How long a copy may make no progress, also while it waits for Spark."""

    @field_validator("copy_stuck_after_ms")
    @classmethod
    def _longer_than_the_window(cls, stuck_after_ms: int, info: ValidationInfo) -> int:
        size = info.data.get("remote_log_manager_copy_quota_window_size_seconds", 0)
        ensure_no_wait_is_stuck("copy", size, {**info.data, "copy_stuck_after_ms": stuck_after_ms})
        return stuck_after_ms

    commit_batch_partitions: Whole = setting(
        "commit.batch.partitions", 50, COPYING, Source.OURS, unit="partitions", at_least=1
    )
    """How many partitions one commit_metadata task commits; more if Airflow allows too few tasks."""

    lease_duration_ms: Whole = setting("lease.duration.ms", 600_000, COPYING, Source.OURS, unit="ms", at_least=1_000)
    """How long a lease on a partition lasts unless its run renews it."""
