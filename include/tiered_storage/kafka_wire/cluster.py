"""A cluster: its metadata, and requests that find their partitions' leaders.

A request goes to the leader that the metadata name, over one connection a broker that is kept open. After an error that
says the leader moved, or a lost connection, the metadata are read again and the request is repeated, at the new leader
and after growing pauses, until the call's deadline. What then still fails is the answer for its partition; the other
partitions have theirs. DeleteRecords is never repeated: another leader may have other records. A call raises only if
that concerns the whole cluster: no broker answers, or a login is refused.
"""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import Any, Self, TypeVar

from tenacity import RetryCallState, Retrying, retry_if_result
from tenacity.wait import wait_random_exponential

from tiered_storage.errors import ClusterRefusedError, ClusterUnreachableError, MalformedAnswerError, SourceClusterError
from tiered_storage.kafka_wire.connections.apis import DESCRIBE_LOG_DIRS, FETCH, LIST_GROUPS, METADATA
from tiered_storage.kafka_wire.connections.client_settings import BrokerAddress, ClientSettings
from tiered_storage.kafka_wire.connections.connection import Connection, open_connection
from tiered_storage.kafka_wire.connections.error_codes import (
    FENCED_LEADER_EPOCH,
    INCONSISTENT_TOPIC_ID,
    LEADER_NOT_AVAILABLE,
    MOVED,
    NETWORK_EXCEPTION,
    NONE,
    UNKNOWN_TOPIC_ID,
    UNKNOWN_TOPIC_OR_PARTITION,
    PartitionError,
    error_name,
    is_retriable,
)
from tiered_storage.kafka_wire.connections.sasl import TokenSource, token_source
from tiered_storage.kafka_wire.connections.transport import Deadline
from tiered_storage.kafka_wire.fetch import (
    BY_TOPIC_ID,
    LARGEST_FRAME,
    NOT_RECORDS,
    EpochEnd,
    FetchAnswer,
    FetchBuffer,
    FetchDecoder,
    FetchedPartition,
    FetchLimits,
    FetchPosition,
    IsolationLevel,
    failed_partition,
    fetch_request,
)
from tiered_storage.kafka_wire.metadata import (
    Broker,
    ClusterMetadata,
    Group,
    Leadership,
    TopicMetadata,
    TopicPartition,
    leadership,
    list_groups_request,
    metadata_request,
    partition_problem,
    read_groups,
    read_metadata,
)
from tiered_storage.kafka_wire.partition_requests import (
    DeleteRecords,
    ListedOffset,
    ListOffsets,
    OffsetsForLeaderEpochs,
    PartitionRequest,
    log_dirs_request,
    read_log_sizes,
)

CALL_SECONDS = 120.0
"""For a call with all its repetitions."""
_PAUSE = wait_random_exponential(multiplier=0.05, max=2.0)
_REPLICA_SECONDS = 300.0
"""How long a follower that a leader recommended is read from, before the leader is asked again; as Java's client."""

Found = TypeVar("Found")
_FAILED = (ClusterUnreachableError, MalformedAnswerError)
"""After these another broker, or another connection, may serve."""


class ClusterClient:
    """The cluster that `settings` lead to. For one thread; nothing is opened before the first call.

    Calls take `seconds` for everything. They raise ClusterUnreachableError or MalformedAnswerError if no broker answers
    in time; ClusterRefusedError for a refused login, certificate or version; ConfigurationError for an unreadable file
    or invalid arguments.
    """

    def __init__(
        self,
        settings: ClientSettings,
        token: TokenSource | None = None,
        *,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Log in by tokens of `token`, instead of those of the settings, if it is given."""
        self.settings = settings
        self._token = token or token_source(settings.sasl)
        self._now = now
        self._sleep = sleep
        self._connections: dict[BrokerAddress, Connection] = {}
        self._brokers: Mapping[int, Broker] = {}
        self._topics: dict[str, TopicMetadata] = {}
        self._stale: set[str] = set()
        self._replicas: dict[TopicPartition, tuple[int, Deadline]] = {}
        """The followers that leaders recommended, and until when."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def metadata(self, topics: Collection[str] | None = None, *, seconds: float = CALL_SECONDS) -> ClusterMetadata:
        """Return the brokers, and `topics` by name, None: every topic that the login may describe."""
        return self._read_metadata(topics, Deadline.after(seconds, self._now))

    def list_offsets(
        self,
        wanted: Mapping[TopicPartition, int],
        *,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
        seconds: float = CALL_SECONDS,
    ) -> dict[TopicPartition, ListedOffset | PartitionError]:
        """Return an offset of each partition: by an OffsetSpec, or the first whose timestamp (ms) is not before."""
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

        Each leader is asked once, and only if fresh metadata have it as `led` does: offsets that were judged by the log
        of one leader may be other records at the next one, or in a topic that was created again.
        """
        request = DeleteRecords(before)
        deadline = Deadline.after(seconds, self._now)
        self._read_metadata({each.topic for each in before}, deadline)
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
        deadline = Deadline.after(seconds, self._now)
        found: dict[int, frozenset[Group]] = {}
        failure: SourceClusterError | None = None

        def once() -> bool:
            nonlocal failure
            found.clear()
            for node in self._read_metadata((), deadline).brokers:
                try:
                    connection = self._connection(node, deadline)
                    message = list_groups_request(connection.version(LIST_GROUPS))
                    within = deadline.within(self.settings.request_seconds)
                    found[node] = connection.exchange(LIST_GROUPS, message, within, read_groups)
                except _FAILED as error:
                    failure = _telling(failure, error, deadline)
            return self._brokers.keys() <= found.keys()

        self._repeat(once, deadline)
        if failure is not None and not self._brokers.keys() <= found.keys():
            raise failure
        return frozenset[Group]().union(*(found[node] for node in self._brokers))

    def log_sizes(
        self, partitions: Collection[TopicPartition], *, seconds: float = CALL_SECONDS
    ) -> dict[TopicPartition, int]:
        """Return the bytes that the leaders of `partitions` have of them on disk, as far as they tell: asked once."""
        deadline = Deadline.after(seconds, self._now)
        self._refresh(partitions, deadline)
        led: defaultdict[int, list[TopicPartition]] = defaultdict(list)
        for each in partitions:
            topic = self._topics.get(each.topic)
            if topic is not None and partition_problem(topic, each.partition) == NONE:
                led[topic.partitions[each.partition].leader].append(each)
        found: dict[TopicPartition, int] = {}
        for leader, some in led.items():
            with suppress(*_FAILED, ClusterRefusedError):
                connection = self._connection(leader, deadline)
                message = log_dirs_request(connection.version(DESCRIBE_LOG_DIRS), some)
                within = deadline.within(self.settings.request_seconds)
                found |= connection.exchange(DESCRIBE_LOG_DIRS, message, within, read_log_sizes)
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

        The answer has those only: rotate the positions to have every broker asked. Its records lie in `buffer`. Errors
        are in the partitions' `error_code`. A retriable one is returned only if another partition succeeded, or at the
        deadline. No more is asked for than the buffer holds; raises ConfigurationError if a single batch exceeds it.
        """
        deadline = Deadline.after(seconds, self._now)
        asked = {(each.topic, each.partition): each for each in positions}
        answer = FetchAnswer(0.0, ())
        if not positions:
            return answer
        failure: SourceClusterError | None = None

        def once() -> bool:
            nonlocal answer, failure
            try:
                answer, failure = self._fetch_once(positions, buffer, limits or FetchLimits(), deadline), None
            except _FAILED as error:
                failure = _telling(failure, error, deadline)
                self._stale.add(positions[0].topic)
                # The broker may be a follower, which no leader is asked about while it counts.
                self._replicas.clear()
                return False
            # Every partition is looked at.
            return sum(self._learn(asked[each.topic, each.partition], each) for each in answer.partitions) > 0

        self._repeat(once, deadline)
        if failure is not None:
            raise failure
        return answer

    def _fetch_once(
        self, positions: Sequence[FetchPosition], buffer: FetchBuffer, limits: FetchLimits, deadline: Deadline
    ) -> FetchAnswer:
        self._refresh([TopicPartition(each.topic, each.partition) for each in positions], deadline)
        code = self._problem(positions[0], deadline)
        if code != NONE:
            return FetchAnswer(0.0, (failed_partition(positions[0], code),))
        node = self._node(positions[0])
        served = [
            self._resolved(each)
            for each in positions
            if self._problem(each, deadline) == NONE and self._node(each) == node
        ]
        connection = self._connection(node, deadline)
        version = connection.version(FETCH)
        if not all(each.topic_id for each in served):
            version = min(version, BY_TOPIC_ID - 1)
        fitting = replace(limits, max_bytes=max(1, min(limits.max_bytes, buffer.most - NOT_RECORDS)))
        return connection.receive(
            FETCH,
            fetch_request(version, served, fitting, self.settings.rack),
            deadline.within(self.settings.request_seconds + limits.max_wait_seconds),
            FetchDecoder(served),
            buffer.room,
            LARGEST_FRAME,
        )

    def _problem(self, position: FetchPosition, deadline: Deadline) -> int:
        """Return why a position has no leader to ask, as an error code; 0: it has one."""
        if self._is_another_topic(position):
            self._read_metadata({position.topic}, deadline)
            if self._is_another_topic(position):
                return UNKNOWN_TOPIC_ID
        return partition_problem(self._topics.get(position.topic), position.partition)

    def _is_another_topic(self, position: FetchPosition) -> bool:
        known = self._topics.get(position.topic)
        return bool(known and known.topic_id and position.topic_id and known.topic_id != position.topic_id)

    def _node(self, position: FetchPosition) -> int:
        """Return the broker to read a position from: its leader, or the follower that it recommended."""
        partition = TopicPartition(position.topic, position.partition)
        node, until = self._replicas.get(partition, (-1, None))
        if until is not None and until.left and node in self._brokers:
            return node
        self._replicas.pop(partition, None)
        return self._topics[position.topic].partitions[position.partition].leader

    def _resolved(self, position: FetchPosition) -> FetchPosition:
        """Return `position` with the topic's id and its leader epoch."""
        topic = self._topics[position.topic]
        epoch = position.leader_epoch
        if epoch is None:
            epoch = topic.partitions[position.partition].leader_epoch
        return replace(position, topic_id=position.topic_id or topic.topic_id, leader_epoch=epoch)

    def _learn(self, position: FetchPosition, found: FetchedPartition) -> bool:
        """Remember what an answer says of leaders and followers; return whether it is one for the caller."""
        partition = TopicPartition(found.topic, found.partition)
        if found.error_code in MOVED:
            self._stale.add(found.topic)
        if found.error_code != NONE and partition in self._replicas:
            del self._replicas[partition]
            return False
        if found.preferred_read_replica >= 0 and not found.records:
            until = Deadline.after(_REPLICA_SECONDS, self._now)
            self._replicas[partition] = (found.preferred_read_replica, until)
            return False
        is_fenced = found.error_code == FENCED_LEADER_EPOCH and position.leader_epoch is not None
        return is_fenced or self._is_another_topic(position) or self._is_final(partition, found.error_code)

    def _is_final(self, partition: TopicPartition, code: int) -> bool:
        """Return whether another try would give the same."""
        if code == UNKNOWN_TOPIC_OR_PARTITION:
            # A broker may not know yet what the metadata have; what they do not have either stays unknown.
            return partition_problem(self._topics.get(partition.topic), partition.partition) == code
        return not is_retriable(code)

    def _ask_leaders(
        self, request: PartitionRequest[Found], seconds: float
    ) -> dict[TopicPartition, Found | PartitionError]:
        deadline = Deadline.after(seconds, self._now)
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
                    self._stale.add(partition.topic)
                if self._is_final(partition, code):
                    pending.discard(partition)
            return not pending

        if pending:
            self._repeat(once, deadline)
        return answers

    def _change(self, partition: TopicPartition, expected: Leadership) -> int:
        """Return why a partition is not led as `expected` any more, as an error code; 0: it is."""
        topic = self._topics.get(partition.topic)
        code = partition_problem(topic, partition.partition)
        if topic is None or code != NONE:
            return code
        if topic.topic_id != expected.topic_id:
            return INCONSISTENT_TOPIC_ID
        return NONE if leadership(topic, partition.partition) == expected else FENCED_LEADER_EPOCH

    def _ask_once(
        self, request: PartitionRequest[Found], pending: Collection[TopicPartition], deadline: Deadline
    ) -> dict[TopicPartition, Found | PartitionError]:
        self._refresh(pending, deadline)
        answers: dict[TopicPartition, Found | PartitionError] = {}
        led: defaultdict[int, dict[TopicPartition, int]] = defaultdict(dict)
        for each in pending:
            topic = self._topics.get(each.topic)
            code = partition_problem(topic, each.partition)
            if topic is None or code != NONE:
                answers[each] = PartitionError(each.topic, each.partition, METADATA, code)
            else:
                found = topic.partitions[each.partition]
                led[found.leader][each] = found.leader_epoch
        for leader, epochs in led.items():
            try:
                answers.update(self._ask_leader(request, leader, epochs, deadline))
            except _FAILED as error:
                for each in epochs:
                    answers[each] = PartitionError(
                        each.topic, each.partition, request.api, NETWORK_EXCEPTION, str(error)
                    )
        return answers

    def _ask_leader(
        self,
        request: PartitionRequest[Found],
        leader: int,
        epochs: Mapping[TopicPartition, int],
        deadline: Deadline,
    ) -> dict[TopicPartition, Found | PartitionError]:
        connection = self._connection(leader, deadline)
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
                    f"it is about {len(found)} other partitions than the {len(epochs)} asked for"
                )
            return found

        return connection.exchange(request.api, message, deadline.within(self.settings.request_seconds), read)

    def _refresh(self, partitions: Iterable[TopicPartition], deadline: Deadline) -> None:
        """Read the metadata of those topics that are stale, or have no leader for one of `partitions`."""
        wanted = {
            topic
            for topic, number in partitions
            if topic in self._stale or partition_problem(self._topics.get(topic), number) != NONE
        }
        if wanted:
            self._read_metadata(wanted, deadline)

    def _read_metadata(self, topics: Collection[str] | None, deadline: Deadline) -> ClusterMetadata:
        found: ClusterMetadata | None = None
        failures: dict[BrokerAddress, SourceClusterError] = {}

        def once() -> bool:
            nonlocal found
            for address in self._addresses():
                try:
                    found = self._metadata_of(address, topics, deadline)
                except _FAILED as error:
                    failures[address] = _telling(failures.get(address), error, deadline)
                else:
                    return True
            return False

        self._repeat(once, deadline)
        if found is None:
            raise ClusterUnreachableError(
                f"no broker of {', '.join(map(str, self.settings.bootstrap))} (bootstrap.servers) gave the cluster's "
                f"metadata within {deadline.seconds:g} s: {'; '.join(map(str, failures.values()))}"
            )
        self._brokers = found.brokers
        self._topics.update(found.topics)
        self._stale -= found.topics.keys()
        return found

    def _metadata_of(
        self, address: BrokerAddress, topics: Collection[str] | None, deadline: Deadline
    ) -> ClusterMetadata:
        connection = self._connection_at(address, deadline)
        message = metadata_request(connection.version(METADATA), topics)
        within = deadline.within(self.settings.request_seconds)
        return connection.exchange(METADATA, message, within, read_metadata)

    def _addresses(self) -> list[BrokerAddress]:
        """Return the addresses to ask for metadata: open connections first, then all others in any order."""
        opened = [address for address, connection in self._connections.items() if connection.is_open]
        others = {each.address for each in self._brokers.values()} | set(self.settings.bootstrap)
        rest = sorted(others - set(opened), key=str)
        random.shuffle(rest)
        return opened + rest

    def _connection(self, node: int, deadline: Deadline) -> Connection:
        """Return an open connection to the broker with the id `node`."""
        if node not in self._brokers:
            raise ClusterUnreachableError(f"broker {node} is not running: {error_name(LEADER_NOT_AVAILABLE)}")
        address = self._brokers[node].address
        try:
            return self._connection_at(address, deadline)
        except ClusterUnreachableError as error:
            if address in self.settings.bootstrap:
                raise
            raise ClusterUnreachableError(
                f"broker {node} advertises {address} (advertised.listeners) to clients of "
                f"{', '.join(map(str, self.settings.bootstrap))} (bootstrap.servers): {error}"
            ) from error

    def _connection_at(self, address: BrokerAddress, deadline: Deadline) -> Connection:
        connection = self._connections.get(address)
        if connection is None or not connection.is_open:
            connection = open_connection(address, self.settings, deadline, self._token)
            self._connections[address] = connection
        return connection

    def _repeat(self, once: Callable[[], bool], deadline: Deadline) -> None:
        """Call `once` until it returns True, with growing pauses, until the deadline."""

        def is_over(state: RetryCallState) -> bool:
            return state.upcoming_sleep >= deadline.left

        Retrying(
            sleep=self._sleep,
            wait=_PAUSE,
            stop=is_over,
            retry=retry_if_result(lambda done: not done),
            retry_error_callback=lambda _: None,
        )(once)


def _telling(earlier: SourceClusterError | None, latest: SourceClusterError, deadline: Deadline) -> SourceClusterError:
    """Return the later error; after the deadline the earlier one, as the last attempt only had no time."""
    return latest if earlier is None or deadline.left else earlier
