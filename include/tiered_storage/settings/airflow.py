"""Settings that only Airflow uses: the form of restore_topic, the read service, and the pools of a cluster."""

from __future__ import annotations

from tiered_storage.settings.properties.model import PropertyModel, Source, setting
from tiered_storage.settings.properties.types import Connections, OptionalFile, OptionalFolder, Whole

RESTORE = "Restores by Airflow's form"
POOLS = "Several clusters in one Airflow"
READ_SERVICE = "The read service"


class AirflowSettings(PropertyModel):
    """What the Airflow form and the API server may do."""

    restore_directory: OptionalFolder = setting(
        "restore.directory",
        None,
        RESTORE,
        Source.OURS,
        allowed="a folder",
        default_text="none: the form restores into no directory",
    )
    """The only log directory, on the machine of Airflow's worker, into which the form of restore_topic restores: that
    of a stopped broker, or a new folder."""

    restore_connections: Connections = setting(
        "restore.connections",
        (),
        RESTORE,
        Source.OURS,
        allowed="ids of Airflow connections of the type kafka: a list, or one text with commas between them",
        default_text="none: the form restores into no cluster",
    )
    """The clusters into which the form of restore_topic may restore. The extra of each connection holds the client's
    properties."""

    read_service_rights_file: OptionalFile = setting(
        "read.service.rights.file",
        None,
        READ_SERVICE,
        Source.OURS,
        allowed="a file",
        default_text="none: nobody sees or reads any topic",
    )
    """The file that grants users topics to describe or read. If it is invalid, it grants nothing."""

    read_service_threads: Whole = setting(
        "read.service.threads", 4, READ_SERVICE, Source.OURS, unit="threads", at_least=1, at_most=64
    )
    """How many threads each API server process uses to read and decode records. Metadata requests get as many again."""

    read_service_max_streams: Whole = setting(
        "read.service.max.streams", 256, READ_SERVICE, Source.OURS, unit="answers", at_least=1, at_most=4096
    )
    """How many responses with bytes or records a process sends at once; each takes some MiB of memory."""

    read_service_stalled_after_ms: Whole = setting(
        "read.service.stalled.after.ms", 60_000, READ_SERVICE, Source.OURS, unit="ms", at_least=1000
    )
    """How long a response waits for a client that reads nothing before it is aborted."""

    read_service_metrics_port: Whole = setting(
        "read.service.metrics.port",
        0,
        READ_SERVICE,
        Source.OURS,
        unit="a port",
        at_least=0,
        at_most=65_535,
        special={0: "none"},
    )
    """The port of 127.0.0.1 at which the API server serves metrics to Prometheus, without a login: every user of that
    machine sees the names of all topics. Of several processes of one API server, the first gets the port."""

    own_pools: bool = setting("own.pools", False, POOLS, Source.OURS)
    """Whether the tasks of a further cluster take slots of its own pools, such as remote_log_copier__west, and not of
    those that all clusters share. `make up` makes such pools; elsewhere create them. The first cluster ignores it."""
