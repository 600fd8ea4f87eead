"""The metadata of a cluster that tiers by itself: read out of its topic __remote_log_metadata, and never written.

    kafka://host:9092,host:9092    the brokers of a running cluster
    file:///log/dir,/log/dir2      the log directories of a stopped broker, or copies of them; a comma in a name is %2C

Segments are kept in memory, about 500 bytes each. There are no decisions, leases or stops here: reading needs none, and
every change is refused. Audits report their results and keep none.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Self
from urllib.parse import unquote, urlsplit

from tiered_storage.clock import Clock
from tiered_storage.errors import ConfigurationError
from tiered_storage.kafka_log.files.meta_properties import META_PROPERTIES, MetaProperties
from tiered_storage.kafka_wire.cluster import ClusterClient
from tiered_storage.kafka_wire.connections.client_properties import read_client_properties
from tiered_storage.remote_log.native.metadata_topic import (
    TOPIC,
    BrokersMetadataTopic,
    DirectoryMetadataTopic,
    MetadataTopic,
)
from tiered_storage.remote_log.native.read_only_storage import refuse
from tiered_storage.remote_log.native.replay import Replay
from tiered_storage.remote_log.native.segments import NativeSegments
from tiered_storage.remote_log.native.unwritten_parts import (
    NativeClockReadings,
    NativeGeneration,
    NativeIdentity,
    NativeLeases,
    NativeSafety,
    NativeTopics,
)
from tiered_storage.remote_log.source.fetch_source import FetchSource
from tiered_storage.remote_log.source.log_directory_source import LogDirectorySource
from tiered_storage.remote_log.source.segment_source import SegmentSource

BROKERS_SCHEME = "kafka"
DIRECTORY_SCHEME = "file"
CLIENT_PROPERTIES_FILE = "client.properties.file"
CLUSTER_ID = "cluster.id"

_FETCH_BYTES = 8 << 20


class NativeMetadataStore:
    """See MetadataStore; the class that the settings name."""

    def __init__(self, topic: MetadataTopic, cluster_id: str, logs: SegmentSource, clock: Clock) -> None:
        """Read all of `topic` now, the topic of the cluster `cluster_id`; `logs` has its partitions' own logs."""
        self.segments = NativeSegments(topic, Replay(TOPIC, cluster_id), logs)
        self.leases = NativeLeases(clock)
        self.topics = NativeTopics()
        self.safety = NativeSafety()
        self.identity = NativeIdentity(cluster_id)
        self.generation = NativeGeneration(topic.where)
        self.clock_readings = NativeClockReadings()
        self._topic, self._where = topic, topic.where
        self._key = secrets.token_bytes(32)
        self.segments.catch_up()

    @classmethod
    def open(cls, url: str, clock: Clock, *, busy_timeout_ms: int, create: bool, configs: Mapping[str, str]) -> Self:
        """Open the metadata at `url`, and read them.

        Raises ConfigurationError for another URL, MetadataMissingError if there is no such topic, and
        SourceClusterError.
        """
        del busy_timeout_ms, create  # nobody waits for a lock, and nothing is ever created
        parsed = urlsplit(url)
        with ExitStack() as opened:
            topic, cluster_id, logs = _OPENING.get(parsed.scheme, _refused)(url, configs)
            opened.callback(logs.close)
            opened.callback(topic.close)
            store = cls(topic, cluster_id, logs, clock)
            opened.pop_all()
        return store

    @classmethod
    def is_there(cls, url: str, configs: Mapping[str, str]) -> bool:  # noqa: ARG003 -- MetadataStoreFactory's
        """Return True: nothing is ever created here, and `open` says what is missing."""
        return True

    @classmethod
    def location(cls, url: str, configs: Mapping[str, str]) -> str:  # noqa: ARG003
        """Return the URL, which has no secrets."""
        return f"{TOPIC} of {url}"

    @property
    def notices(self) -> Sequence[str]:
        """What records of the topic are lost, how many were refused, and the first of them with their places.

        Also the partitions that were looked at and whose log start is unknown.
        """
        replay = self.segments.seen
        lost = [
            f"{self._where}: partition {number} begins with offset {first}: its earlier records were deleted, and the "
            "segments that they named are unknown; Kafka keeps this topic for ever by default"
            for number, first in sorted(self._topic.lost.items())
        ]
        if missing := self._topic.missing:
            lost.append(
                f"{self._where}: partitions {', '.join(map(str, missing))} are not there, and there may be others with "
                "higher numbers: the segments that they name are not listed, read or restored, and an audit calls "
                "their objects unreferenced: delete none of them"
            )
        lost += self.segments.notices
        if not replay.refused:
            return lost
        more = replay.refused - len(replay.shown)
        shown = [*replay.shown, *([f"{more:,} more"] if more else [])]
        return [*lost, f"{self._where}: {replay.refused:,} records changed nothing: {'; '.join(shown)}"]

    def work_area_key(self) -> bytes:
        """Return a key of this process; another process cannot go on with its jobs."""
        return self._key

    def check_integrity(self) -> None:
        """Read what the topic has new."""
        self.segments.catch_up()

    def spend_reserve(self) -> None:
        """Do nothing: no room is reserved."""

    def copy_to(self, target: Path) -> None:  # noqa: ARG002
        """Raise ConfigurationError: the brokers keep the topic."""
        refuse("the metadata cannot be backed up")

    def close(self) -> None:
        """See MetadataStore."""
        self.segments.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_Opened = tuple[MetadataTopic, str, SegmentSource]


def _of_brokers(url: str, configs: Mapping[str, str]) -> _Opened:
    servers = urlsplit(url).netloc
    if not servers or urlsplit(url).path.strip("/"):
        raise ConfigurationError(f"rlmm.config.url is {url}: name the brokers, as in kafka://host:9092,host:9092")
    file = configs.get(CLIENT_PROPERTIES_FILE)
    properties = {**(read_client_properties(Path(file)) if file else {}), "bootstrap.servers": servers}
    client = ClusterClient.by_properties(properties)
    try:
        cluster_id = _given(client.metadata([]).cluster_id or configs.get(CLUSTER_ID), f"{url}: the cluster has no id")
    except BaseException:
        client.close()
        raise
    return BrokersMetadataTopic(client), cluster_id, FetchSource(properties, cluster_id, _FETCH_BYTES)


def _of_directory(url: str, configs: Mapping[str, str]) -> _Opened:
    paths = tuple(Path(unquote(path)) for path in urlsplit(url).path.split(","))
    for path in paths:
        if not path.is_dir():
            raise ConfigurationError(f"rlmm.config.url is {url}: {path} is not a directory of this host")
    files = [path / META_PROPERTIES for path in paths]
    found = (MetaProperties.read(file).cluster_id for file in files if file.exists())
    cluster_id = configs.get(CLUSTER_ID) or next(filter(None, found), None)
    cluster_id = _given(cluster_id, f"{' and '.join(map(str, files))} name no cluster")
    logs = LogDirectorySource(paths, cluster_id, end_is_stable=True)
    return DirectoryMetadataTopic(logs, ",".join(map(str, paths))), cluster_id, logs


def _given(cluster_id: str | None, why: str) -> str:
    if cluster_id is None:
        raise ConfigurationError(f"{why}: set rlmm.config.{CLUSTER_ID}")
    return cluster_id


def _refused(url: str, _: Mapping[str, str]) -> _Opened:
    raise ConfigurationError(
        f"rlmm.config.url is {url}: name the brokers of the cluster, as in kafka://host:9092, or the log directory of "
        "a stopped broker, as in file:///log/directory"
    )


_OPENING: Mapping[str, Callable[[str, Mapping[str, str]], _Opened]] = {
    BROKERS_SCHEME: _of_brokers,
    DIRECTORY_SCHEME: _of_directory,
}
