"""Settings of what only runs in Airflow: the form of restore_topic, and the read service."""

from __future__ import annotations

from tiered_storage.settings.properties.model import PropertyModel, Source, setting
from tiered_storage.settings.properties.types import Connections, OptionalFile, OptionalFolder, Whole

RESTORE = "Restores by Airflow's form"
READ_SERVICE = "The read service"


class AirflowSettings(PropertyModel):
    """What Airflow's form and its API server may do."""

    restore_directory: OptionalFolder = setting(
        "restore.directory",
        None,
        RESTORE,
        Source.OURS,
        allowed="a folder",
        default_text="none: the form restores into no directory",
    )
    """The log directory of a stopped broker, or a new folder, on the workers' machine: the only one that the form of
    restore_topic restores into."""

    restore_connections: Connections = setting(
        "restore.connections",
        (),
        RESTORE,
        Source.OURS,
        allowed="ids of Airflow connections of the type kafka: a list, or one text with commas between them",
        default_text="none: the form restores into no cluster",
    )
    """The clusters that the form of restore_topic may restore into. The extra of each connection holds the client's
    properties, bootstrap.servers among them."""

    read_service_rights_file: OptionalFile = setting(
        "read.service.rights.file",
        None,
        READ_SERVICE,
        Source.OURS,
        allowed="a file",
        default_text="none: nobody sees or reads any topic",
    )
    """Who may see which topics through the read service, and who may read their records. It is read again whenever it
    changes; where it is broken nobody may anything."""

    read_service_threads: Whole = setting(
        "read.service.threads", 4, READ_SERVICE, Source.OURS, unit="threads", at_least=1, at_most=64
    )
    """How many threads of each process of the API server read and decode records. As many again answer what is asked
    of metadata."""

    read_service_max_streams: Whole = setting(
        "read.service.max.streams", 256, READ_SERVICE, Source.OURS, unit="answers", at_least=1, at_most=4096
    )
    """How many answers with bytes or records a process gives at once, each with some MiB in memory. Who comes then is
    told to come again (429)."""

    read_service_stalled_after_ms: Whole = setting(
        "read.service.stalled.after.ms", 60_000, READ_SERVICE, Source.OURS, unit="ms", at_least=1000
    )
    """How long a client may take none of its answer before it is given up."""
