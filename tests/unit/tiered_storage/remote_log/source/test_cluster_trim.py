"""A running cluster's brokers delete records: our requests, and the meaning of their answers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import cast

import pytest

from support.command_line import mentions
from tiered_storage.errors import (
    ClusterRefusedError,
    ClusterUnreachableError,
    LineageContradictedError,
    SourceClusterError,
)
from tiered_storage.kafka_wire.cluster import ClusterClient
from tiered_storage.kafka_wire.connections.apis import DELETE_RECORDS, METADATA, OFFSET_FETCH
from tiered_storage.kafka_wire.connections.client_settings import BrokerAddress
from tiered_storage.kafka_wire.connections.error_codes import PartitionError
from tiered_storage.kafka_wire.metadata import (
    Broker,
    ClusterMetadata,
    Group,
    Leadership,
    PartitionMetadata,
    TopicMetadata,
    TopicPartition,
)
from tiered_storage.kafka_wire.rights import ClusterRights, Right
from tiered_storage.remote_log.model import TopicIdPartition
from tiered_storage.remote_log.source import cluster_trim
from tiered_storage.remote_log.source.cluster_trim import (
    OFFSETS_TOPIC,
    ClusterTrim,
    CommittedOffsets,
    ConsumerGroups,
    topics_without,
)
from tiered_storage.remote_log.source.partition_log import UNREAD, LocalSegment, SegmentLocation
from unit.tiered_storage.kafka_wire.scripted_cluster import Scripted, served

ORDERS_0 = TopicIdPartition("cluster", "A" * 22, 0, "orders")
ZERO = TopicPartition("orders", 0)
ONE = TopicPartition("orders", 1)
STAYED: dict[int, tuple[int, int]] = {0: (1, 7)}
LED = Leadership("A" * 22, 1, 5)
SEGMENTS = [LocalSegment(start, start + 99, 1000, SegmentLocation(f"kafka://{start}")) for start in (0, 100)]


@dataclass
class Brokers:
    """Brokers that give one answer, and what they were asked."""

    answer: int | PartitionError
    led: Leadership | None = LED
    asked: list[tuple[TopicPartition, int, Leadership]] = field(default_factory=list)

    def delete_records(self, partition: TopicPartition, before: int, led: Leadership) -> int | PartitionError:
        self.asked.append((partition, before, led))
        return self.answer

    def trimmed_to(self, still_due: Callable[[], int] = lambda: 200) -> int:
        trim = ClusterTrim(lambda _: self.led, self.delete_records)
        return trim.trim(ORDERS_0, SEGMENTS, 200, still_due)


def test_the_log_start_that_the_leader_answers_is_the_new_one() -> None:
    brokers = Brokers(200)
    assert brokers.trimmed_to() == 200
    assert brokers.asked == [(ZERO, 200, LED)]
    # Their own retention may have been ahead.
    assert Brokers(250).trimmed_to() == 250


def test_no_more_is_asked_than_is_still_due() -> None:
    brokers = Brokers(100)
    assert brokers.trimmed_to(lambda: 100) == 100
    assert brokers.asked == [(ZERO, 100, LED)]
    nothing = Brokers(0)
    assert nothing.trimmed_to(lambda: 0) == 0
    assert nothing.asked == []


def test_the_leader_is_the_one_from_before_the_partition_was_planned_again() -> None:
    brokers = Brokers(200)

    def while_it_moves() -> int:
        brokers.led = LED._replace(leader_epoch=6)
        return 200

    brokers.trimmed_to(while_it_moves)
    assert brokers.asked == [(ZERO, 200, LED)]


def test_without_a_leader_nothing_is_asked() -> None:
    brokers = Brokers(200, led=None)
    with pytest.raises(SourceClusterError, match="orders-0"):
        brokers.trimmed_to()
    # A topic that is gone has nothing due.
    assert brokers.trimmed_to(lambda: 0) == 0
    assert brokers.asked == []


def test_if_it_is_in_doubt_nothing_is_asked() -> None:
    brokers = Brokers(200)

    def doubtful() -> int:
        raise LineageContradictedError("an outdated replica")

    with pytest.raises(LineageContradictedError):
        brokers.trimmed_to(doubtful)
    assert brokers.asked == []


def test_a_log_start_before_the_asked_one_is_an_error() -> None:
    with pytest.raises(SourceClusterError, match=r"offset 200 .*log start 150"):
        Brokers(150).trimmed_to()


@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [
        (29, ClusterRefusedError, ["--operation Delete", "--topic orders"]),
        (6, SourceClusterError, ["NOT_LEADER_OR_FOLLOWER", "try again"]),
        (1, ClusterRefusedError, ["OFFSET_OUT_OF_RANGE"]),
        (44, ClusterRefusedError, ["POLICY_VIOLATION", "cleanup.policy"]),
        (7, SourceClusterError, ["REQUEST_TIMED_OUT", "request.timeout.ms"]),
    ],
)
def test_a_refusal_names_the_partition_the_offset_and_the_remedy(
    code: int, kind: type[SourceClusterError], words: list[str]
) -> None:
    with pytest.raises(kind) as refused:
        Brokers(PartitionError("orders", 0, DELETE_RECORDS, code)).trimmed_to()
    assert mentions(str(refused.value), "orders-0", 200, *words)


ALL = ClusterRights("lab", frozenset(Right))


@dataclass
class Coordinators:
    """Brokers that lead the offsets topic by number as (leader, epoch), and change while groups are listed.

    They list `groups`, and answer for each of them with its `offsets`, one after the other.
    """

    led: dict[int, tuple[int, int]] | None
    then: dict[int, tuple[int, int]] | None
    loading: Mapping[TopicPartition, PartitionError] = field(default_factory=dict)
    groups: list[set[Group]] = field(default_factory=lambda: [{Group("listed", "consumer")}] * 2)
    offsets: Mapping[str, list[dict[TopicPartition, int] | PartitionError]] = field(default_factory=dict)
    rights: list[ClusterRights | SourceClusterError] = field(default_factory=lambda: [ALL] * 2)
    """Their answers about the login's rights, one after the other."""
    listed: bool = False
    asked: int = 0

    def cluster_rights(self, *, seconds: float) -> ClusterRights:
        assert (seconds > 0, self.listed) == (True, False)
        answer = self.rights.pop(0)
        if isinstance(answer, SourceClusterError):
            raise answer
        return answer

    def coordinator_problems(self, topic: TopicMetadata, *, seconds: float) -> Mapping[TopicPartition, PartitionError]:
        assert (topic.name, seconds > 0, self.listed) == (OFFSETS_TOPIC, True, False)
        return self.loading

    def metadata(self, topics: Collection[str]) -> ClusterMetadata:
        assert topics == [OFFSETS_TOPIC]
        self.asked += 1
        partitions = {
            number: PartitionMetadata(number, 0, leader, epoch, (1, 2), (1, 2), ())
            for number, (leader, epoch) in (self.led or {}).items()
        }
        topic = TopicMetadata(OFFSETS_TOPIC, "B" * 22, 3 if self.led is None else 0, True, partitions)
        return ClusterMetadata("lab", 1, {1: Broker(1, BrokerAddress("kafka", 1))}, {OFFSETS_TOPIC: topic})

    def list_groups(self) -> frozenset[Group]:
        self.led, self.listed = self.then, True
        return frozenset(self.groups.pop(0))

    def committed_offsets(
        self, group_id: str, topic: TopicMetadata, *, seconds: float
    ) -> Mapping[TopicPartition, int] | PartitionError:
        assert (topic.name, seconds > 0, self.listed) == (OFFSETS_TOPIC, True, True)
        return self.offsets[group_id].pop(0) if group_id in self.offsets else {}

    def read(self) -> CommittedOffsets:
        return ConsumerGroups(lambda: cast("ClusterClient", self)).committed()


@pytest.mark.parametrize(
    "then",
    [{0: (1, 7), 1: (1, 8)}, {0: (1, 7), 1: (2, 8)}, {0: (1, 7)}, None],
    ids=["another broker", "the same broker again", "fewer partitions", "no topic"],
)
def test_groups_that_moved_while_they_were_listed_are_an_error(then: dict[int, tuple[int, int]] | None) -> None:
    with pytest.raises(SourceClusterError, match="moved") as moved:
        Coordinators({0: (1, 7), 1: (2, 7)}, then).read()
    assert moved.value.retriable
    with pytest.raises(SourceClusterError, match="moved between brokers"):
        Coordinators(then, {0: (1, 7), 1: (2, 7)}).read()


def test_groups_that_stayed_are_listed() -> None:
    for led in ({0: (1, 7), 1: (2, 7)}, None):
        coordinators = Coordinators(led, led)
        coordinators.read()
        # Before the list and after it.
        assert coordinators.asked == 2


@pytest.mark.parametrize("which", [0, 1])
def test_groups_of_another_cluster_are_an_error_that_names_both(which: int) -> None:
    rights: list[ClusterRights | SourceClusterError] = [ALL, ALL]
    rights[which] = replace(ALL, cluster_id="elsewhere")
    coordinators = Coordinators(STAYED, STAYED, rights=rights)
    with pytest.raises(ClusterRefusedError) as refused:
        coordinators.read()
    assert mentions(str(refused.value), "elsewhere", "lab", "nothing is deleted", "bootstrap.servers")
    assert not coordinators.listed
    # Some brokers give no id.
    nameless = Coordinators(STAYED, STAYED, rights=[replace(ALL, cluster_id=None), ALL])
    nameless.read()
    assert nameless.listed


@pytest.mark.parametrize("which", [0, 1])
def test_without_the_right_to_see_all_groups_in_either_answer_none_are_listed(which: int) -> None:
    rights: list[ClusterRights | SourceClusterError] = [ALL, ALL]
    rights[which] = replace(ALL, rights=frozenset(Right) - {Right.DESCRIBE})
    coordinators = Coordinators(STAYED, STAYED, rights=rights)
    with pytest.raises(ClusterRefusedError) as refused:
        coordinators.read()
    assert mentions(str(refused.value), "hide consumer groups", "--operation Describe", "--cluster", "to trim")
    assert not coordinators.listed


@pytest.mark.parametrize("kind", [ClusterUnreachableError, ClusterRefusedError])
def test_rights_that_cannot_be_read_are_an_error_that_says_so(kind: type[SourceClusterError]) -> None:
    coordinators = Coordinators(STAYED, STAYED, rights=[kind("kafka:1 is down")])
    with pytest.raises(kind, match=r"rights on the cluster .*kafka:1"):
        coordinators.read()
    assert not coordinators.listed


@pytest.mark.parametrize("code", [14, 16])
def test_a_coordinator_that_still_loads_its_groups_hides_them_and_is_an_error(code: int) -> None:
    led, partition = {0: (1, 7), 1: (2, 7)}, TopicPartition(OFFSETS_TOPIC, 1)
    coordinators = Coordinators(led, led, {partition: PartitionError(*partition, OFFSET_FETCH, code)})
    with pytest.raises(SourceClusterError) as held:
        coordinators.read()
    assert held.value.retriable
    assert mentions(str(held.value), "nothing is deleted", "1 of 2", f"{OFFSETS_TOPIC}-1", "try again")
    assert not coordinators.listed


def test_a_coordinator_that_is_away_is_an_error_before_and_after() -> None:
    here, away = {0: (1, 7)}, {0: (-1, 8)}
    for led, then in ((here, away), (away, here)):
        with pytest.raises(SourceClusterError, match="no coordinator"):
            Coordinators(led, then).read()


def test_of_two_lists_every_group_counts_and_of_two_offsets_the_lower_one() -> None:
    first, second = Group("first", "consumer"), Group("second", "consumer")
    coordinators = Coordinators(
        STAYED,
        STAYED,
        groups=[{first}, {second}],
        offsets={"first": [{ZERO: 900}, {ZERO: 100}], "second": [{ZERO: 300}, {ZERO: 800}]},
    )
    committed = coordinators.read()
    assert committed.of(ZERO) == {"first": 100, "second": 300}
    assert committed.of(ONE) == {"first": UNREAD, "second": UNREAD}


def test_an_offset_that_only_one_of_two_answers_has_keeps_its_partition_alone() -> None:
    coordinators = Coordinators(STAYED, STAYED, offsets={"listed": [{ZERO: 100, ONE: 100}, {ZERO: 100}]})
    committed = coordinators.read()
    with pytest.raises(SourceClusterError) as contradicted:
        committed.of(ONE)
    assert contradicted.value.retriable
    assert mentions(str(contradicted.value), "orders-1", "listed", "the next run")
    assert committed.of(ONE, ["listed"]) == {"listed": 100}
    assert committed.of(ZERO) == {"listed": 100}


@pytest.mark.parametrize("at", [0, 1])
def test_a_group_whose_offsets_one_answer_refuses_keeps_everything_unless_it_is_named(at: int) -> None:
    answers: list[dict[TopicPartition, int] | PartitionError] = [{ZERO: 100}]
    answers.insert(at, PartitionError(OFFSETS_TOPIC, 0, OFFSET_FETCH, 30))
    committed = Coordinators(STAYED, STAYED, offsets={"listed": answers}).read()
    with pytest.raises(ClusterRefusedError) as unknown:
        committed.of(ONE)
    assert mentions(str(unknown.value), "group listed", "local.retention.ignored.groups", "OffsetFetch")
    assert committed.of(ONE, ["listed"]) == {}


def test_a_coordinator_that_is_lost_is_waited_for_once() -> None:
    groups: list[set[Group]] = [{Group(f"group-{number}", "consumer") for number in range(100)}] * 2
    lost = PartitionError(OFFSETS_TOPIC, 0, OFFSET_FETCH, 13, "connection refused")
    coordinators = Coordinators(STAYED, STAYED, groups=groups, offsets={"group-0": [lost], "group-1": [lost]})
    with pytest.raises(SourceClusterError) as unknown:
        coordinators.read()
    assert unknown.value.retriable
    assert mentions(str(unknown.value), "nothing is deleted", "group-0", "connection refused")
    assert coordinators.offsets["group-1"] == [lost]


def test_a_group_that_is_listed_where_no_offsets_topic_is_keeps_everything() -> None:
    committed = Coordinators(None, None).read()
    with pytest.raises(SourceClusterError, match="listed"):
        committed.of(ZERO)


def test_topics_without_a_right_are_those_whose_operations_lack_it() -> None:
    with served(Scripted(operations=1 << Right.READ | 1 << Right.DESCRIBE)) as cluster:
        assert topics_without(Right.READ, cluster, ["orders"]) == []
        assert topics_without(Right.DELETE, cluster, ["orders"]) == ["orders"]
        assert topics_without(Right.DELETE, cluster, []) == []
        assert topics_without(Right.DELETE, cluster, ["gone", "orders"]) == ["orders"]


@pytest.mark.parametrize(("code", "lacking"), [(3, []), (29, []), (0, ["orders"])])
def test_a_topic_that_the_login_does_not_see_lacks_no_other_right(code: int, lacking: list[str]) -> None:
    with served(Scripted(topic_error=code)) as cluster:
        assert topics_without(Right.DELETE, cluster, ["orders"]) == lacking


def test_rights_on_topics_that_cannot_be_read_are_an_error_that_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    with served(Scripted(topic_error=5)) as cluster:
        with pytest.raises(ClusterUnreachableError, match=r"rights on orders .*LEADER_NOT_AVAILABLE"):
            topics_without(Right.DELETE, cluster, ["orders"])
        found = cluster.metadata()
        monkeypatch.setattr(cluster, "metadata", lambda *_, **__: replace(found, topics={}))
        with pytest.raises(ClusterUnreachableError, match=r"rights on orders"):
            topics_without(Right.DELETE, cluster, ["orders"])
    with served(Scripted(silent={(1, METADATA.key)})) as cluster:
        monkeypatch.setattr(cluster_trim, "_SECONDS", 0.3)
        with pytest.raises(ClusterUnreachableError, match=r"rights on topics .*Metadata"):
            topics_without(Right.DELETE, cluster, ["orders"])
