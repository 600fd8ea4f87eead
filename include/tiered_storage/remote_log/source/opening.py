"""Opens the source that the settings name, and segments by the locations that a source gave them.

SEGMENT_SOURCES is the one place that knows every kind of source.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tiered_storage.errors import ConfigurationError, InvalidLogDirectoryError
from tiered_storage.remote_log.source.partition_log import FETCHED_SCHEME, SegmentLocation
from tiered_storage.remote_log.source.segment_source import OpenSegment, SegmentSource

if TYPE_CHECKING:
    from tiered_storage.kafka_log.producers.producer_history import ProducerHistory
    from tiered_storage.settings.settings import Settings

NO_SCHEME = ""
"""Of locations that are the path of a file."""


@dataclass(frozen=True, slots=True)
class SourceKind:
    """A kind of source: `opens` returns the one that settings name, and `opens_segment` a segment of any such source.

    `is_named` returns whether settings name one. Opening a segment raises InvalidLogDirectoryError for a location that
    no source of this kind can have given.
    """

    is_named: Callable[[Settings], bool]
    opens: Callable[[Settings, Mapping[str, str]], SegmentSource]
    opens_segment: Callable[[SegmentLocation, ProducerHistory | None], OpenSegment]


def _open_log_directories(settings: Settings, _: Mapping[str, str]) -> SegmentSource:
    # A worker that only opens segments needs no source, and a plan needs no opener.
    from tiered_storage.remote_log.source.log_directory_source import LogDirectorySource

    return LogDirectorySource(
        settings.log_dirs, settings.cluster_id, settings.log_end_is_stable, metadata_topic=settings.metadata_topic
    )


def _open_file(location: SegmentLocation, history: ProducerHistory | None) -> OpenSegment:
    from tiered_storage.remote_log.source.log_directory_segment import LogDirectorySegment

    return LogDirectorySegment.at(location, history)


def _open_fetched(location: SegmentLocation, history: ProducerHistory | None) -> OpenSegment:
    from tiered_storage.remote_log.source.log_directory_segment import OwnSegment

    return OwnSegment.at(SegmentLocation(location.removeprefix(f"{FETCHED_SCHEME}://")), history)


def _open_cluster(settings: Settings, client_properties: Mapping[str, str]) -> SegmentSource:
    from tiered_storage.remote_log.source.fetch_source import open_fetch_source

    return open_fetch_source(settings, client_properties)


def _refuse_segment(location: SegmentLocation, _: ProducerHistory | None) -> OpenSegment:
    raise InvalidLogDirectoryError(
        f"{location}: a copy rolls the segments of a running cluster itself: there is none to open"
    )


LOG_DIRECTORIES = SourceKind(lambda settings: bool(settings.log_dirs), _open_log_directories, _open_file)
CLUSTER = SourceKind(
    lambda settings: bool(settings.bootstrap_servers or settings.cluster_connection), _open_cluster, _refuse_segment
)
FETCHED = SourceKind(lambda _: False, _open_cluster, _open_fetched)
CLUSTER_SCHEME = "kafka"
SEGMENT_SOURCES: dict[str, SourceKind] = {
    NO_SCHEME: LOG_DIRECTORIES,
    CLUSTER_SCHEME: CLUSTER,
    FETCHED_SCHEME: FETCHED,
}
"""The kinds of sources by the scheme (`scheme://…`) of their locations."""


def open_source(settings: Settings, client_properties: Mapping[str, str] | None = None) -> SegmentSource:
    """Open the source that `settings` name; that of log directories, which then finds nothing, if they name none.

    `client_properties` say how a running cluster is reached, by librdkafka's names; None: those of the file that
    cluster.client.properties.file names. Looks at nothing yet. Raises ConfigurationError if the settings name two.
    """
    named = [kind for kind in SEGMENT_SOURCES.values() if kind.is_named(settings)]
    if len(named) > 1:
        raise ConfigurationError(
            "log.dirs and bootstrap.servers are both set: set log.dirs for the logs of a stopped broker, or "
            "bootstrap.servers for a running cluster"
        )
    kind = named[0] if named else LOG_DIRECTORIES
    if settings.broker_log_dirs and kind is not CLUSTER:
        raise ConfigurationError(
            "broker.log.dirs is set, and no running cluster is named: set bootstrap.servers too, or log.dirs for the "
            "logs of a stopped broker"
        )
    return kind.opens(settings, client_properties_of(settings) if client_properties is None else client_properties)


def local_place(settings: Settings) -> str:
    """Return where the local logs are, for messages: log.dirs, or the cluster and the setting that names it."""
    if not CLUSTER.is_named(settings):
        return "log.dirs"
    if settings.bootstrap_servers:
        return f"the cluster at {settings.bootstrap_servers} (bootstrap.servers)"
    return f"the cluster of the connection {settings.cluster_connection} (cluster.connection)"


def why_hidden(settings: Settings, topic: str = "NAME") -> str:
    """Return what may hide a topic of that name, as the part of a message that ends with a semicolon and a space.

    Empty for log directories, which hide none.
    """
    if not CLUSTER.is_named(settings):
        return ""
    from tiered_storage.kafka_wire.connections.error_codes import FOR_EVERY_STEP, grant

    right = grant("Describe", f"--topic {topic}", FOR_EVERY_STEP)
    return f"the login sees only topics that it may describe: {right}; "


def client_properties_of(settings: Settings) -> dict[str, str]:
    """Return the properties in the file that cluster.client.properties.file names; none without one."""
    if settings.cluster_client_properties_file is None:
        return {}
    from tiered_storage.kafka_wire.connections.client_properties import read_client_properties

    return read_client_properties(settings.cluster_client_properties_file)


def open_segment(location: SegmentLocation, history: ProducerHistory | None = None) -> OpenSegment:
    """Open the segment at `location`, which need not exist any more; segments of one log may share their `history`.

    Raises InvalidLogDirectoryError for what no source can have given.
    """
    scheme, separator, _ = location.partition("://")
    kind = SEGMENT_SOURCES.get(scheme if separator else NO_SCHEME)
    if kind is None:
        raise InvalidLogDirectoryError(f"{location}: no source here has segments at {scheme}://: make the plan again")
    return kind.opens_segment(location, history)
