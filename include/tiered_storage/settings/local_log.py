"""Settings of the local log: in which directories it is, or which running brokers have it."""

from __future__ import annotations

from tiered_storage.settings.properties.model import PropertyModel, Source, setting
from tiered_storage.settings.properties.types import BrokerFolders, Folders, OptionalFile, OptionalText, Queues, Whole

LOCAL_LOG = "The local log"
CLUSTER = "The running cluster"
FOLLOWERS = "Followers"


class LocalLogSettings(PropertyModel):
    """Which directories hold the local log."""

    log_dirs: Folders = setting(
        "log.dirs",
        (),
        LOCAL_LOG,
        Source.KAFKA,
        allowed="folders, each once: a list, or text with commas",
    )
    """Kafka's log directories: of a stopped broker, copies, or written by this library."""

    cluster_id: OptionalText = setting(
        "cluster.id",
        None,
        LOCAL_LOG,
        Source.KAFKA,
        allowed="up to 128 letters, digits, dots, underscores and hyphens, not beginning with a dot",
        pattern=r"^[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}$",
        default_text="from meta.properties, or else the directory's path",
    )
    """The directories' cluster; needed only without meta.properties, if the path may change."""

    log_end_is_stable: bool = setting("log.end.is.stable", False, LOCAL_LOG, Source.OURS)
    """Whether to copy a directory without replication-offset-checkpoint up to its log end. Never set it for a
    running broker."""


class ClusterSettings(PropertyModel):
    """How to reach a running cluster, and what to do about records that it deleted before they were copied."""

    bootstrap_servers: OptionalText = setting(
        "bootstrap.servers",
        None,
        CLUSTER,
        Source.KAFKA,
        allowed="host:port of some brokers, with commas",
        default_text="none",
    )
    """Brokers of the [running cluster](live-cluster.md) to copy from; log.dirs must be empty."""

    cluster_client_properties_file: OptionalFile = setting(
        "cluster.client.properties.file",
        None,
        CLUSTER,
        Source.OURS,
        allowed="a file of librdkafka's properties",
        default_text="none: without encryption and login",
    )
    """How the command line logs in. Let only your user read the file."""

    cluster_connection: OptionalText = setting(
        "cluster.connection",
        None,
        CLUSTER,
        Source.OURS,
        allowed="the id of an Airflow connection of the type kafka",
        pattern=r"^[A-Za-z0-9_.-]+$",
        default_text="none: cluster.client.properties.file",
    )
    """The connection whose extra has these properties, for Airflow."""

    broker_log_dirs: BrokerFolders = setting(
        "broker.log.dirs",
        {},
        CLUSTER,
        Source.OURS,
        allowed="the folders of each broker by its id: a mapping, or text such as 1=/data/a,/data/b;2=/data/c",
        default_text="none: all by Fetch",
    )
    """The log.dirs of running brokers, as the hosts of the copies [see
    them](live-cluster.md#beside-the-brokers-disks)."""

    copy_queues: Queues = setting(
        "copy.queues",
        (),
        CLUSTER,
        Source.OURS,
        allowed="names of Airflow queues: a list, or text with commas",
        default_text="none",
    )
    """The Airflow queues of the hosts that see brokers' disks: each has a DAG, such as copy_segments.broker-1."""

    copy_over_gaps: bool = setting("copy.over.gaps", False, CLUSTER, Source.OURS)
    """Whether copies continue after a gap: brokers [deleted records too
    early](live-cluster.md#when-records-were-deleted-too-early)."""

    enable_min_retention_margin_ms: Whole = setting(
        "enable.min.retention.margin.ms", 86_400_000, CLUSTER, Source.OURS, unit="ms", at_least=0
    )
    """How long copies must be able to stop before brokers delete uncopied records: `topics enable` refuses less."""


class FollowerSettings(PropertyModel):
    """Where a [follower](followers.md) starts, and how it keeps the remote log index."""

    follower_fetch_last_tiered_offset_enable: bool = setting(
        "follower.fetch.last.tiered.offset.enable", False, FOLLOWERS, Source.KAFKA
    )
    """Whether a new follower starts after the last remote offset, not at its leader's first local one (KIP-1023)."""

    remote_log_index_rotation_bytes: Whole = setting(
        "remote.log.index.rotation.bytes", 10 << 20, FOLLOWERS, Source.OURS, unit="bytes", at_least=1, at_most=1 << 30
    )
    """At which size of a remoteLogIndex file a follower begins another one."""

    remote_log_index_rotation_interval_ms: Whole = setting(
        "remote.log.index.rotation.interval.ms", 604_800_000, FOLLOWERS, Source.OURS, unit="ms", at_least=1
    )
    """How long after the copy of a file's first segment a follower begins another file."""
