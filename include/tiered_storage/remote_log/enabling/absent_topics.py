"""Topics with remote data that their running cluster no longer shows: deleted, or out of this login's sight.

A name that the cluster shows with another topic id was deleted and created again. A name that it does not show at all
may only be hidden from this login: a topic that cannot be seen is not a deleted topic. Log directories prove neither,
since another broker may have the topic, or an older incarnation of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tiered_storage.clock import as_date
from tiered_storage.remote_log.metadata.remote_log_metadata_manager import Topic
from tiered_storage.remote_log.model import Finding, TopicIdPartition
from tiered_storage.remote_log.source.partition_log import NamedPartition, PartitionLog, UnreadablePartition

REPLACED_SINCE = "replaced.since.ms"
"""The property of a topic with the time since when its cluster shows another topic id under its name."""


@dataclass(frozen=True, slots=True)
class AbsentTopic:
    """The remote partitions of an incarnation of a topic that its cluster does not show.

    `new_id` is the topic id that the name has there now; None if the cluster does not show the name either.
    """

    partitions: tuple[TopicIdPartition, ...]
    new_id: str | None

    @property
    def first(self) -> TopicIdPartition:
        """One partition of the topic, which names the incarnation."""
        return self.partitions[0]

    def finding(self, topic: Topic, grace_ms: int) -> Finding:
        """Return a notice about it for the user; `topic` is the decision on the old incarnation."""
        name, old = self.first.topic, self.first.topic_id
        by_hand = f"'tiered-storage delete-topic {name} --topic-id {old}' deletes them"
        if self.new_id is None:
            return Finding(
                name, f"the cluster no longer shows the topic ({old}): its remote data stay, until {by_hand}"
            )
        unless = "unless that run sees many such topics"
        again = f"the topic ({old}) was deleted, and created again ({self.new_id}): the old one's remote data"
        if not topic.remote_deletion_allowed:
            return Finding(name, f"{again} stay, since remote deletion is not allowed for it: once it is, {by_hand}")
        since = topic.properties.get(REPLACED_SINCE)
        if since is None:
            return Finding(name, f"{again} are deleted {grace_ms} ms after the next run of expire, {unless}")
        over = as_date(int(since) + grace_ms)
        return Finding(name, f"{again} are deleted by the first run of expire after {over}, {unless}")


class ShownTopics:
    """What a running cluster shows: the topic ids by name; built up partition by partition."""

    def __init__(self, *, shows_all: bool) -> None:
        """`shows_all`: whether all topics of the cluster will be added that this login may see."""
        self._shows_all = shows_all
        self._ids: dict[tuple[str, str], str] = {}
        self._unreadable: set[str] = set()

    def add(self, found: PartitionLog | NamedPartition | UnreadablePartition) -> None:
        """Add a partition; pass it over if its cluster did not describe its topic."""
        if isinstance(found, UnreadablePartition):
            self._unreadable.add(found.topic)
        elif found.configs is not None and not found.topic_id_is_derived:
            partition = found.topic_id_partition
            self._ids[partition.cluster_id, partition.topic] = partition.topic_id

    def shows(self, cluster_id: str, topic_id: str, name: str) -> bool:
        """Return whether the cluster shows this incarnation of a topic."""
        return self._ids.get((cluster_id, name)) == topic_id

    def absent(self, remote: Iterable[TopicIdPartition]) -> list[AbsentTopic]:
        """Return the incarnations among `remote` that are not shown, by name; those of other clusters are left out."""
        by_incarnation: dict[tuple[str, str], list[TopicIdPartition]] = {}
        for each in remote:
            if self._is_absent(each):
                by_incarnation.setdefault((each.cluster_id, each.topic_id), []).append(each)
        found = [
            AbsentTopic(tuple(partitions), self._ids.get((partitions[0].cluster_id, partitions[0].topic)))
            for partitions in by_incarnation.values()
        ]
        return sorted(found, key=lambda each: each.first)

    def _is_absent(self, partition: TopicIdPartition) -> bool:
        if not partition.is_named or partition.topic in self._unreadable:
            return False
        shown = self._ids.get((partition.cluster_id, partition.topic))
        if shown is not None:
            return shown != partition.topic_id
        clusters = {cluster_id for cluster_id, _ in self._ids}
        return self._shows_all and (not clusters or partition.cluster_id in clusters)
