"""Settings of the local log: in which directories it is, or which running brokers have it."""

from __future__ import annotations

from tiered_storage.settings.properties.model import PropertyModel, Source, setting
from tiered_storage.settings.properties.types import BrokerFolders, Folders, OptionalFile, OptionalText, Queues, Whole

LOCAL_LOG = "The local log"
CLUSTER = "The running cluster"


class LocalLogSettings(PropertyModel):
    """Which directories hold the local log."""

    log_dirs: Folders = setting(
        "log.dirs",
        (),
        LOCAL_LOG,
        Source.KAFKA,
        allowed="folders, each once: a list, or one text with commas between them",
    )
    """Kafka's log directories: of a stopped broker, copies, or written by this library. One that a running broker has
    locked is refused."""

    cluster_id: OptionalText = setting(
        "cluster.id",
        None,
        LOCAL_LOG,
        Source.KAFKA,
        allowed="up to 128 letters, digits, dots, underscores and hyphens, not beginning with a dot",
        pattern=r"^[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}$",
        default_text="from meta.properties, or else derived from the directory's path",
    )
    """The cluster of the directories; every key in the store begins with it. Needed only if meta.properties is missing
    and the path may change."""

    log_end_is_stable: bool = setting("log.end.is.stable", False, LOCAL_LOG, Source.OURS)
    """Whether a directory without replication-offset-checkpoint (the high watermarks) may be copied up to its log end.
    Never set it for a running broker."""


class ClusterSettings(PropertyModel):
    """How to reach a running cluster, and what to do about records that it deleted before they were copied."""

    bootstrap_servers: OptionalText = setting(
        "bootstrap.servers",
        None,
        CLUSTER,
        Source.KAFKA,
        allowed="host:port of some brokers, with commas between them",
        default_text="none: the local log is in log.dirs",
    )
    """The brokers to begin with. Remote Log then copies from the running cluster, and log.dirs must be empty: see
    [live-cluster.md](live-cluster.md)."""

    cluster_client_properties_file: OptionalFile = setting(
        "cluster.client.properties.file",
        None,
        CLUSTER,
        Source.OURS,
        allowed="a file of librdkafka's properties",
        default_text="none: without encryption and login",
    )
    """How the client connects and logs in, for the command line: lines such as `security.protocol=sasl_ssl`. Let only
    your user read it, since it may hold a password."""

    cluster_connection: OptionalText = setting(
        "cluster.connection",
        None,
        CLUSTER,
        Source.OURS,
        allowed="the id of an Airflow connection of the type kafka",
        pattern=r"^[A-Za-z0-9_.-]+$",
        default_text="none: cluster.client.properties.file",
    )
    """The connection whose extra has the client's properties, for runs by Airflow. It may have bootstrap.servers."""

    broker_log_dirs: BrokerFolders = setting(
        "broker.log.dirs",
        {},
        CLUSTER,
        Source.OURS,
        allowed="the folders of each broker by its id: a mapping, or one text such as 1=/data/a,/data/b;2=/data/c",
        default_text="none: everything is copied by Fetch",
    )
    """The log.dirs of running brokers, as the hosts of the copies see them. Closed segments are then read from the
    leader's files, and nothing is written there: see [live-cluster.md](live-cluster.md#beside-the-brokers-disks)."""

    copy_queues: Queues = setting(
        "copy.queues",
        (),
        CLUSTER,
        Source.OURS,
        allowed="names of Airflow queues: a list, or one text with commas between them",
        default_text="none: only the DAG copy_segments, in Airflow's default queue",
    )
    """The Airflow queues of the hosts that see brokers' disks: beside copy_segments, each has a DAG of its own, such as
    copy_segments.broker-1, whose tasks run in that queue."""

    copy_over_gaps: bool = setting("copy.over.gaps", False, CLUSTER, Source.OURS)
    """Whether a partition whose next records the brokers have deleted is copied on from their log start, by a run that
    fails at its end for what is lost. Otherwise each run fails for it and names the lost offsets, until you decide. A
    topic's own copy.over.gaps comes first."""

    enable_min_retention_margin_ms: Whole = setting(
        "enable.min.retention.margin.ms", 86_400_000, CLUSTER, Source.OURS, unit="ms", at_least=0
    )
    """How long copies must be able to stop before a running cluster's brokers delete records that are not copied yet.
    `topics enable` refuses a topic with less, and each copy run reports it as an error."""
