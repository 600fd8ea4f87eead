"""Fetch from a cluster: each partition from its leader, or from the follower that the leader recommended (KIP-392)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tiered_storage.errors import ClusterUnreachableError, SourceClusterError
from tiered_storage.kafka_wire.brokers import FAILED, Brokers, OutOfReachError, telling
from tiered_storage.kafka_wire.connections.apis import FETCH
from tiered_storage.kafka_wire.connections.error_codes import (
    FENCED_LEADER_EPOCH,
    LEADER_NOT_AVAILABLE,
    MOVED,
    NONE,
    UNKNOWN_TOPIC_ID,
)
from tiered_storage.kafka_wire.connections.transport import Deadline
from tiered_storage.kafka_wire.fetch import (
    LARGEST_FRAME,
    NOT_RECORDS,
    FetchAnswer,
    FetchBuffer,
    FetchDecoder,
    FetchedPartition,
    FetchLimits,
    FetchPosition,
    failed_partition,
    fetch_request,
)
from tiered_storage.kafka_wire.fetch_layout import BY_TOPIC_ID
from tiered_storage.kafka_wire.metadata import TopicPartition

_REPLICA_SECONDS = 300.0
"""How long a follower that a leader recommended is read from, before the leader is asked again; as Java's client."""
_LEADER_SECONDS = 30.0
"""How long partitions without a leader are waited for, all of them together; an election takes seconds."""
_WAITED_SECONDS = 300.0
"""How long after the start of that wait no new one begins, unless one of them had a leader meanwhile."""
_THROTTLED_SECONDS = 180.0
"""How long a quota may hold every answer back; Kafka averages over 11 s by default, and asks for pauses like that."""


class Fetcher:
    """Sends Fetch to `brokers`, and remembers which followers they recommend. For one thread."""

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers
        self._replicas: dict[TopicPartition, tuple[int, Deadline]] = {}
        """The followers that leaders recommended, and until when."""
        self._patience: tuple[Deadline, Deadline] | None = None
        """When the wait for partitions without a leader ends, and when a new wait may begin."""
        self._waited: set[TopicPartition] = set()
        """The partitions that had no leader since that wait began."""
        self._answered: set[TopicPartition] = set()
        """The partitions that had one."""
        self._throttled: Deadline | None = None
        """How long a quota may continue to hold every answer back; None: the last answer had what was asked for."""

    def fetch(
        self, positions: Sequence[FetchPosition], buffer: FetchBuffer, limits: FetchLimits, seconds: float
    ) -> FetchAnswer:
        """Fetch as ClusterClient.fetch."""
        while True:
            answer = self._repeated(positions, buffer, limits, self._brokers.deadline(seconds))
            if answer.partitions or not answer.throttle_seconds:
                self._throttled = None
                return answer
            self._throttled = self._throttled or self._brokers.deadline(_THROTTLED_SECONDS)
            if not self._throttled.left:
                raise self._held_back(positions[0])
            # The broker has muted this connection until then: a request sent now would seem to get no answer.
            self._brokers.pause(min(answer.throttle_seconds, self._throttled.left))

    def _held_back(self, position: FetchPosition) -> ClusterUnreachableError:
        client = self._brokers.settings.client_id
        return ClusterUnreachableError(
            f"{_partition(position)}: a quota of the brokers held every answer to Fetch back for "
            f"{_THROTTLED_SECONDS:g} s: a batch is too large for the quota's window, or others use the quota up. Raise "
            f"consumer_byte_rate of the client.id {client}, or of its user: kafka-configs.sh --alter --add-config "
            f"consumer_byte_rate=... --entity-type clients --entity-name {client}"
        )

    def _repeated(
        self, positions: Sequence[FetchPosition], buffer: FetchBuffer, limits: FetchLimits, deadline: Deadline
    ) -> FetchAnswer:
        """Fetch until the deadline, or until an answer is for the caller, or has no partition, or no leader comes.

        A leader that all clients of this process have tried in vain fails its partitions at once.
        """
        asked = {(each.topic, each.partition): each for each in positions}
        answer = FetchAnswer(0.0, ())
        if not positions:
            return answer
        failure: SourceClusterError | None = None

        def once() -> bool:
            nonlocal answer, failure
            try:
                answer, failure = self._once(positions, buffer, limits, deadline), None
            except OutOfReachError as error:
                is_known = failure is not None and not self._replicas
                failure = ClusterUnreachableError(f"{_partition(positions[0])}: {error}")
                self._forget(positions[0])
                # Once more with fresh metadata: another broker may lead by now, or this one be elsewhere.
                return is_known
            except FAILED as error:
                failure = telling(failure, error, deadline)
                self._forget(positions[0])
                return False
            # Sum in place of any(): _learn must see every partition.
            is_wanted = sum(self._learn(asked[each.topic, each.partition], each) for each in answer.partitions) > 0
            return is_wanted or not answer.partitions or self._gives_up(answer)

        self._brokers.repeat(once, deadline)
        if failure is not None:
            raise failure
        return answer

    def _forget(self, position: FetchPosition) -> None:
        """Ask for the leaders of a position's topic again before the next try."""
        self._brokers.forget_leaders(position.topic)
        # The broker may be a recommended follower: forget it, so that the leader is asked again.
        self._replicas.clear()

    def _once(
        self, positions: Sequence[FetchPosition], buffer: FetchBuffer, limits: FetchLimits, deadline: Deadline
    ) -> FetchAnswer:
        brokers = self._brokers
        brokers.refresh(map(_partition, positions), deadline)
        code = self._problem(positions[0], deadline)
        if code != NONE:
            return FetchAnswer(0.0, (failed_partition(positions[0], code),))
        node = self._node(positions[0])
        served = [
            self._resolved(each)
            for each in positions
            if self._problem(each, deadline) == NONE and self._node(each) == node
        ]
        connection = brokers.connection(node, deadline)
        version = connection.version(FETCH)
        if not all(each.topic_id for each in served):
            version = min(version, BY_TOPIC_ID - 1)
        fitting = replace(limits, max_bytes=max(1, min(limits.max_bytes, buffer.most - NOT_RECORDS)))
        return connection.receive(
            FETCH,
            fetch_request(version, served, fitting, brokers.settings.rack),
            brokers.within(deadline, limits.max_wait_seconds),
            FetchDecoder(served),
            buffer.room,
            LARGEST_FRAME,
        )

    def _gives_up(self, answer: FetchAnswer) -> bool:
        """Return whether a partition of `answer` has no leader, and those without one were waited for long enough.

        Otherwise the partitions of a broker that is lost for good would delay all others, one after the other.
        """
        leaderless = {
            TopicPartition(each.topic, each.partition)
            for each in answer.partitions
            if each.error_code == LEADER_NOT_AVAILABLE
        }
        if not leaderless:
            return False
        self._waited |= leaderless
        # If one of them had a leader meanwhile, the earlier outage is over and this is another one.
        if self._patience is None or not self._patience[1].left or self._waited & self._answered:
            self._patience = self._brokers.deadline(_LEADER_SECONDS), self._brokers.deadline(_WAITED_SECONDS)
            self._waited = leaderless
            self._answered.clear()
        return not self._patience[0].left

    def _problem(self, position: FetchPosition, deadline: Deadline) -> int:
        """Return why a position has no leader to ask, as an error code; 0: it has one."""
        if self._is_another_topic(position):
            self._brokers.read_metadata({position.topic}, deadline)
            if self._is_another_topic(position):
                return UNKNOWN_TOPIC_ID
        return self._brokers.problem(_partition(position))

    def _is_another_topic(self, position: FetchPosition) -> bool:
        known = self._brokers.topic(position.topic)
        return bool(known and known.topic_id and position.topic_id and known.topic_id != position.topic_id)

    def _node(self, position: FetchPosition) -> int:
        """Return the broker to read a position from: its leader, or the follower that it recommended."""
        partition = _partition(position)
        node, until = self._replicas.get(partition, (-1, None))
        if until is not None and until.left and node in self._brokers.nodes:
            return node
        self._replicas.pop(partition, None)
        return self._brokers.leader(partition).leader

    def _resolved(self, position: FetchPosition) -> FetchPosition:
        """Return `position` with the topic's id and its leader epoch."""
        led = self._brokers.leader(_partition(position))
        epoch = led.leader_epoch if position.leader_epoch is None else position.leader_epoch
        return replace(position, topic_id=position.topic_id or led.topic_id, leader_epoch=epoch)

    def _learn(self, position: FetchPosition, found: FetchedPartition) -> bool:
        """Remember what an answer says of leaders and followers; return whether it is one for the caller."""
        partition = _partition(position)
        if found.error_code == NONE:
            self._answered.add(partition)
        if found.error_code in MOVED:
            self._brokers.forget_leaders(found.topic)
        if found.error_code != NONE and partition in self._replicas:
            del self._replicas[partition]
            return False
        if found.preferred_read_replica >= 0 and not found.records:
            until = self._brokers.deadline(_REPLICA_SECONDS)
            self._replicas[partition] = (found.preferred_read_replica, until)
            return False
        is_fenced = found.error_code == FENCED_LEADER_EPOCH and position.leader_epoch is not None
        is_final = self._brokers.is_final(partition, found.error_code)
        return is_final or is_fenced or self._is_another_topic(position)


def _partition(position: FetchPosition) -> TopicPartition:
    return TopicPartition(position.topic, position.partition)
