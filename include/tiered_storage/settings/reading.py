"""Settings of reads: threads, quota, caches, and the rate of an audit."""

from __future__ import annotations

from tiered_storage.settings.properties.model import PropertyModel, Source, setting
from tiered_storage.settings.properties.types import UNLIMITED, Whole

READING = "Reading"
AUDIT = "The audit"
_MIB = 1 << 20


class ReadingSettings(PropertyModel):
    """How much one process reads at once, and what it keeps."""

    remote_log_reader_threads: Whole = setting(
        "remote.log.reader.threads", 10, READING, Source.KAFKA, unit="threads", at_least=1, at_most=1000
    )
    """How many reads of the remote tier one process carries out at once. Local reads have threads of their own, so
    that a slow store never holds them up."""

    remote_log_reader_max_pending_tasks: Whole = setting(
        "remote.log.reader.max.pending.tasks", 100, READING, Source.KAFKA, unit="reads", at_least=1
    )
    """How many reads of the remote tier may wait for a thread; further ones are refused, to be tried again."""

    remote_fetch_max_wait_ms: Whole = setting(
        "remote.fetch.max.wait.ms", 30_000, READING, Source.KAFKA, unit="ms", at_least=1
    )
    """How long a read waits for its next batches from the remote tier, every attempt and pause included, before it
    fails, to be tried again. Kafka's default is 500, since its consumers ask again by themselves."""

    remote_log_manager_fetch_max_bytes_per_second: Whole = setting(
        "remote.log.manager.fetch.max.bytes.per.second",
        UNLIMITED,
        READING,
        Source.KAFKA,
        unit="bytes",
        at_least=_MIB,
        special={UNLIMITED: "as fast as it goes"},
    )
    """How much one process reads from the remote tier in a second. Kafka's default is the largest number there is."""

    local_log_reader_threads: Whole = setting(
        "local.log.reader.threads", 2, READING, Source.OURS, unit="threads", at_least=1, at_most=1000
    )
    """How many reads of local logs one process carries out at once. Searches by time have as many threads of their
    own."""

    remote_log_reader_read_ahead_bytes: Whole = setting(
        "remote.log.reader.read.ahead.bytes", 16 * _MIB, READING, Source.OURS, unit="bytes", at_least=0
    )
    """How much of the remote tier a reader that goes on and on has on its way; it begins with one chunk. All readers of
    a process together have no more than remote.log.reader.cache.memory.bytes on their way ahead, if that is larger."""

    remote_log_reader_cache_memory_bytes: Whole = setting(
        "remote.log.reader.cache.memory.bytes", 64 * _MIB, READING, Source.OURS, unit="bytes", at_least=0
    )
    """How much of what was read from the remote tier one process keeps in memory, for the next who asks for it."""

    remote_log_reader_cache_disk_bytes: Whole = setting(
        "remote.log.reader.cache.disk.bytes", 0, READING, Source.OURS, unit="bytes", at_least=0
    )
    """How much of what no longer fits into that memory one process keeps on the disk, in {state.directory}. Only where
    the store is further away than the disk is that of use."""

    remote_log_reader_metadata_max_age_ms: Whole = setting(
        "remote.log.reader.metadata.max.age.ms", 1_000, READING, Source.OURS, unit="ms", at_least=0
    )
    """How old what a reader knows of a partition may be. Where looking takes long, as with 100,000 segments, it may be
    twenty times as old as that took."""

    audit_worker_bytes_per_second: Whole = setting(
        "audit.worker.bytes.per.second",
        UNLIMITED,
        AUDIT,
        Source.OURS,
        unit="bytes",
        at_least=_MIB,
        special={UNLIMITED: "as fast as it goes"},
    )
    """How much each worker of a deep audit reads in a second, so that what serves readers is left alone. A form
    in Airflow may only lower it."""
