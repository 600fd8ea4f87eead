"""Settings of `tiered-storage service`: how often its tasks run, in how many threads, and what shows how it does."""

from __future__ import annotations

from typing import Literal

from tiered_storage.settings.properties.model import PropertyModel, Source, setting
from tiered_storage.settings.properties.types import Jitter, Whole

SERVICE = "The service"
_MOST_THREADS = 1_000
_DAY_MS = 86_400_000


class ServiceSettings(PropertyModel):
    """How a process that stays up copies, expires and follows."""

    remote_log_manager_task_interval_ms: Whole = setting(
        "remote.log.manager.task.interval.ms", 30_000, SERVICE, Source.KAFKA, unit="ms", at_least=1, at_most=_DAY_MS
    )
    """How long after its end a partition's task is due again."""

    remote_log_manager_task_retry_backoff_ms: Whole = setting(
        "remote.log.manager.task.retry.backoff.ms", 500, SERVICE, Source.KAFKA, unit="ms", at_least=1, at_most=_DAY_MS
    )
    """How long after its first failure a task is due again; each further failure doubles that."""

    remote_log_manager_task_retry_backoff_max_ms: Whole = setting(
        "remote.log.manager.task.retry.backoff.max.ms",
        30_000,
        SERVICE,
        Source.KAFKA,
        unit="ms",
        at_least=1,
        at_most=_DAY_MS,
    )
    """The longest wait after failures. A longer remote.log.manager.task.retry.backoff.ms wins."""

    remote_log_manager_task_retry_jitter: Jitter = setting(
        "remote.log.manager.task.retry.jitter", 0.2, SERVICE, Source.KAFKA, allowed="a number from 0 to 0.5"
    )
    """The largest random change of a wait after failures, as a share of it."""

    remote_log_manager_copier_thread_pool_size: Whole = setting(
        "remote.log.manager.copier.thread.pool.size",
        10,
        SERVICE,
        Source.KAFKA,
        unit="threads",
        at_least=1,
        at_most=_MOST_THREADS,
    )
    """How many runs the service copies in at once. In Airflow, the cores of Spark decide; `copy` has `--workers`."""

    remote_log_manager_expiration_thread_pool_size: Whole = setting(
        "remote.log.manager.expiration.thread.pool.size",
        10,
        SERVICE,
        Source.KAFKA,
        unit="threads",
        at_least=1,
        at_most=_MOST_THREADS,
    )
    """In how many threads the service expires."""

    remote_log_manager_follower_thread_pool_size: Whole = setting(
        "remote.log.manager.follower.thread.pool.size",
        2,
        SERVICE,
        Source.KAFKA,
        unit="threads",
        at_least=1,
        at_most=_MOST_THREADS,
    )
    """In how many threads the service [follows partitions](service.md#a-second-copy-of-a-brokers-partitions)."""

    service_shutdown_timeout_ms: Whole = setting(
        "service.shutdown.timeout.ms", 60_000, SERVICE, Source.OURS, unit="ms", at_least=0
    )
    """How long an ending service waits for copies that run; then it releases their leases."""

    service_log_format: Literal["text", "json"] = setting(
        "service.log.format", "text", SERVICE, Source.OURS, allowed="text or json"
    )
    """How the service logs: sentences, or a JSON object a line."""

    service_metrics_port: Whole = setting(
        "service.metrics.port",
        0,
        SERVICE,
        Source.OURS,
        unit="ports",
        at_least=1,
        at_most=65_535,
        special={0: "none"},
    )
    """The port on 127.0.0.1 of [its metrics and health](service.md#watch-it)."""
