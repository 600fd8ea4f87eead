"""Check whether a running cluster can be reached, and what of it can be copied."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from contextlib import closing
from itertools import islice

from tiered_storage.clock import wall_clock
from tiered_storage.doctor.check import Check, alone, note, ok, wrong
from tiered_storage.doctor.log_directories import check_broker_directories
from tiered_storage.doctor.metadata_store import lacks_its_topic
from tiered_storage.errors import MetadataMissingError, TieredStorageError
from tiered_storage.kafka_log.files.topic_partition import described_near, near_names
from tiered_storage.kafka_wire.cluster import ClusterClient
from tiered_storage.kafka_wire.connections.error_codes import TO_COPY, TO_TRIM, grant
from tiered_storage.kafka_wire.controller_clock import REMEDY
from tiered_storage.kafka_wire.rights import Right
from tiered_storage.remote_log.context import open_metadata
from tiered_storage.remote_log.metadata.lost_identity import LostIdentities
from tiered_storage.remote_log.source.cluster_trim import ConsumerGroups, topics_without
from tiered_storage.remote_log.source.opening import CLUSTER, open_source
from tiered_storage.remote_log.source.partition_log import PartitionLog, UnreadablePartition
from tiered_storage.remote_log.source.segment_source import SegmentSource
from tiered_storage.remote_log.tiering_policy import Decisions
from tiered_storage.settings.settings import Settings

MOST_PARTITIONS_NAMED = 20

ANSWER_SECONDS = 10.0
"""The time limit for a cluster that does not answer, in seconds: a user waits for doctor, so it is shorter than a
run's."""

_DESCRIBE_CLUSTER = grant("Describe", "--cluster", TO_COPY)
_NAME = "cluster"
_RETENTION = "local retention"


def check_cluster(settings: Settings) -> Iterator[Check]:
    """Yield what the cluster at bootstrap.servers answers; nothing if the settings name none."""
    if not CLUSTER.is_named(settings):
        return
    if settings.bootstrap_servers is None:
        yield note(_NAME, "only the Airflow connection of cluster.connection names brokers: this command has no access")
        return
    yield from _check_file(settings)
    with closing(open_source(settings)) as source:
        with ClusterClient.by_properties(source.access) as client:
            cluster = client.metadata((), seconds=ANSWER_SECONDS)
            yield from check_clock(client, settings)
        if cluster.cluster_id is not None:
            yield from check_broker_directories(settings, cluster.cluster_id, cluster.brokers)
        yield from _check_partitions(source, settings)


def _check_file(settings: Settings) -> Iterator[Check]:
    path = settings.cluster_client_properties_file
    if path is not None and path.exists() and stat.S_IMODE(path.stat().st_mode) & 0o077:
        yield wrong(_NAME, f"{path} may be read by other users", f"chmod 600 {path}: it may hold a password")


def check_clock(client: ClusterClient, settings: Settings) -> Iterator[Check]:
    """Yield whether the clock of the active controller, which is all that Kafka shows, agrees with this machine's."""
    found = client.controller_clock(wall_clock, seconds=ANSWER_SECONDS)
    if found is None:
        message = "the brokers' clocks are not compared with this machine's: no controller shows its own"
        yield note(_NAME, message, f"use Kafka 3.3 or later without ZooKeeper; {_DESCRIBE_CLUSTER}")
    elif (why := found.why_apart(settings.clock_max_skew_ms)) is not None:
        yield wrong(_NAME, why, REMEDY)
    else:
        yield ok(_NAME, f"the clock of node {found.node}, the active controller, agrees with this machine's")


def _check_partitions(source: SegmentSource, settings: Settings) -> Iterator[Check]:
    readable: list[PartitionLog] = []
    unreadable: list[UnreadablePartition] = []
    for found in source.partitions():
        if found.is_internal:
            continue
        if isinstance(found, UnreadablePartition):
            unreadable.append(found)
        else:
            readable.append(found)
    servers = settings.bootstrap_servers
    if not readable and not unreadable:
        yield note(_NAME, f"{servers} shows no topic", "grant Describe on the topics to copy")
        return
    ids = ", ".join(sorted({log.topic_id_partition.cluster_id for log in readable}))
    if readable:
        yield ok(_NAME, f"{servers} is the cluster {ids}: {len(readable)} partitions can be read")
    for each in islice(unreadable, MOST_PARTITIONS_NAMED):
        yield wrong(_NAME, f"{each.partition}: {each.reason}")
    yield from check_names(
        {each.topic_id_partition.topic for each in readable} | {each.topic for each in unreadable}, settings
    )
    yield from _check_topics(source, readable, settings)


def check_names(shown: set[str], settings: Settings) -> Iterator[Check]:
    """Yield the topics that settings name, that the cluster does not show, and that have nearly the name of another."""
    ignoring = settings.local_retention_topics_ignoring_groups
    for setting, names in (("topics", settings.topics), ("local.retention.topics.ignoring.groups", ignoring)):
        for name in sorted(names):
            if name not in shown and (near := near_names(name, shown)):
                yield note(
                    _NAME, f"{setting} names {name}, which is not there: {described_near(near)}", f"correct {setting}"
                )


def _check_topics(source: SegmentSource, logs: list[PartitionLog], settings: Settings) -> Iterator[Check]:
    """Yield why topics that are enabled are refused; without metadata the settings file alone decides."""
    decisions: Decisions | None = None
    try:
        with open_metadata(settings, lambda: 0) as store:
            decisions = Decisions(store.topics.list(), settings)
            if lacks_its_topic(store):
                raise MetadataMissingError("no segment is known yet")
            states = store.segments.partition_states()
            known = LostIdentities(states, store.segments, is_cluster_named=settings.cluster_id is not None)
            yield from (wrong(_NAME, why) for why in filter(None, map(known.why_lost, logs)))
    except TieredStorageError:
        # The check of the metadata reports it.
        decisions = decisions or Decisions((), settings)
    found: dict[str, str] = {}
    copied: set[str] = set()
    trimmed: set[str] = set()
    for log in logs:
        try:
            decision = decisions.of(log)
            for chosen, is_chosen in ((copied, decision.copies), (trimmed, decision.trims)):
                if is_chosen:
                    chosen.add(log.topic_id_partition.topic)
        except TieredStorageError as error:
            found.setdefault(log.topic_id_partition.topic, str(error))
    yield from (wrong("topics", why) for why in found.values())
    yield from alone(_NAME, lambda: _check_rights_to_copy(source, sorted(copied), logs))
    yield from alone(_RETENTION, lambda: _check_local_retention(source, sorted(trimmed), settings))


def _check_rights_to_copy(source: SegmentSource, topics: list[str], logs: list[PartitionLog]) -> Iterator[Check]:
    """Yield the rights that the login lacks to copy `topics`."""
    with ClusterClient.by_properties(source.access) as client:
        lacking = topics_without(Right.READ, client, topics)
    for topic in islice(lacking, MOST_PARTITIONS_NAMED):
        message = f"topic {topic}: the login lacks the right Read, so nothing of it is copied"
        yield wrong(_NAME, message, grant("Read", f"--topic {topic}", TO_COPY))
    unsegmented = [log.unsegmented for log in logs if log.unsegmented is not None]
    if unsegmented and all(one.size_on_disk is None and one.rules.files is None for one in unsegmented):
        message = "the login may not see the sizes of logs, so bursts of large records may be copied later"
        yield note(_NAME, message, _DESCRIBE_CLUSTER)


def _check_local_retention(source: SegmentSource, topics: list[str], settings: Settings) -> Iterator[Check]:
    """Yield what keeps brokers from deleting the records of `topics`, whose local deletion is allowed."""
    if not topics:
        return
    with ClusterClient.by_properties(source.access) as client:
        lacking = topics_without(Right.DELETE, client, topics)
        for topic in islice(lacking, MOST_PARTITIONS_NAMED):
            message = f"topic {topic}: the login lacks the right Delete, so nothing of it is trimmed"
            yield wrong(_RETENTION, message, grant("Delete", f"--topic {topic}", TO_TRIM))
        committed = ConsumerGroups(lambda: client).committed()
    ignored = settings.local_retention_ignored_groups
    unknown = {group: why for group, why in committed.unknown.items() if group not in ignored}
    for group, why in islice(sorted(unknown.items()), MOST_PARTITIONS_NAMED):
        yield wrong(_RETENTION, f"group {group}: what it has read is unknown, so nothing is trimmed: {why}")
    if not lacking and not unknown:
        yield ok(_RETENTION, f"brokers may delete what is remote of {len(topics)} topics")
