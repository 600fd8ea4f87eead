"""Moves the log start of a running cluster's partitions, by DeleteRecords (KIP-107), and reports how far groups have
read.

All groups count, active or not. The list of groups must be complete: a broker hides those that the login may not
describe, those whose coordinator is away, and those that it has not begun to load as their coordinator. So all of that
is looked at, and a list that may be incomplete is an error.

No checksum covers an answer, and a changed bit could let a deletion remove records that a group has yet to read. So
brokers are asked twice: every group of either list counts, and of two offsets the lower one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Final

from tiered_storage.errors import ClusterRefusedError, ClusterUnreachableError, SourceClusterError
from tiered_storage.kafka_wire.cluster import ClusterClient
from tiered_storage.kafka_wire.connections.error_codes import (
    NONE,
    TO_TRIM,
    TOPIC_AUTHORIZATION_FAILED,
    UNKNOWN_TOPIC_OR_PARTITION,
    PartitionError,
    error_name,
    grant,
)
from tiered_storage.kafka_wire.metadata import (
    ClusterMetadata,
    Group,
    Leadership,
    TopicMetadata,
    TopicPartition,
    leadership,
    partition_problem,
)
from tiered_storage.kafka_wire.rights import Right
from tiered_storage.remote_log.model import TopicIdPartition
from tiered_storage.remote_log.source.partition_log import UNREAD, LocalSegment

OFFSETS_TOPIC: Final = "__consumer_offsets"
SHARE: Final = "share"
_SECONDS: Final = 30.0
_UNKNOWN: Final = "what consumer groups have read is unknown, so nothing is deleted at the brokers"
_LASTS_SECONDS: Final = 10.0
"""How long an answer serves: a run over thousands of partitions need not ask thousands of groups for each."""


@dataclass(frozen=True, slots=True)
class ClusterTrim:
    """The LocalTrim of brokers.

    `leadership` asks which broker leads a partition now (None: no broker). `delete_records` deletes its records before
    an offset, unless another broker leads it by then, and returns the log start afterwards; it asks once.
    """

    leadership: Callable[[TopicPartition], Leadership | None]
    delete_records: Callable[[TopicPartition, int, Leadership], int | PartitionError]

    def ensure_removable(self, segments: Sequence[LocalSegment]) -> None:
        """As LocalTrim: brokers know where their files lie."""

    def trim(
        self,
        partition: TopicIdPartition,
        segments: Sequence[LocalSegment],
        new_local_start: int,
        still_due: Callable[[], int] | None = None,
    ) -> int:
        """As LocalTrim, but producers can write meanwhile, since a broker serves the partition.

        The leader answers once all replicas that run have deleted the records. Raises SourceClusterError if it refuses,
        answers with an earlier log start, or no longer leads in the epoch that it led in before `still_due` was asked.
        """
        asked = TopicPartition(partition.topic, partition.partition)
        led = self.leadership(asked)
        limit = new_local_start if still_due is None else still_due()
        if not segments or limit <= segments[0].base_offset:
            return segments[0].base_offset if segments else new_local_start
        if led is None:
            raise SourceClusterError(
                f"{asked}: the partition had no leader, so nothing was deleted: the next run tries again"
            )
        answer = self.delete_records(asked, limit, led)
        if isinstance(answer, PartitionError):
            refused = answer.as_exception()
            raise type(refused)(
                f"{refused}; records before offset {limit} were to be deleted, the next run looks again"
            )
        if answer < limit:
            raise SourceClusterError(
                f"{asked}: DeleteRecords before offset {limit} was answered with the log start {answer}: the next run "
                "looks again"
            )
        return answer


@dataclass(frozen=True, slots=True)
class CommittedOffsets:
    """The offsets that groups have committed, by partition and group, and why those of other groups are unknown.

    `contradicted` has the groups for which only one of two answers has an offset of a partition.
    """

    by_partition: Mapping[TopicPartition, Mapping[str, int]] = field(default_factory=dict)
    unknown: Mapping[str, SourceClusterError] = field(default_factory=dict)
    contradicted: Mapping[TopicPartition, AbstractSet[str]] = field(default_factory=dict)
    _by_topic: dict[str, set[str]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        """Note the groups of each topic: thousands of its partitions may be asked for."""
        for each, groups in self.by_partition.items():
            self._by_topic.setdefault(each.topic, set()).update(groups)

    def of(self, partition: TopicPartition, ignored: Collection[str] = ()) -> Mapping[str, int]:
        """Return those of one partition, by group; UNREAD for a group that has committed other partitions of its topic.

        Raises SourceClusterError if those of any group that is not `ignored` are unknown or contradicted.
        """
        for group, why in sorted(self.unknown.items()):
            if group not in ignored:
                raise type(why)(
                    f"the offsets of group {group} are unknown, so nothing is deleted at the brokers: {why}; or name "
                    "it in local.retention.ignored.groups if it may lose records"
                )
        for group in sorted(self.contradicted.get(partition, set()) - set(ignored)):
            raise SourceClusterError(
                f"two answers contradict each other: only one has an offset of {partition} that group {group} has "
                "committed. So nothing of it is deleted at the brokers: the next run asks again"
            )
        unread = dict.fromkeys(self._by_topic.get(partition.topic, ()), UNREAD)
        return {**unread, **self.by_partition.get(partition, {})}


class ConsumerGroups:
    """The groups of one cluster, as they were at most some seconds ago. For one thread at a time."""

    def __init__(self, client: Callable[[], ClusterClient], now: Callable[[], float] = time.monotonic) -> None:
        """Ask nothing yet."""
        self._client = client
        self._now = now
        self._answer: CommittedOffsets | SourceClusterError | None = None
        self._answered = 0.0

    def committed(self) -> CommittedOffsets:
        """Return what every group has committed. Raises SourceClusterError if groups may be hidden."""
        if self._answer is None or self._now() - self._answered > _LASTS_SECONDS:
            try:
                self._answer = self._read()
            except SourceClusterError as error:
                # Each of thousands of partitions would wait for it again.
                self._answer = error
            self._answered = self._now()
        if isinstance(self._answer, SourceClusterError):
            raise self._answer
        return self._answer

    def _read(self) -> CommittedOffsets:
        client = self._client()
        found = client.metadata([OFFSETS_TOPIC])
        # Twice: no checksum covers an answer, and one wrong bit must not pass for a right.
        _ensure_groups_are_shown(client, found)
        _ensure_groups_are_shown(client, found)
        before = _coordinators(found)
        # Check before listing: a coordinator that has loaded its groups keeps them for as long as it leads.
        _ensure_groups_are_loaded(client, found)
        _ensure_groups_are_loaded(client, found)
        groups = client.list_groups() | client.list_groups()
        # A group that moved meanwhile may be in no list: its old coordinator lost it, its new one was asked earlier.
        if _coordinators(client.metadata([OFFSETS_TOPIC])) != before:
            raise SourceClusterError(
                "consumer groups moved between brokers while they were listed: the next run looks again"
            )
        return _committed(client, found.topics.get(OFFSETS_TOPIC), groups)


def _ensure_groups_are_shown(client: ClusterClient, ours: ClusterMetadata) -> None:
    """Raise ClusterRefusedError if brokers may hide groups from this login, or two brokers have two clusters."""
    try:
        found = client.cluster_rights(seconds=_SECONDS)
    except SourceClusterError as error:
        raise type(error)(f"the rights on the cluster cannot be read: {error}") from error
    if None not in {ours.cluster_id, found.cluster_id} and found.cluster_id != ours.cluster_id:
        raise ClusterRefusedError(
            f"bootstrap.servers leads to two clusters: the consumer groups are those of {found.cluster_id}, and "
            f"records would be deleted in {ours.cluster_id}. So nothing is deleted at the brokers: let "
            "bootstrap.servers and what the brokers advertise (advertised.listeners) lead to one cluster"
        )
    if Right.DESCRIBE not in found.rights:
        raise ClusterRefusedError(
            f"brokers may hide consumer groups from this login: {grant('Describe', '--cluster', TO_TRIM)}"
        )


def _ensure_groups_are_loaded(client: ClusterClient, metadata: ClusterMetadata) -> None:
    """Raise SourceClusterError if some coordinator does not serve its groups yet, or no longer."""
    topic = metadata.topics.get(OFFSETS_TOPIC)
    if topic is None or not topic.partitions:
        return
    problems = list(client.coordinator_problems(topic, seconds=_SECONDS).values())
    if problems:
        first = problems[0].as_exception()
        raise type(first)(
            f"{_UNKNOWN}: at least {len(problems)} of {len(topic.partitions)} partitions of {OFFSETS_TOPIC} have no "
            f"coordinator that serves them: {first}"
        )


def topics_without(right: Right, client: ClusterClient, topics: Collection[str]) -> list[str]:
    """Return those of `topics` on which the login lacks a right, as far as the brokers report it.

    Raises SourceClusterError.
    """
    if not topics:
        return []
    try:
        found = client.metadata(topics, with_rights=True, seconds=_SECONDS).topics
    except SourceClusterError as error:
        raise type(error)(f"the rights on topics cannot be read: {error}") from error
    lacking: list[str] = []
    for topic in sorted(topics):
        if topic not in found:
            raise ClusterUnreachableError(f"the rights on {topic} cannot be read: the answer lacks the topic")
        code = found[topic].error_code
        if code in {TOPIC_AUTHORIZATION_FAILED, UNKNOWN_TOPIC_OR_PARTITION}:
            continue
        if code != NONE:
            raise ClusterUnreachableError(f"the rights on {topic} cannot be read: {error_name(code)}")
        if right not in found[topic].rights:
            lacking.append(topic)
    return lacking


def _coordinators(metadata: ClusterMetadata) -> Mapping[int, Leadership]:
    """Return who leads each partition of the offsets topic, and thus lists its groups; empty if there is no such topic.

    Raises SourceClusterError if a partition has no leader.
    """
    found = metadata.topics.get(OFFSETS_TOPIC)
    if found is None or found.error_code == UNKNOWN_TOPIC_OR_PARTITION:
        # No group has ever committed anything.
        return {}
    if found.error_code == TOPIC_AUTHORIZATION_FAILED:
        raise ClusterRefusedError(
            "whether every group has a coordinator is unknown: "
            f"{grant('Describe', f'--topic {OFFSETS_TOPIC}', TO_TRIM)}"
        )
    problems = {found.error_code, *(partition_problem(found, number) for number in found.partitions)} - {NONE}
    if problems:
        raise SourceClusterError(
            f"{OFFSETS_TOPIC}: {', '.join(sorted(map(error_name, problems)))}: some consumer groups have no "
            "coordinator, so what they have read is unknown: check that all brokers run"
        )
    return {number: leadership(found, number) for number in found.partitions}


def _committed(client: ClusterClient, offsets_topic: TopicMetadata | None, groups: Iterable[Group]) -> CommittedOffsets:
    by_partition: dict[TopicPartition, dict[str, int]] = {}
    unknown: dict[str, SourceClusterError] = {}
    contradicted: dict[TopicPartition, set[str]] = {}
    for group_id, protocol in sorted(groups):
        if protocol == SHARE:
            unknown[group_id] = ClusterRefusedError("it is a share group, whose offsets Remote Log cannot read")
            continue
        if not group_id:
            unknown[group_id] = ClusterRefusedError("it has no name")
            continue
        if offsets_topic is None or not offsets_topic.partitions:
            unknown[group_id] = SourceClusterError(f"it was listed, and there is no {OFFSETS_TOPIC}")
            continue
        try:
            offsets = _asked_twice(client, offsets_topic, group_id)
        except ClusterRefusedError as error:
            unknown[group_id] = error
            continue
        for each in set[TopicPartition]().union(*offsets):
            found = [answer[each] for answer in offsets if each in answer]
            by_partition.setdefault(each, {})[group_id] = min(found)
            if len(found) < len(offsets):
                contradicted.setdefault(each, set()).add(group_id)
    return CommittedOffsets(by_partition, unknown, contradicted)


def _asked_twice(
    client: ClusterClient, offsets_topic: TopicMetadata, group_id: str
) -> list[Mapping[TopicPartition, int]]:
    """Return two answers about a group.

    Raises ClusterRefusedError if its offsets may not be read, and SourceClusterError if its coordinator is lost: the
    other groups of that one would wait for it as long.
    """
    answers: list[Mapping[TopicPartition, int]] = []
    for _ in range(2):
        answer = client.committed_offsets(group_id, offsets_topic, seconds=_SECONDS)
        if isinstance(answer, PartitionError):
            error = answer.as_exception()
            raise SourceClusterError(f"{_UNKNOWN}, of group {group_id}: {answer}") if error.retriable else error
        answers.append(answer)
    return answers
