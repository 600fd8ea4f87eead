"""Local logs that running brokers hold, seen by Kafka's protocol.

The cluster shows which partitions there are, who leads them, how far they are stable, and by which settings they roll.
Their segments stay unseen: a copy rolls its own (fetched_log.py). Where broker.log.dirs says how hosts see the brokers'
disks, a copy takes the leader's closed segments from there (leader_log.py).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from threading import RLock
from typing import TYPE_CHECKING, Final

from tiered_storage.clock import wall_clock
from tiered_storage.errors import ConfigurationError, SourceClusterError
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.kafka_log.files.topic_partition import OUR_METADATA_TOPIC
from tiered_storage.kafka_log.log.log_config import INT64_MAX
from tiered_storage.kafka_log.records.batch_header import BatchHeader
from tiered_storage.kafka_log.records.legacy_message import read_true_header
from tiered_storage.kafka_log.records.record_batch import iterate_batches
from tiered_storage.kafka_wire.cluster import CALL_SECONDS, ClusterClient
from tiered_storage.kafka_wire.connections.error_codes import NONE, PartitionError
from tiered_storage.kafka_wire.controller_clock import REMEDY
from tiered_storage.kafka_wire.fetch import FetchBuffer, FetchLimits, FetchPosition
from tiered_storage.kafka_wire.metadata import (
    NO_LEADER,
    ClusterMetadata,
    Leadership,
    TopicMetadata,
    TopicPartition,
    leadership,
    partition_problem,
)
from tiered_storage.kafka_wire.partition_offsets import PartitionOffsets, ask_lineages, ask_offsets
from tiered_storage.kafka_wire.topic_configs import TopicConfigs
from tiered_storage.remote_log.model import TopicIdPartition
from tiered_storage.remote_log.source.cluster_trim import ClusterTrim, ConsumerGroups
from tiered_storage.remote_log.source.leader_files import BrokerDirectories, closed_sizes
from tiered_storage.remote_log.source.log_directory_source import derived_topic_id
from tiered_storage.remote_log.source.partition_log import (
    Elsewhere,
    LocalSegment,
    NamedPartition,
    PartitionLog,
    PartitionReplicas,
    RollRules,
    UnreadablePartition,
    UnsegmentedLog,
    name_of,
)
from tiered_storage.remote_log.source.segment_source import LocalTrim

if TYPE_CHECKING:
    from tiered_storage.settings.settings import Settings

_SAMPLE_BYTES: Final = 64 << 10
_ONE_BATCH: Final = 1
"""The first batch comes whole, however few bytes are requested."""
_SAMPLE_BUFFER: Final = 64 << 20
_LIMITED_FETCH_BYTES: Final = 1 << 20
"""How much a limited copy asks for at once: a broker's network thread sends nothing else while it sends an answer."""


class FetchSource:
    """A SegmentSource over the cluster that `properties` lead to (librdkafka's names). Threads may share it."""

    def __init__(
        self,
        properties: Mapping[str, str],
        cluster_id: str | None,
        fetch_bytes: int,
        brokers: BrokerDirectories | None = None,
        max_skew_ms: int | None = None,
        metadata_topic: str | None = None,
        call_seconds: float = CALL_SECONDS,
    ) -> None:
        """Open nothing yet. `cluster_id` is the id that the cluster must have; None: whichever it has.

        `brokers` says where copies find the files of a partition's leader; None: nowhere, they fetch all of it.
        `notices` has a clock of the cluster that is more than `max_skew_ms` from this machine's; None: it has none.
        `metadata_topic` is the name of Remote Log's own topic, besides the default one: it is internal.
        A look at partitions gives each call `call_seconds`. Methods raise ConfigurationError for properties that are
        invalid or refused.
        """
        self._properties = properties
        self._cluster_id = cluster_id
        self._fetch_bytes = fetch_bytes
        self._brokers = brokers
        self._max_skew_ms = max_skew_ms
        self._metadata_topics = frozenset({OUR_METADATA_TOPIC, metadata_topic})
        self._call_seconds = call_seconds
        self._opened: ClusterClient | None = None
        self._sample = FetchBuffer(_SAMPLE_BUFFER)
        self._lock = RLock()
        """The client is for one thread."""
        self._groups = ConsumerGroups(lambda: self._client)

    @property
    def is_configured(self) -> bool:
        """As SegmentSource."""
        return True

    @property
    def shows_segments(self) -> bool:
        """As SegmentSource."""
        return False

    @property
    def access(self) -> Mapping[str, str]:
        """As SegmentSource: the properties of the cluster's client."""
        return self._properties

    @property
    def notices(self) -> Sequence[str]:
        """As SegmentSource: the cluster's clock, if it is apart from ours; other findings belong to a partition."""
        if self._max_skew_ms is None:
            return ()
        with self._lock:
            found = self._client.controller_clock(wall_clock)
        why = None if found is None else found.why_apart(self._max_skew_ms)
        return () if why is None else (f"{why}: {REMEDY}",)

    @property
    def local_trim(self) -> LocalTrim:
        """As SegmentSource."""
        return ClusterTrim(self._leadership, self._delete_records)

    def partitions(self) -> Iterator[PartitionLog | UnreadablePartition]:
        """Look at every partition. Raises SourceClusterError if the cluster cannot be asked at all."""
        with self._lock:
            found = self._metadata(None)
            every = [each for topic in found.known_topics for each in topic.topic_partitions]
            # Ask for sizes before offsets: then a log that grows meanwhile has no bytes beyond its offsets.
            sizes = self._client.log_sizes(every) if self._brokers is None else {}
            logs = list(self._look(found, every, sizes))
        # The caller works between two of them, and other threads may ask meanwhile.
        yield from logs

    def names(self) -> Iterator[NamedPartition | UnreadablePartition]:
        """Name every partition. Raises as `partitions`."""
        with self._lock:
            found = self._metadata(None)
            configs = self._client.topic_configs([topic.name for topic in found.known_topics])
        for topic in found.known_topics:
            yield from self._named(found, topic, configs[topic.name])

    def replicas(self) -> Mapping[TopicIdPartition, PartitionReplicas]:
        """As ShowsReplicas."""
        with self._lock:
            found = self._metadata(None)
            return {
                self._identify(found, topic, number): PartitionReplicas(
                    None if each.leader == NO_LEADER else each.leader, each.replicas
                )
                for topic in found.known_topics
                for number, each in topic.partitions.items()
            }

    def named(self, topic: str, number: int) -> Sequence[NamedPartition | UnreadablePartition]:
        """Return the partition of that name, if there is one. Raises as `partitions`."""
        with self._lock:
            found = self._metadata([topic])
            known = found.topics.get(topic)
            if known is None or known.error_code != NONE or number not in known.partitions:
                return []
            configs = self._client.topic_configs([topic])
        return [each for each in self._named(found, known, configs[topic]) if name_of(each) == (topic, number)]

    def partition(self, partition: TopicIdPartition) -> PartitionLog | None:
        """Look at one partition. Raises SourceClusterError if it cannot be looked at."""
        found = self.partitions_of([partition]).get(partition)
        if isinstance(found, UnreadablePartition):
            raise SourceClusterError(f"{partition}: {found.reason}")
        return found

    def partitions_of(
        self, wanted: Collection[TopicIdPartition], *, seconds: float | None = None
    ) -> dict[TopicIdPartition, PartitionLog | UnreadablePartition]:
        """As BulkLookup: with a few requests to each broker, however many partitions it leads."""
        with self._lock:
            found = self._metadata({partition.topic for partition in wanted}, seconds or self._call_seconds)
            there = [partition for partition in wanted if self._is_there(found, partition)]
            names = [TopicPartition(partition.topic, partition.partition) for partition in there]
            return dict(zip(there, self._look(found, names, {}), strict=True))

    def while_trimming(self, segment: LocalSegment) -> FetchSource:  # noqa: ARG002 -- SegmentSource's
        """As SegmentSource."""
        return self

    def close(self) -> None:
        """Close the connections."""
        with self._lock:
            if self._opened is not None:
                self._opened.close()

    @property
    def _client(self) -> ClusterClient:
        if self._opened is None:
            self._opened = ClusterClient.by_properties(self._properties)
        return self._opened

    def _metadata(self, topics: Collection[str] | None, seconds: float = CALL_SECONDS) -> ClusterMetadata:
        found = self._client.metadata(topics, seconds=seconds)
        if self._cluster_id is not None and found.cluster_id not in {None, self._cluster_id}:
            raise ConfigurationError(
                f"{self._place} is the cluster {found.cluster_id}, but cluster.id is {self._cluster_id}: correct "
                "bootstrap.servers, or leave cluster.id out"
            )
        return found

    @property
    def _place(self) -> str:
        return ",".join(map(str, self._client.settings.bootstrap))

    def _identify(self, found: ClusterMetadata, topic: TopicMetadata, number: int) -> TopicIdPartition:
        cluster_id = found.cluster_id or self._cluster_id
        if cluster_id is None:
            raise ConfigurationError(f"{self._place}: the brokers report no cluster id: set cluster.id")
        topic_id = topic.topic_id or derived_topic_id(cluster_id, topic.name)
        return TopicIdPartition(cluster_id, topic_id, number, topic.name)

    def _is_there(self, found: ClusterMetadata, partition: TopicIdPartition) -> bool:
        """Return whether the cluster has the partition, under the same topic id."""
        topic = found.topics.get(partition.topic)
        if topic is None or partition.partition not in topic.partitions:
            return False
        return self._identify(found, topic, partition.partition) == partition

    def _named(
        self, found: ClusterMetadata, topic: TopicMetadata, configs: TopicConfigs | str
    ) -> Iterator[NamedPartition | UnreadablePartition]:
        for each in topic.topic_partitions:
            if isinstance(configs, str):
                yield UnreadablePartition(str(each), configs)
                continue
            yield NamedPartition(
                topic_id_partition=self._identify(found, topic, each.partition),
                place=f"{each} at {self._place}",
                is_internal=topic.internal or topic.name in self._metadata_topics,
                is_compacted=configs.is_compacted,
                topic_id_is_derived=topic.topic_id is None,
                cluster_id_is_derived=False,
                problem=_tiered(configs, each.topic),
                tiered_by_kafka=_tiered(configs, each.topic),
                configs=configs,
            )

    def _look(
        self, found: ClusterMetadata, wanted: Sequence[TopicPartition], sizes: Mapping[TopicPartition, int]
    ) -> Iterator[PartitionLog | UnreadablePartition]:
        """Yield what the brokers say of `wanted`, in their order; `sizes` are of those on the leaders' disks."""
        elsewhere = self._elsewhere(found, wanted)
        seconds = self._call_seconds
        configs = self._client.topic_configs(sorted({each.topic for each in wanted}), seconds=seconds)
        offsets = ask_offsets(self._client, wanted, seconds)
        sound = {each: known for each, known in offsets.items() if isinstance(known, PartitionOffsets)}
        lineages = ask_lineages(self._client, found, sound, seconds)
        for each in wanted:
            of_topic, known, lineage = configs[each.topic], offsets[each], lineages.get(each, ())
            if isinstance(of_topic, str):
                yield UnreadablePartition(str(each), of_topic)
            elif isinstance(known, PartitionError):
                yield UnreadablePartition(str(each), str(known).removeprefix(f"{each}: "))
            elif isinstance(lineage, PartitionError):
                yield UnreadablePartition(str(each), str(lineage).removeprefix(f"{each}: "))
            else:
                yield self._log(found, each, of_topic, known, lineage, elsewhere, sizes.get(each))

    def _elsewhere(self, found: ClusterMetadata, wanted: Sequence[TopicPartition]) -> Mapping[int, Elsewhere]:
        """Return the leaders whose files this host cannot read, and why not."""
        cluster_id = found.cluster_id or self._cluster_id
        if self._brokers is None or cluster_id is None:
            return {}
        leaders = {found.topics[each.topic].partitions[each.partition].leader for each in wanted}
        return self._brokers.elsewhere(sorted(leaders), cluster_id)

    def _log(
        self,
        found: ClusterMetadata,
        each: TopicPartition,
        configs: TopicConfigs,
        offsets: PartitionOffsets,
        lineage: tuple[EpochEntry, ...],
        elsewhere: Mapping[int, Elsewhere],
        size: int | None,
    ) -> PartitionLog:
        topic = found.topics[each.topic]
        partition = self._identify(found, topic, each.partition)
        leader = topic.partitions[each.partition].leader
        files = None if self._brokers is None else self._brokers.files_of(leader)
        rules = RollRules(
            configs.segment_bytes,
            configs.segment_ms,
            configs.segment_index_bytes,
            configs.index_interval_bytes,
            self._fetch_bytes,
            has_topic_id=topic.topic_id is not None,
            retention_ms=configs.retention_ms,
            files=files,
        )
        return PartitionLog(
            topic_id_partition=partition,
            place=f"{each} at {self._place}",
            segments=(),
            log_start_offset=offsets.start,
            last_stable_offset=offsets.stable,
            leader_epochs=lineage,
            is_internal=topic.internal or topic.name in self._metadata_topics,
            is_compacted=configs.is_compacted,
            topic_id_is_derived=topic.topic_id is None,
            high_watermark=offsets.high_watermark,
            tiered_by_kafka=_tiered(configs, each.topic),
            unsegmented=UnsegmentedLog(
                rules,
                lambda timestamp: self._offset_at(each, timestamp, offsets),
                lambda offset: self._bytes_an_offset(each, offset),
                lambda offset: self._timestamp_at(each, offset),
                lambda ignored: self._committed_offsets(each, ignored),
                None if files is None else partial(closed_sizes, files, partition, has_topic_id=rules.has_topic_id),
                elsewhere.get(leader),
                size,
                max(1, len(topic.partitions[each.partition].replicas)),
            ),
            configs=configs,
        )

    def _offset_at(self, partition: TopicPartition, timestamp: int, offsets: PartitionOffsets) -> int:
        if timestamp < 0:
            # ListOffsets takes negative ones for an OffsetSpec.
            return offsets.start
        if timestamp > INT64_MAX:
            # No record is that late: the moment comes from an absurd timestamp or an unlimited segment.ms.
            return offsets.high_watermark
        with self._lock:
            found = self._client.list_offsets({partition: timestamp})[partition]
        if isinstance(found, PartitionError):
            raise found.as_exception()
        return offsets.high_watermark if found.offset < 0 else found.offset

    def _bytes_an_offset(self, partition: TopicPartition, offset: int) -> float:
        headers = self._sampled(partition, offset)
        offsets = sum(header.last_offset - header.base_offset + 1 for header in headers)
        return sum(header.size for header in headers) / offsets if offsets else 0.0

    def _timestamp_at(self, partition: TopicPartition, offset: int) -> int:
        headers = self._sampled(partition, offset, _ONE_BATCH)
        return headers[0].max_timestamp if headers else -1

    def _sampled(self, partition: TopicPartition, offset: int, most: int = _SAMPLE_BYTES) -> list[BatchHeader]:
        """Return the headers of the batches that one answer of at `most` so many bytes has from `offset` on."""
        position = FetchPosition(partition.topic, partition.partition, offset, most)
        with self._lock:
            [found] = self._client.fetch([position], self._sample, FetchLimits(max_bytes=most)).partitions
            if found.error is not None:
                raise found.error.as_exception()
            # Only whole, a compressed message shows how many offsets it has; a broker sends the first batch whole.
            batches = iterate_batches(found.records, source=str(partition))
            return [read_true_header(batch, source=str(partition)) for _, batch in batches]

    def _committed_offsets(self, partition: TopicPartition, ignored: Collection[str]) -> Mapping[str, int]:
        with self._lock:
            return self._groups.committed().of(partition, ignored)

    def _leadership(self, partition: TopicPartition) -> Leadership | None:
        with self._lock:
            topic = self._metadata([partition.topic]).topics.get(partition.topic)
        if topic is None or partition_problem(topic, partition.partition) != NONE:
            return None
        return leadership(topic, partition.partition)

    def _delete_records(self, partition: TopicPartition, before: int, led: Leadership) -> int | PartitionError:
        with self._lock:
            return self._client.delete_records({partition: before}, {partition: led})[partition]


def open_fetch_source(
    settings: Settings, properties: Mapping[str, str], *, call_seconds: float = CALL_SECONDS
) -> FetchSource:
    """Return the source of the cluster at bootstrap.servers; `properties` are those of its client besides.

    `call_seconds` is as in FetchSource.
    """
    servers = {"bootstrap.servers": settings.bootstrap_servers} if settings.bootstrap_servers else {}
    brokers = BrokerDirectories(settings.broker_log_dirs) if settings.broker_log_dirs else None
    fetch_bytes = settings.copy_window_bytes
    if settings.remote_log_manager_copy_max_bytes_per_second > 0:
        fetch_bytes = min(fetch_bytes, _LIMITED_FETCH_BYTES)
    return FetchSource(
        {**properties, **servers},
        settings.cluster_id,
        fetch_bytes,
        brokers,
        settings.clock_max_skew_ms,
        settings.metadata_topic,
        call_seconds,
    )


def _tiered(configs: TopicConfigs, topic: str) -> str | None:
    return f"Kafka itself tiers {topic} (remote.storage.enable=true)" if configs.is_tiered_by_kafka else None
