"""A cluster: its metadata, and requests that find their partitions' leaders.

A request goes to the leader that the metadata name, over one connection a broker that is kept open. After an error that
shows that the leader moved, or a lost connection, the metadata are read again and the request is repeated, at the new
leader and after growing pauses, until the call's deadline. If a partition still fails then, its answer is the error;
the other partitions have their answers. DeleteRecords is never repeated: another leader may have other records. A call
raises only for a failure of the whole cluster: no broker answers, or a login is refused.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, TypeVar

from tiered_storage.clock import Clock
from tiered_storage.errors import ClusterRefusedError, MalformedAnswerError, SourceClusterError
from tiered_storage.kafka_wire.brokers import FAILED, Brokers, telling
from tiered_storage.kafka_wire.connections.apis import (
    DESCRIBE_CLUSTER,
    DESCRIBE_CONFIGS,
    DESCRIBE_LOG_DIRS,
    DESCRIBE_QUORUM,
    LIST_GROUPS,
    METADATA,
)
from tiered_storage.kafka_wire.connections.client_settings import parse_client_settings
from tiered_storage.kafka_wire.connections.connection import Connection
from tiered_storage.kafka_wire.connections.error_codes import (
    FENCED_LEADER_EPOCH,
    INCONSISTENT_TOPIC_ID,
    MOVED,
    NETWORK_EXCEPTION,
    NONE,
    PartitionError,
)
from tiered_storage.kafka_wire.connections.transport import Deadline
from tiered_storage.kafka_wire.controller_clock import (
    ControllerClock,
    describe_quorum_request,
    read_controller_clock,
)
from tiered_storage.kafka_wire.fetch import FetchAnswer, FetchBuffer, FetchLimits, FetchPosition, IsolationLevel
from tiered_storage.kafka_wire.fetch_layout import EpochEnd
from tiered_storage.kafka_wire.fetcher import Fetcher
from tiered_storage.kafka_wire.metadata import (
    ClusterMetadata,
    Group,
    Leadership,
    TopicMetadata,
    TopicPartition,
    list_groups_request,
    read_groups,
)
from tiered_storage.kafka_wire.partition_requests import (
    CommittedOffsetsOfGroup,
    DeleteRecords,
    ListedOffset,
    ListOffsets,
    OffsetsForLeaderEpochs,
    PartitionRequest,
    coordinating_partition,
    groups_of_partitions,
    log_dirs_request,
    read_log_sizes,
)
from tiered_storage.kafka_wire.rights import ClusterRights, describe_cluster_request, read_cluster_rights
from tiered_storage.kafka_wire.topic_configs import (
    TOPICS_AT_ONCE,
    TopicConfigs,
    describe_configs_request,
    read_topic_configs,
)

CALL_SECONDS = 120.0
"""For a call with all its repetitions."""
CLOCK_SECONDS = 10.0
"""For the controller's clock, which no work depends on."""
_QUESTION_SECONDS = 5.0
"""The least time (s) for one of many questions."""

Found = TypeVar("Found")


class ClusterClient:
    """The cluster of `brokers`. For one thread; nothing is opened before the first call.

    Calls take `seconds` for everything. They raise ClusterUnreachableError or MalformedAnswerError if no broker answers
    in time; ClusterRefusedError for a refused login, certificate or version; ConfigurationError for an unreadable file
    or invalid arguments.
    """

    def __init__(self, brokers: Brokers) -> None:
        """Take over `brokers`: close them by closing this."""
        self.settings = brokers.settings
        self._brokers = brokers
        self._fetcher = Fetcher(brokers)

    @classmethod
    def by_properties(cls, properties: Mapping[str, str], cluster_id: str | None = None) -> Self:
        """Return the client of the cluster that `properties` lead to, by librdkafka's names.

        `cluster_id` is as in Brokers. Raises ConfigurationError for properties that are invalid or refused.
        """
        settings = parse_client_settings(properties, "the properties of the cluster's client")
        return cls(Brokers(settings, cluster_id=cluster_id))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection."""
        self._brokers.close()

    def metadata(
        self, topics: Collection[str] | None = None, *, with_rights: bool = False, seconds: float = CALL_SECONDS
    ) -> ClusterMetadata:
        """Return the brokers, and `topics` by name, None: every topic that the login may describe.

        `with_rights` also asks for the login's rights on them.
        """
        return self._brokers.read_metadata(topics, self._brokers.deadline(seconds), with_rights=with_rights)

    def cluster_rights(self, *, seconds: float = CALL_SECONDS) -> ClusterRights:
        """Return the login's rights on the cluster, from any broker."""
        brokers, deadline = self._brokers, self._brokers.deadline(seconds)

        def ask(connection: Connection) -> ClusterRights:
            message = describe_cluster_request(connection.version(DESCRIBE_CLUSTER))
            return connection.exchange(DESCRIBE_CLUSTER, message, brokers.within(deadline), read_cluster_rights)

        return brokers.ask_any("described the cluster", ask, deadline)

    def controller_clock(self, clock: Clock, *, seconds: float = CLOCK_SECONDS) -> ControllerClock | None:
        """Return what the active controller's clock shows, from any broker, beside this machine's `clock`.

        None if brokers do not show it: to a login without Describe on the cluster, before Kafka 3.3, by ZooKeeper,
        while the controller changes, or in `seconds`.
        """
        brokers, deadline = self._brokers, self._brokers.deadline(seconds)

        def ask(connection: Connection) -> ControllerClock | None:
            try:
                message = describe_quorum_request(connection.version(DESCRIBE_QUORUM))
            except ClusterRefusedError:
                return None
            before = clock()
            found = connection.exchange(DESCRIBE_QUORUM, message, brokers.within(deadline), read_controller_clock)
            return None if found is None else ControllerClock(*found, before, clock())

        with suppress(SourceClusterError):
            return brokers.ask_any("described the quorum", ask, deadline)
        return None

    def topic_configs(self, topics: Sequence[str], *, seconds: float = CALL_SECONDS) -> dict[str, TopicConfigs | str]:
        """Return the settings of each of `topics`, or why they are unknown, from any broker."""
        brokers, deadline = self._brokers, self._brokers.deadline(seconds)
        found: dict[str, TopicConfigs | str] = {}
        for first in range(0, len(topics), TOPICS_AT_ONCE):
            some = topics[first : first + TOPICS_AT_ONCE]

            def ask(connection: Connection, some: Sequence[str] = some) -> dict[str, TopicConfigs | str]:
                message = describe_configs_request(connection.version(DESCRIBE_CONFIGS), some)
                answer = connection.exchange(DESCRIBE_CONFIGS, message, brokers.within(deadline), read_topic_configs)
                if answer.keys() != set(some):
                    raise MalformedAnswerError(f"{connection.address}: {DESCRIBE_CONFIGS} answers for other topics")
                return answer

            found |= brokers.ask_any("described the settings of topics", ask, deadline)
        return found

    def list_offsets(
        self,
        wanted: Mapping[TopicPartition, int],
        *,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
        seconds: float = CALL_SECONDS,
    ) -> dict[TopicPartition, ListedOffset | PartitionError]:
        """Return an offset of each partition: by an OffsetSpec, or the first with a timestamp (ms) at or after the
        given one.
        """
        return self._ask_leaders(ListOffsets(wanted, isolation), seconds)

    def offsets_for_leader_epochs(
        self, wanted: Mapping[TopicPartition, int], *, seconds: float = CALL_SECONDS
    ) -> dict[TopicPartition, EpochEnd | PartitionError]:
        """Return of each partition the largest leader epoch up to that of `wanted`, and the offset where it ends."""
        return self._ask_leaders(OffsetsForLeaderEpochs(wanted), seconds)

    def delete_records(
        self,
        before: Mapping[TopicPartition, int],
        led: Mapping[TopicPartition, Leadership] | None = None,
        *,
        seconds: float = CALL_SECONDS,
    ) -> dict[TopicPartition, int | PartitionError]:
        """Delete the records of each partition before an offset; return the log starts afterwards.

        Sends one request to each leader, and only if fresh metadata agree with `led`: at another leader, or in a topic
        that was created again, the same offsets may be other records.
        """
        request = DeleteRecords(before)
        deadline = self._brokers.deadline(seconds)
        self._brokers.read_metadata({each.topic for each in before}, deadline)
        changed = {each: self._change(each, expected) for each, expected in (led or {}).items()}
        refused = {
            each: PartitionError(each.topic, each.partition, METADATA, code)
            for each, code in changed.items()
            if code != NONE
        }
        return refused | self._ask_once(request, before.keys() - refused.keys(), deadline)

    def list_groups(self, *, seconds: float = CALL_SECONDS) -> frozenset[Group]:
        """Return all groups that the login may describe, of every broker, active or not.

        Raises also if one broker does not answer, since its groups would be missing. After a failure all are asked
        again: a group may have moved to a broker that answered before.
        """
        brokers, deadline = self._brokers, self._brokers.deadline(seconds)
        found: dict[int, frozenset[Group]] = {}
        failure: SourceClusterError | None = None

        def once() -> bool:
            nonlocal failure
            found.clear()
            for node in brokers.read_metadata((), deadline).brokers:
                try:
                    connection = brokers.connection(node, deadline)
                    message = list_groups_request(connection.version(LIST_GROUPS))
                    found[node] = connection.exchange(LIST_GROUPS, message, brokers.within(deadline), read_groups)
                except FAILED as error:
                    failure = telling(failure, error, deadline)
            return found.keys() >= set(brokers.nodes)

        brokers.repeat(once, deadline)
        if failure is not None and not found.keys() >= set(brokers.nodes):
            raise failure
        return frozenset[Group]().union(*(found[node] for node in brokers.nodes))

    def coordinator_problems(
        self, offsets_topic: TopicMetadata, *, seconds: float = CALL_SECONDS
    ) -> dict[TopicPartition, PartitionError]:
        """Return which partitions of the offsets topic have no coordinator that serves its groups, and why.

        A broker that leads a partition but has not begun to load its groups lists none of them, without an error: only
        a request about one of its groups shows that. Waits for a coordinator that is loading its groups. After
        `seconds`, each further question still gets a few seconds, since there may be many, and the first problem ends
        the search.
        """
        deadline = self._brokers.deadline(seconds)
        found: dict[TopicPartition, PartitionError] = {}
        for number, group_id in groups_of_partitions(len(offsets_topic.partitions)).items():
            partition = TopicPartition(offsets_topic.name, number)
            within = max(deadline.left, _QUESTION_SECONDS)
            answer = self._ask_leaders(CommittedOffsetsOfGroup(partition, group_id), within)[partition]
            if isinstance(answer, PartitionError):
                found[partition] = answer
                if not deadline.left:
                    break
        return found

    def committed_offsets(
        self, group_id: str, offsets_topic: TopicMetadata, *, seconds: float = CALL_SECONDS
    ) -> Mapping[TopicPartition, int] | PartitionError:
        """Return what a group has committed, from its coordinator: the leader of a partition of the offsets topic."""
        partitions = len(offsets_topic.partitions)
        coordinating = TopicPartition(offsets_topic.name, coordinating_partition(group_id, partitions))
        return self._ask_leaders(CommittedOffsetsOfGroup(coordinating, group_id), seconds)[coordinating]

    def log_sizes(
        self, partitions: Collection[TopicPartition], *, seconds: float = CALL_SECONDS
    ) -> dict[TopicPartition, int]:
        """Return the bytes of each of `partitions` on its leader's disk. Asks each leader once; leaves out what it
        hides.
        """
        brokers, deadline = self._brokers, self._brokers.deadline(seconds)
        brokers.refresh(partitions, deadline)
        led: defaultdict[int, list[TopicPartition]] = defaultdict(list)
        for each in partitions:
            if brokers.problem(each) == NONE:
                led[brokers.leader(each).leader].append(each)
        found: dict[TopicPartition, int] = {}
        for leader, some in led.items():
            with suppress(*FAILED, ClusterRefusedError):
                connection = brokers.connection(leader, deadline)
                message = log_dirs_request(connection.version(DESCRIBE_LOG_DIRS), some)
                found |= connection.exchange(DESCRIBE_LOG_DIRS, message, brokers.within(deadline), read_log_sizes)
        return found

    def fetch(
        self,
        positions: Sequence[FetchPosition],
        buffer: FetchBuffer,
        limits: FetchLimits | None = None,
        *,
        seconds: float = CALL_SECONDS,
    ) -> FetchAnswer:
        """Fetch the first of `positions`, and the others that the same broker serves, in one request.

        The answer has only those: rotate the positions so that every broker is asked. Its records lie in `buffer`;
        errors are in the partitions' `error_code`. A retriable error is returned only if another partition succeeded,
        or at the deadline. Asks for no more than the buffer holds; raises ConfigurationError if a single batch exceeds
        it. While a broker's quota holds records back, waits as long as the broker says and tries again; raises
        ClusterUnreachableError after three minutes. Partitions without a leader share one wait of half a minute; then
        each fails at once. A partition that had a leader meanwhile starts a new wait.
        """
        return self._fetcher.fetch(positions, buffer, limits or FetchLimits(), seconds)

    def _ask_leaders(
        self, request: PartitionRequest[Found], seconds: float
    ) -> dict[TopicPartition, Found | PartitionError]:
        deadline = self._brokers.deadline(seconds)
        answers: dict[TopicPartition, Found | PartitionError] = {}
        pending = set(request.partitions)

        def once() -> bool:
            for partition, found in self._ask_once(request, pending, deadline).items():
                if isinstance(found, PartitionError) and found.code == NETWORK_EXCEPTION and not deadline.left:
                    answers.setdefault(partition, found)
                else:
                    answers[partition] = found
            for partition in list(pending):
                answer = answers[partition]
                code = answer.code if isinstance(answer, PartitionError) else NONE
                if code in MOVED:
                    self._brokers.forget_leaders(partition.topic)
                if self._brokers.is_final(partition, code):
                    pending.discard(partition)
            return not pending

        if pending:
            self._brokers.repeat(once, deadline)
        return answers

    def _change(self, partition: TopicPartition, expected: Leadership) -> int:
        """Return why a partition is not led as `expected` any more, as an error code; 0: it is."""
        code = self._brokers.problem(partition)
        if code != NONE:
            return code
        led = self._brokers.leader(partition)
        if led.topic_id != expected.topic_id:
            return INCONSISTENT_TOPIC_ID
        return NONE if led == expected else FENCED_LEADER_EPOCH

    def _ask_once(
        self, request: PartitionRequest[Found], pending: Collection[TopicPartition], deadline: Deadline
    ) -> dict[TopicPartition, Found | PartitionError]:
        self._brokers.refresh(pending, deadline)
        answers: dict[TopicPartition, Found | PartitionError] = {}
        led: defaultdict[int, dict[TopicPartition, int]] = defaultdict(dict)
        for each in pending:
            if (code := self._brokers.problem(each)) != NONE:
                answers[each] = PartitionError(each.topic, each.partition, METADATA, code)
            else:
                found = self._brokers.leader(each)
                led[found.leader][each] = found.leader_epoch
        for asked, (leader, epochs) in enumerate(led.items()):
            # Share the time that is left among the brokers: a silent one must not use it up.
            connecting = deadline.within(max(_QUESTION_SECONDS, deadline.left / (len(led) - asked)))
            try:
                connection = self._brokers.connection(leader, connecting)
                answers.update(self._ask_leader(request, connection, epochs, deadline))
            except FAILED as error:
                for each in epochs:
                    answers[each] = PartitionError(
                        each.topic, each.partition, request.api, NETWORK_EXCEPTION, str(error)
                    )
        return answers

    def _ask_leader(
        self,
        request: PartitionRequest[Found],
        connection: Connection,
        epochs: Mapping[TopicPartition, int],
        deadline: Deadline,
    ) -> dict[TopicPartition, Found | PartitionError]:
        seconds = min(self.settings.broker_seconds, self.settings.request_seconds)
        try:
            message = request.build(connection.version(request.api), epochs, seconds)
        except ClusterRefusedError as error:
            raise ClusterRefusedError(f"{connection.address}: {error}") from error

        def read(answer: Any) -> dict[TopicPartition, Found | PartitionError]:
            found = {
                each: PartitionError(each.topic, each.partition, request.api, code) if code else value
                for each, code, value in request.read(answer)
            }
            if found.keys() != epochs.keys():
                raise MalformedAnswerError(
                    f"the answer is about {len(found)} partitions, not exactly the {len(epochs)} asked for"
                )
            return found

        return connection.exchange(request.api, message, self._brokers.within(deadline), read)
