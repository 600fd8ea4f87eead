"""Settings of reads: threads, quota, caches, and the rate of an audit."""

from __future__ import annotations

from pydantic import ValidationInfo, field_validator

from tiered_storage.settings.copying import ensure_no_wait_is_stuck
from tiered_storage.settings.properties.model import PropertyModel, Source, setting
from tiered_storage.settings.properties.types import UNLIMITED, Whole

READING = "Reading"
AUDIT = "The audit"
_MIB = 1 << 20


class ReadingSettings(PropertyModel):
    """How much one process reads at once, and how much it caches."""

    remote_log_reader_threads: Whole = setting(
        "remote.log.reader.threads", 10, READING, Source.KAFKA, unit="threads", at_least=1, at_most=1000
    )
    """How many reads of the remote tier one process runs at once."""

    remote_log_reader_max_pending_tasks: Whole = setting(
        "remote.log.reader.max.pending.tasks", 100, READING, Source.KAFKA, unit="reads", at_least=1
    )
    """How many reads of the remote tier may wait for a thread; further reads are refused."""

    remote_fetch_max_wait_ms: Whole = setting(
        "remote.fetch.max.wait.ms", 30_000, READING, Source.KAFKA, unit="ms", at_least=1
    )
    """How long a read waits for its next batches from the remote tier, including every attempt and pause (Kafka's
    default: 500)."""

    remote_list_offsets_request_timeout_ms: Whole = setting(
        "remote.list.offsets.request.timeout.ms", 30_000, READING, Source.KAFKA, unit="ms", at_least=1
    )
    """How long a search for an offset by its time may take in the remote tier, including every attempt and pause."""

    remote_log_manager_fetch_max_bytes_per_second: Whole = setting(
        "remote.log.manager.fetch.max.bytes.per.second",
        UNLIMITED,
        READING,
        Source.KAFKA,
        unit="bytes",
        at_least=_MIB,
        special={UNLIMITED: "unlimited"},
    )
    """How much one process reads from the remote tier per second for the read service, the command line and Python, and
    how much one export, restore, deep audit, repair, trim or expiry reads, or one read of a table in a Spark session,
    all its workers together (Kafka's default: 9223372036854775807, which is no limit either). It does not hold for
    comparisons of the batches of two segments and for copies inside the store, which are rare."""

    remote_log_manager_fetch_quota_window_num: Whole = setting(
        "remote.log.manager.fetch.quota.window.num", 11, READING, Source.KAFKA, unit="samples", at_least=1, at_most=3600
    )
    """How many samples the limit of reads is averaged over: that many times
    remote.log.manager.fetch.quota.window.size.seconds."""

    remote_log_manager_fetch_quota_window_size_seconds: Whole = setting(
        "remote.log.manager.fetch.quota.window.size.seconds",
        1,
        READING,
        Source.KAFKA,
        unit="seconds",
        at_least=1,
        at_most=3600,
    )
    """How long a sample of the limit of reads is."""

    @field_validator("remote_log_manager_fetch_quota_window_size_seconds")
    @classmethod
    def _shorter_than_stuck(cls, sample_seconds: int, info: ValidationInfo) -> int:
        ensure_no_wait_is_stuck("fetch", sample_seconds, info.data)
        return sample_seconds

    local_log_reader_threads: Whole = setting(
        "local.log.reader.threads", 2, READING, Source.OURS, unit="threads", at_least=1, at_most=1000
    )
    """How many reads of local logs one process runs at once. Searches by time get as many threads again."""

    remote_log_reader_read_ahead_bytes: Whole = setting(
        "remote.log.reader.read.ahead.bytes", 16 * _MIB, READING, Source.OURS, unit="bytes", at_least=0
    )
    """How far a sequential reader prefetches from the remote tier. All readers of a process together prefetch at most
    remote.log.reader.cache.memory.bytes, or this size if that is larger."""

    remote_log_reader_cache_memory_bytes: Whole = setting(
        "remote.log.reader.cache.memory.bytes", 64 * _MIB, READING, Source.OURS, unit="bytes", at_least=0
    )
    """How much data from the remote tier one process caches in memory."""

    remote_log_reader_cache_disk_bytes: Whole = setting(
        "remote.log.reader.cache.disk.bytes", 0, READING, Source.OURS, unit="bytes", at_least=0
    )
    """How much that no longer fits into the memory cache one process keeps on disk, in {state.directory}."""

    remote_log_index_file_cache_total_size_bytes: Whole = setting(
        "remote.log.index.file.cache.total.size.bytes", 32 * _MIB, READING, Source.KAFKA, unit="bytes", at_least=1
    )
    """How much of the indexes of remote segments one process caches, in memory (Kafka's default: 1073741824, on
    disk)."""

    remote_log_reader_metadata_max_age_ms: Whole = setting(
        "remote.log.reader.metadata.max.age.ms", 1_000, READING, Source.OURS, unit="ms", at_least=0
    )
    """How long a reader may use what it knows of a partition before it looks again; twenty times as long as looking
    took, if that is more."""

    audit_worker_bytes_per_second: Whole = setting(
        "audit.worker.bytes.per.second",
        UNLIMITED,
        AUDIT,
        Source.OURS,
        unit="bytes",
        at_least=_MIB,
        special={UNLIMITED: "unlimited"},
    )
    """How much each Spark worker of a deep audit reads per second."""
