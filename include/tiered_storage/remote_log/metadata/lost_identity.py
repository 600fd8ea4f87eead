"""Recognises a local log whose topic is remote already under other ids, because the file with its id was lost.

Without partition.metadata a topic's id is derived from its name. Without meta.properties a cluster's id is derived from
the directory's path. Under a derived id the whole topic would be copied again, as another topic. Kafka never assigns a
topic id twice, so a topic id that is remote under another cluster's id is the same topic, or that of a cluster whose
disks were copied.

A running cluster reports its own id. If nothing was ever copied from it, and something was from another one, then
bootstrap.servers may lead to the wrong cluster: no topic of it is begun, or the first would make it a known one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import chain

from tiered_storage.kafka_log.files.meta_properties import META_PROPERTIES
from tiered_storage.kafka_log.files.partition_metadata import PARTITION_METADATA
from tiered_storage.remote_log.metadata.remote_log_metadata_manager import RemoteLogMetadataManager
from tiered_storage.remote_log.model import SegmentState, TopicIdPartition
from tiered_storage.remote_log.source.log_directory_source import derived_topic_id
from tiered_storage.remote_log.source.partition_log import NamedPartition, PartitionLog, UnreadablePartition


class LostIdentities:
    """Compares local logs with the ids of `partitions`, which are all that `metadata` have."""

    def __init__(
        self,
        partitions: Iterable[TopicIdPartition],
        metadata: RemoteLogMetadataManager,
        *,
        is_cluster_named: bool = True,
    ) -> None:
        """Read no segment yet: most logs need none. `is_cluster_named`: the settings say which cluster is meant."""
        self._metadata = metadata
        self._is_cluster_named = is_cluster_named
        self._clusters: set[str] = set()
        self._by_name: dict[str, dict[tuple[str, str], list[TopicIdPartition]]] = {}
        self._by_topic_id: dict[str, dict[str, list[TopicIdPartition]]] = {}
        for each in partitions:
            incarnation = each.cluster_id, each.topic_id
            self._clusters.add(each.cluster_id)
            self._by_name.setdefault(each.topic, {}).setdefault(incarnation, []).append(each)
            self._by_topic_id.setdefault(each.topic_id, {}).setdefault(each.cluster_id, []).append(each)

    def recognised(
        self, logs: Iterable[PartitionLog | UnreadablePartition], *, unless_remote: bool = False
    ) -> Iterator[PartitionLog | UnreadablePartition]:
        """Yield `logs`, with those that lost an id as partitions that cannot be read.

        Their name decides whether they are tiered: their derived ids have other decisions, or none. With
        `unless_remote` it passes on topics that have remote segments under their own ids too.
        """
        for log in logs:
            if isinstance(log, UnreadablePartition):
                yield log
                continue
            partition, lost = log.topic_id_partition, self.why_lost(log)
            if lost is None or (unless_remote and self.is_remote(partition)):
                yield log
            else:
                yield UnreadablePartition(str(partition), lost)

    def why_lost(self, log: PartitionLog | NamedPartition) -> str | None:
        """Return the evidence that the topic of `log` is remote under other ids, and what to do; None without any."""
        if other := self._why_another_cluster(log):
            return other
        if not log.topic_id_is_derived:
            return self._why_cluster_id_lost(log)
        return self._why_topic_id_lost(log) or self._why_both_lost(log)

    def is_remote(self, partition: TopicIdPartition) -> bool:
        """Return whether the topic of `partition` has finished remote segments under its own ids."""
        return self._is_finished(self._by_topic_id.get(partition.topic_id, {}).get(partition.cluster_id, ()))

    def why_unknown_cluster(self, log: PartitionLog) -> str | None:
        """Return why nothing of a running cluster is copied: all copies so far are of another cluster."""
        so_far = self._copied_so_far if self._is_of_unknown_cluster(log) else None
        return None if so_far is None else self._of_unknown_cluster(log, so_far)

    def _why_another_cluster(self, log: PartitionLog | NamedPartition) -> str | None:
        """Return why a running cluster may not be the one that the topic was copied from so far."""
        if not self._is_of_unknown_cluster(log):
            return None
        for partitions in self._by_name.get(log.topic_id_partition.topic, {}).values():
            if self._is_finished(partitions):
                return self._of_unknown_cluster(log, partitions[0])
        return None

    @cached_property
    def _copied_so_far(self) -> TopicIdPartition | None:
        """A partition with finished segments, of whichever cluster."""
        incarnations = chain.from_iterable(each.values() for each in self._by_name.values())
        return next((each for each in chain.from_iterable(incarnations) if self._is_finished([each])), None)

    def _is_of_unknown_cluster(self, log: PartitionLog | NamedPartition) -> bool:
        """Return whether a running cluster has the log that no setting names, and that nothing was copied from."""
        if self._is_cluster_named or log.topic_id_partition.cluster_id in self._clusters:
            return False
        return isinstance(log, PartitionLog) and log.unsegmented is not None

    @staticmethod
    def _of_unknown_cluster(log: PartitionLog | NamedPartition, so_far: TopicIdPartition) -> str:
        own = log.topic_id_partition
        return (
            f"{log.place} belongs to the cluster {own.cluster_id}, and topic {so_far.topic} was copied from the "
            f"cluster {so_far.cluster_id} so far: correct bootstrap.servers. If this cluster is meant, set cluster.id "
            f"to {own.cluster_id}: its topics then get remote logs of their own"
        )

    def _why_topic_id_lost(self, log: PartitionLog | NamedPartition) -> str | None:
        own = log.topic_id_partition
        for (cluster_id, topic_id), partitions in self._by_name.get(own.topic, {}).items():
            if cluster_id == own.cluster_id and topic_id != own.topic_id and self._is_finished(partitions):
                return (
                    f"{log.place}/{PARTITION_METADATA} is missing. The remote log has topic {own.topic} under the "
                    f"id {topic_id}; without the file all would be copied again under the derived id {own.topic_id}. "
                    f"Put the broker's file back (two lines: 'version: 0' and 'topic_id: {topic_id}'). If this is "
                    "another topic of that name, write an id of its own there ('kafka-storage random-uuid' makes one)"
                )
        return None

    def _why_cluster_id_lost(self, log: PartitionLog | NamedPartition) -> str | None:
        own = log.topic_id_partition
        for cluster_id, partitions in self._by_topic_id.get(own.topic_id, {}).items():
            if cluster_id != own.cluster_id and self._is_finished(partitions) and not self.is_remote(own):
                return self._of_another_cluster(log, cluster_id)
        return None

    def _why_both_lost(self, log: PartitionLog | NamedPartition) -> str | None:
        own = log.topic_id_partition
        if not log.cluster_id_is_derived:
            return None
        for (cluster_id, topic_id), partitions in self._by_name.get(own.topic, {}).items():
            if cluster_id == own.cluster_id or topic_id != derived_topic_id(cluster_id, own.topic):
                continue
            if self._is_finished(partitions) and not self.is_remote(own):
                return self._of_another_cluster(log, cluster_id)
        return None

    @staticmethod
    def _of_another_cluster(log: PartitionLog | NamedPartition, cluster_id: str) -> str:
        own = log.topic_id_partition
        found = "is missing" if log.cluster_id_is_derived else "or the setting cluster.id names another"
        return (
            f"The remote log has topic {own.topic} ({own.topic_id}) under the cluster id {cluster_id}, and the "
            f"{META_PROPERTIES} beside {log.place} {found}: all would be copied again under {own.cluster_id}. "
            f"Put the broker's file back, or set cluster.id to {cluster_id}. If this is another cluster, as "
            "after a copy of the disks, give it a store and metadata of its own (rsm.config.url, rlmm.config.url)"
        )

    def _is_finished(self, partitions: Iterable[TopicIdPartition]) -> bool:
        finished = SegmentState.COPY_SEGMENT_FINISHED
        return any(finished in self._metadata.count_remote_log_segments(each) for each in partitions)
