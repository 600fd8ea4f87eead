"""Settings of reads: threads, quota, caches, the rate of an audit, and the gateway that reads for Kafka clients."""

from __future__ import annotations

from typing import Literal

from pydantic import ValidationInfo, field_validator

from tiered_storage.settings.copying import ensure_no_wait_is_stuck
from tiered_storage.settings.properties.model import PropertyModel, Source, setting
from tiered_storage.settings.properties.types import UNLIMITED, OptionalFile, OptionalText, Whole

READING = "Reading"
AUDIT = "The audit"
GATEWAY = "The gateway"
_HOST = r"^[A-Za-z0-9._:-]{1,253}$"
_MIB = 1 << 20


class ReadingSettings(PropertyModel):
    """How much one process reads at once, and how much it caches."""

    remote_log_reader_threads: Whole = setting(
        "remote.log.reader.threads", 10, READING, Source.KAFKA, unit="threads", at_least=1, at_most=1000
    )
    """How many remote reads one process runs at once."""

    remote_log_reader_max_pending_tasks: Whole = setting(
        "remote.log.reader.max.pending.tasks", 100, READING, Source.KAFKA, unit="reads", at_least=1
    )
    """How many remote reads may wait; further ones are refused."""

    remote_fetch_max_wait_ms: Whole = setting(
        "remote.fetch.max.wait.ms", 30_000, READING, Source.KAFKA, unit="ms", at_least=1
    )
    """How long a read waits for its next remote batches, with all attempts (Kafka's default: 500)."""

    remote_list_offsets_request_timeout_ms: Whole = setting(
        "remote.list.offsets.request.timeout.ms", 30_000, READING, Source.KAFKA, unit="ms", at_least=1
    )
    """How long a remote search by time may take, with all attempts."""

    remote_log_manager_fetch_max_bytes_per_second: Whole = setting(
        "remote.log.manager.fetch.max.bytes.per.second",
        UNLIMITED,
        READING,
        Source.KAFKA,
        unit="bytes",
        at_least=_MIB,
        special={UNLIMITED: "unlimited"},
    )
    """How much one process, or one run with all its workers, reads from the remote tier per second (Kafka's default:
    9223372036854775807)."""

    remote_log_manager_fetch_quota_window_num: Whole = setting(
        "remote.log.manager.fetch.quota.window.num", 11, READING, Source.KAFKA, unit="samples", at_least=1, at_most=3600
    )
    """The samples over which the limit is averaged."""

    remote_log_manager_fetch_quota_window_size_seconds: Whole = setting(
        "remote.log.manager.fetch.quota.window.size.seconds",
        1,
        READING,
        Source.KAFKA,
        unit="seconds",
        at_least=1,
        at_most=3600,
    )
    """How long such a sample is."""

    @field_validator("remote_log_manager_fetch_quota_window_size_seconds")
    @classmethod
    def _shorter_than_stuck(cls, sample_seconds: int, info: ValidationInfo) -> int:
        ensure_no_wait_is_stuck("fetch", sample_seconds, info.data)
        return sample_seconds

    local_log_reader_threads: Whole = setting(
        "local.log.reader.threads", 2, READING, Source.OURS, unit="threads", at_least=1, at_most=1000
    )
    """How many local reads one process runs at once."""

    remote_log_reader_read_ahead_bytes: Whole = setting(
        "remote.log.reader.read.ahead.bytes", 16 * _MIB, READING, Source.OURS, unit="bytes", at_least=0
    )
    """How far a sequential reader prefetches; all of a process at most remote.log.reader.cache.memory.bytes, or this
    if larger."""

    remote_log_reader_cache_memory_bytes: Whole = setting(
        "remote.log.reader.cache.memory.bytes", 64 * _MIB, READING, Source.OURS, unit="bytes", at_least=0
    )
    """How much remote data one process caches in memory."""

    remote_log_reader_cache_disk_bytes: Whole = setting(
        "remote.log.reader.cache.disk.bytes", 0, READING, Source.OURS, unit="bytes", at_least=0
    )
    """How much more it caches on disk, in {state.directory}."""

    remote_log_index_file_cache_total_size_bytes: Whole = setting(
        "remote.log.index.file.cache.total.size.bytes", 32 * _MIB, READING, Source.KAFKA, unit="bytes", at_least=1
    )
    """How much of remote indexes one process caches, in memory (Kafka's default: 1073741824, on disk)."""

    remote_log_reader_metadata_max_age_ms: Whole = setting(
        "remote.log.reader.metadata.max.age.ms", 1_000, READING, Source.OURS, unit="ms", at_least=0
    )
    """How long a reader uses what it knows of a partition before it looks again; longer if looking is slow."""

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


class GatewaySettings(PropertyModel):
    """Where Kafka clients reach the gateway, and the limits of one of its processes."""

    gateway_listen_host: OptionalText = setting(
        "gateway.listen.host",
        "127.0.0.1",
        GATEWAY,
        Source.OURS,
        allowed="a host name or an IP address of this machine",
        pattern=_HOST,
    )
    """The address to listen at; the default serves only this machine."""

    gateway_advertised_host: OptionalText = setting(
        "gateway.advertised.host",
        None,
        GATEWAY,
        Source.OURS,
        allowed="a host name or an IP address",
        pattern=_HOST,
        default_text="gateway.listen.host",
    )
    """The host that clients get instead of the brokers' hosts."""

    gateway_port: Whole = setting(
        "gateway.port", 19_092, GATEWAY, Source.OURS, unit="ports", at_least=1, at_most=65_535
    )
    """The port for clients' bootstrap.servers; [the brokers' ports](gateway.md#open-it-to-clients) follow it."""

    gateway_workers: Whole = setting(
        "gateway.workers", 1, GATEWAY, Source.OURS, unit="processes", at_least=1, at_most=64
    )
    """How many processes share the ports."""

    gateway_ssl_certificate_location: OptionalFile = setting(
        "gateway.ssl.certificate.location",
        None,
        GATEWAY,
        Source.OURS,
        allowed="a file in PEM form",
        default_text="none: clients connect without TLS",
    )
    """The certificate with its chain. Clients then connect with TLS only."""

    gateway_ssl_key_location: OptionalFile = setting(
        "gateway.ssl.key.location",
        None,
        GATEWAY,
        Source.OURS,
        allowed="a file in PEM form, without a password",
        default_text="gateway.ssl.certificate.location",
    )
    """The certificate's private key."""

    gateway_users_file: OptionalFile = setting(
        "gateway.users.file",
        None,
        GATEWAY,
        Source.OURS,
        allowed="a YAML file with a line 'name: password' for each user",
        default_text="none: only this machine is served",
    )
    """Who may log in [without brokers](gateway.md#users-of-a-gateway-without-brokers)."""

    gateway_max_connections: Whole = setting(
        "gateway.max.connections", 1_000, GATEWAY, Source.OURS, unit="connections", at_least=1
    )
    """How many clients' connections one process takes."""

    gateway_connections_max_idle_ms: Whole = setting(
        "gateway.connections.max.idle.ms", 600_000, GATEWAY, Source.OURS, unit="ms", at_least=1_000
    )
    """How long an idle connection stays open."""

    gateway_memory_max_bytes: Whole = setting(
        "gateway.memory.max.bytes", 512 * _MIB, GATEWAY, Source.OURS, unit="bytes", at_least=16 * _MIB
    )
    """The memory that one process's connections share."""

    gateway_request_max_bytes: Whole = setting(
        "gateway.request.max.bytes",
        100 * _MIB,
        GATEWAY,
        Source.OURS,
        unit="bytes",
        at_least=_MIB,
        at_most=(1 << 31) - 1,
    )
    """The largest request of a client; a larger one ends its connection."""

    gateway_fetch_max_bytes: Whole = setting(
        "gateway.fetch.max.bytes", 55 * _MIB, GATEWAY, Source.OURS, unit="bytes", at_least=_MIB, at_most=120 * _MIB
    )
    """The most records in one answer; a first batch that is larger comes whole."""

    gateway_remote_fetch_max_bytes_per_second_per_client: Whole = setting(
        "gateway.remote.fetch.max.bytes.per.second.per.client",
        UNLIMITED,
        GATEWAY,
        Source.OURS,
        unit="bytes",
        at_least=64 << 10,
        special={UNLIMITED: "unlimited"},
    )
    """How much one process serves one client of remote records per second."""

    gateway_remote_fetch_processor_percent: Whole = setting(
        "gateway.remote.fetch.processor.percent",
        20,
        GATEWAY,
        Source.OURS,
        unit="%",
        at_least=1,
        at_most=100,
    )
    """While local records pass, how much of one processor each process takes for remote ones; 100: no limit."""

    gateway_skip_missing_offsets: bool = setting("gateway.skip.missing.offsets", False, GATEWAY, Source.OURS)
    """Whether consumers skip offsets that neither tier has; each skip is counted and logged."""

    gateway_shutdown_timeout_ms: Whole = setting(
        "gateway.shutdown.timeout.ms", 20_000, GATEWAY, Source.OURS, unit="ms", at_least=0
    )
    """How long an ending process waits for due answers."""

    gateway_log_format: Literal["text", "json"] = setting(
        "gateway.log.format", "text", GATEWAY, Source.OURS, allowed="text or json"
    )
    """How the gateway logs: sentences, or a JSON object a line."""

    gateway_canary_topic: OptionalText = setting(
        "gateway.canary.topic",
        None,
        GATEWAY,
        Source.OURS,
        allowed="a topic's name",
        pattern=r"^[A-Za-z0-9._-]{1,249}$",
        default_text="none",
    )
    """The topic of the [DAG gateway_health](gateway.md#run-it-beside-airflow), which exists only if this is set."""

    gateway_canary_bootstrap_servers: OptionalText = setting(
        "gateway.canary.bootstrap.servers",
        None,
        GATEWAY,
        Source.OURS,
        allowed="host:port",
        default_text="{gateway.advertised.host}:{gateway.port}",
    )
    """Where that DAG reaches the gateway."""

    gateway_metrics_port: Whole = setting(
        "gateway.metrics.port",
        0,
        GATEWAY,
        Source.OURS,
        unit="ports",
        at_least=1,
        at_most=65_535,
        special={0: "none"},
    )
    """The port on 127.0.0.1 of the first process's metrics; each further process has the next one."""
