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
        default_text="none",
    )
    """The only log directory, on Airflow's workers, into which [restore_topic](restore.md#by-airflows-form)
    restores: a stopped broker's, or a new folder."""

    restore_connections: Connections = setting(
        "restore.connections",
        (),
        RESTORE,
        Source.OURS,
        allowed="ids of Airflow connections of the type kafka: a list, or text with commas",
        default_text="none",
    )
    """The clusters into which it restores; the extra of each has the client's properties."""

    read_service_rights_file: OptionalFile = setting(
        "read.service.rights.file",
        None,
        READ_SERVICE,
        Source.OURS,
        allowed="a file",
        default_text="none: nobody sees anything",
    )
    """The file that grants users topics to describe or read."""

    read_service_threads: Whole = setting(
        "read.service.threads", 4, READ_SERVICE, Source.OURS, unit="threads", at_least=1, at_most=64
    )
    """How many threads of an API server process read records."""

    read_service_max_streams: Whole = setting(
        "read.service.max.streams", 256, READ_SERVICE, Source.OURS, unit="answers", at_least=1, at_most=4096
    )
    """How many answers with bytes or records a process sends at once."""

    read_service_stalled_after_ms: Whole = setting(
        "read.service.stalled.after.ms", 60_000, READ_SERVICE, Source.OURS, unit="ms", at_least=1000
    )
    """How long an answer waits for a client that reads nothing."""

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
    """The port on 127.0.0.1 of [the metrics](monitoring.md#prometheus), without a login."""

    own_pools: bool = setting("own.pools", False, POOLS, Source.OURS)
    """Whether a further cluster has [pools of its own](airflow.md#several-clusters)."""
