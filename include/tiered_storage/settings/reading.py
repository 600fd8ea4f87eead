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
    """The address at which the gateway listens. The default lets only programs on this machine connect."""

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
    """The port for bootstrap.servers of clients. The broker with id N has the port N + 1 after it."""

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
    """The certificate that clients are shown, with its chain. Clients then connect with TLS only."""

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
        default_text="none: nobody logs in, and only this machine is served",
    )
    """Who may log in at a gateway without brokers, by SCRAM, or by PLAIN over TLS; what they may read, the file
    read.service.rights.file says, by their names."""

    gateway_max_connections: Whole = setting(
        "gateway.max.connections", 1_000, GATEWAY, Source.OURS, unit="connections", at_least=1
    )
    """How many clients' connections one process takes; further ones are closed."""

    gateway_connections_max_idle_ms: Whole = setting(
        "gateway.connections.max.idle.ms", 600_000, GATEWAY, Source.OURS, unit="ms", at_least=1_000
    )
    """How long a client's connection stays open over which nothing goes either way: of a client that is gone, or that
    reads nothing of what waits for it. Kafka's brokers have connections.max.idle.ms for theirs."""

    gateway_memory_max_bytes: Whole = setting(
        "gateway.memory.max.bytes", 512 * _MIB, GATEWAY, Source.OURS, unit="bytes", at_least=16 * _MIB
    )
    """How much memory all connections of one process share: requests, answers until clients have read them, and remote
    records. While it is used up, what comes waits. One connection at a time may go over it by one request and one
    answer, so that it can go on."""

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
    """The most records in one answer, whatever a client allows; a first batch that is larger comes whole."""

    gateway_remote_fetch_max_bytes_per_second_per_client: Whole = setting(
        "gateway.remote.fetch.max.bytes.per.second.per.client",
        UNLIMITED,
        GATEWAY,
        Source.OURS,
        unit="bytes",
        at_least=64 << 10,
        special={UNLIMITED: "unlimited"},
    )
    """How many bytes of remote records one process serves per second to one client: one user and client.id. A client
    that is over it is throttled as by a broker's quota. Brokers' quotas do not count remote records."""

    gateway_skip_missing_offsets: bool = setting("gateway.skip.missing.offsets", False, GATEWAY, Source.OURS)
    """Whether consumers go on after offsets that neither tier has and no copy is making remote. Each skip is counted,
    and logged as an error."""

    gateway_shutdown_timeout_ms: Whole = setting(
        "gateway.shutdown.timeout.ms", 20_000, GATEWAY, Source.OURS, unit="ms", at_least=0
    )
    """How long a process that is to end waits for answers that are due."""

    gateway_log_format: Literal["text", "json"] = setting("gateway.log.format", "text", GATEWAY, Source.OURS)
    """How the gateway writes its log to standard error: as sentences, or as a JSON object a line."""

    gateway_canary_topic: OptionalText = setting(
        "gateway.canary.topic",
        None,
        GATEWAY,
        Source.OURS,
        allowed="a topic's name",
        pattern=r"^[A-Za-z0-9._-]{1,249}$",
        default_text="none: there is no DAG gateway_health",
    )
    """The topic that the DAG gateway_health sends a record to, and reads from, through the gateway. The DAG exists
    where it is set; create the topic for this alone, and enable it."""

    gateway_canary_bootstrap_servers: OptionalText = setting(
        "gateway.canary.bootstrap.servers",
        None,
        GATEWAY,
        Source.OURS,
        allowed="host:port",
        default_text="{gateway.advertised.host}:{gateway.port}",
    )
    """Where the DAG gateway_health reaches the gateway."""

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
    """The port on 127.0.0.1 at which the first process serves its metrics to Prometheus; each further process has the
    next port."""
