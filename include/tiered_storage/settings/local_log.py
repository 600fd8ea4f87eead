"""Settings of the local log: which directories, of which cluster."""

from __future__ import annotations

from tiered_storage.settings.properties.model import PropertyModel, Source, setting
from tiered_storage.settings.properties.types import Folders, OptionalText

LOCAL_LOG = "The local log"


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
