"""The brokers of a cluster: the leaders by their metadata, and one connection to each broker that stays open.

Metadata are read again once they are stale, or name no leader for a partition that is asked about.
"""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from threading import Lock
from typing import Final, NamedTuple, TypeVar

from tenacity import RetryCallState, Retrying, retry_if_result
from tenacity.wait import wait_random_exponential

from tiered_storage.errors import ClusterUnreachableError, ConfigurationError, MalformedAnswerError, SourceClusterError
from tiered_storage.kafka_wire.connections.apis import METADATA
from tiered_storage.kafka_wire.connections.client_settings import BrokerAddress, ClientSettings
from tiered_storage.kafka_wire.connections.connection import Connection, open_connection
from tiered_storage.kafka_wire.connections.error_codes import (
    LEADER_NOT_AVAILABLE,
    UNKNOWN_TOPIC_OR_PARTITION,
    error_name,
    is_retriable,
)
from tiered_storage.kafka_wire.connections.sasl import TokenSource, token_source
from tiered_storage.kafka_wire.connections.transport import Deadline
from tiered_storage.kafka_wire.metadata import (
    Broker,
    ClusterMetadata,
    Leadership,
    TopicMetadata,
    TopicPartition,
    leadership,
    metadata_request,
    partition_problem,
    read_metadata,
)

FAILED: Final = (ClusterUnreachableError, MalformedAnswerError)
"""After these another broker, or another connection, may serve."""
Found = TypeVar("Found")
_PAUSE = wait_random_exponential(multiplier=0.05, max=2.0)
_REACHED_SECONDS = 20.0
"""How long clients try to reach a live broker. Longer than the 18 s (its session) for which metadata still name a dead
one.
"""
_TRIES_APART_SECONDS = 10.0
"""Tries that are further apart (s) belong to different outages."""
_GIVEN_UP_SECONDS = 300.0
"""How long an address that was tried in vain counts as out of reach."""
_NEXT_TRY_SECONDS = 30.0
"""The pause between tries of such an address, over all clients; each try takes _SHORT_TRY_SECONDS at most."""
_SHORT_TRY_SECONDS = 5.0


class OutOfReachError(ClusterUnreachableError):
    """A live broker was tried for long enough: another try now would only take time."""


class _Tries(NamedTuple):
    """When clients began to try an address, when the last try ended (s), and why it failed."""

    began: float
    ended: float
    reason: str

    @property
    def is_given_up(self) -> bool:
        return self.ended - self.began >= _REACHED_SECONDS


@dataclass(frozen=True, slots=True)
class UnreachedAddresses:
    """The addresses of live brokers that clients cannot reach; all clients together wait once for each. Thread-safe."""

    _tries: dict[BrokerAddress, _Tries] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def failed(self, address: BrokerAddress, began: float, ended: float, reason: str) -> None:
        """Remember a try that failed."""
        with self._lock:
            earlier = self._tries.get(address)
            if earlier is not None and began - earlier.ended <= self._apart(earlier):
                began = earlier.began
            self._tries[address] = _Tries(began, ended, reason)

    def reached(self, address: BrokerAddress) -> None:
        """Forget the tries before one that succeeded."""
        with self._lock:
            self._tries.pop(address, None)

    def given_up(self, address: BrokerAddress, now: float) -> _Tries | None:
        """Return the failed tries of an address that counts as out of reach; None if it does not."""
        tries = self._tries.get(address)
        return tries if tries is not None and tries.is_given_up and now - tries.ended <= _GIVEN_UP_SECONDS else None

    @staticmethod
    def _apart(tries: _Tries) -> float:
        return _GIVEN_UP_SECONDS if tries.is_given_up else _TRIES_APART_SECONDS


_OF_THIS_PROCESS = UnreachedAddresses()


class Brokers:
    """The brokers that `settings` lead to. For one thread; nothing is opened before the first call.

    Whatever opens a connection raises ClusterUnreachableError, MalformedAnswerError, ClusterRefusedError for a refused
    login, certificate or version, and ConfigurationError for an unreadable file.
    """

    def __init__(
        self,
        settings: ClientSettings,
        token: TokenSource | None = None,
        cluster_id: str | None = None,
        *,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        unreached: UnreachedAddresses = _OF_THIS_PROCESS,
    ) -> None:
        """Log in by tokens of `token`, instead of those of the settings, if it is given.

        `cluster_id` is the id that each broker's cluster must have, or ConfigurationError is raised before it is asked
        for anything; None: whichever it has. Clients that share `unreached` have the same clock.
        """
        self.settings = settings
        self._cluster_id = cluster_id
        self._token = token or token_source(settings.sasl)
        self._now = now
        self._sleep = sleep
        self._unreached = unreached
        self._connections: dict[BrokerAddress, Connection] = {}
        self._brokers: Mapping[int, Broker] = {}
        self._topics: dict[str, TopicMetadata] = {}
        self._stale: set[str] = set()

    def close(self) -> None:
        """Close every connection."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def deadline(self, seconds: float) -> Deadline:
        """Return the deadline of a call that begins now."""
        return Deadline.after(seconds, self._now)

    def within(self, deadline: Deadline, more: float = 0.0) -> Deadline:
        """Return the deadline of one request of a call; its broker may take `more` seconds to answer."""
        return deadline.within(self.settings.request_seconds + more)

    @property
    def nodes(self) -> Collection[int]:
        """The ids of the live brokers, by the metadata that were read last."""
        return self._brokers.keys()

    def topic(self, name: str) -> TopicMetadata | None:
        """Return what the metadata that were read last say of a topic; None if it was not asked about."""
        return self._topics.get(name)

    def problem(self, partition: TopicPartition) -> int:
        """Return why a partition has no leader, as an error code; 0: it has one."""
        return partition_problem(self._topics.get(partition.topic), partition.partition)

    def leader(self, partition: TopicPartition) -> Leadership:
        """Return who leads a partition that has no `problem`."""
        return leadership(self._topics[partition.topic], partition.partition)

    def is_final(self, partition: TopicPartition, code: int) -> bool:
        """Return whether another try would give the same answer for a partition."""
        if code == UNKNOWN_TOPIC_OR_PARTITION:
            # A broker may not know a new partition yet: the error is final only if the metadata lack the partition too.
            return self.problem(partition) == code
        return not is_retriable(code)

    def forget_leaders(self, topic: str) -> None:
        """Read the metadata of a topic again before it is asked about."""
        self._stale.add(topic)

    def refresh(self, partitions: Iterable[TopicPartition], deadline: Deadline) -> None:
        """Read the metadata of those topics that are stale, or have no leader for one of `partitions`."""
        wanted = {each.topic for each in partitions if each.topic in self._stale or self.problem(each)}
        if wanted:
            self.read_metadata(wanted, deadline)

    def read_metadata(
        self, topics: Collection[str] | None, deadline: Deadline, *, with_rights: bool = False
    ) -> ClusterMetadata:
        """Ask one broker after the other for the metadata of `topics`, None: of all, and for the rights on them."""

        def ask(connection: Connection) -> ClusterMetadata:
            message = metadata_request(connection.version(METADATA), topics, with_rights=with_rights)
            return connection.exchange(METADATA, message, self.within(deadline), read_metadata)

        found = self.ask_any("gave the cluster's metadata", ask, deadline)
        self._brokers = found.brokers
        self._topics.update(found.topics)
        self._stale -= found.topics.keys()
        return found

    def ask_any(self, what: str, ask: Callable[[Connection], Found], deadline: Deadline) -> Found:
        """Ask one broker after the other until one answers; an error says that none did `what`."""
        found: list[Found] = []
        failures: dict[BrokerAddress, SourceClusterError] = {}

        def once() -> bool:
            for address in self._addresses():
                try:
                    found.append(ask(self._connection_at(address, deadline)))
                except FAILED as error:
                    failures[address] = telling(failures.get(address), error, deadline)
                else:
                    return True
            return False

        self.repeat(once, deadline)
        if not found:
            raise ClusterUnreachableError(
                f"no broker of {', '.join(map(str, self.settings.bootstrap))} (bootstrap.servers) {what} within "
                f"{deadline.seconds:g} s: {'; '.join(map(str, failures.values()))}"
            )
        return found[0]

    def connection(self, node: int, deadline: Deadline) -> Connection:
        """Return an open connection to the broker with the id `node`.

        Raises OutOfReachError once all clients have tried it in vain for long enough.
        """
        if node not in self._brokers:
            raise ClusterUnreachableError(f"broker {node} is not running: {error_name(LEADER_NOT_AVAILABLE)}")
        address, began = self._brokers[node].address, self._now()
        given_up = self._unreached.given_up(address, began)
        if given_up is not None and began - given_up.ended < _NEXT_TRY_SECONDS:
            raise OutOfReachError(given_up.reason)
        try:
            connection = self._connection_at(
                address, deadline if given_up is None else deadline.within(_SHORT_TRY_SECONDS)
            )
        except ClusterUnreachableError as error:
            advertised = (
                f"broker {node} advertises {address} (advertised.listeners) to clients of "
                f"{', '.join(map(str, self.settings.bootstrap))} (bootstrap.servers): "
            )
            reason = str(error) if address in self.settings.bootstrap else f"{advertised}{error}"
            self._unreached.failed(address, began, self._now(), reason)
            raise ClusterUnreachableError(reason) from error
        self._unreached.reached(address)
        return connection

    def repeat(self, once: Callable[[], bool], deadline: Deadline) -> None:
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

    def pause(self, seconds: float) -> None:
        """Wait, as between two attempts."""
        self._sleep(seconds)

    def _addresses(self) -> list[BrokerAddress]:
        """Return the addresses to ask what any broker knows: open connections first, then all others in any order."""
        opened = [address for address, connection in self._connections.items() if connection.is_open]
        others = {each.address for each in self._brokers.values()} | set(self.settings.bootstrap)
        rest = sorted(others - set(opened), key=str)
        random.shuffle(rest)
        return opened + rest

    def _connection_at(self, address: BrokerAddress, deadline: Deadline) -> Connection:
        connection = self._connections.get(address)
        if connection is None or not connection.is_open:
            connection = open_connection(address, self.settings, deadline, self._token)
            self._connections[address] = connection
            self._ensure_meant(connection, deadline)
        return connection

    def _ensure_meant(self, connection: Connection, deadline: Deadline) -> None:
        if self._cluster_id is None:
            return
        message = metadata_request(connection.version(METADATA), ())
        found = connection.exchange(METADATA, message, self.within(deadline), read_metadata).cluster_id
        if found not in {None, self._cluster_id}:
            connection.close()
            raise ConfigurationError(
                f"on host {socket.gethostname()}, {connection.address} leads to the cluster {found}, but this work is "
                f"on the cluster {self._cluster_id}: correct bootstrap.servers, the host's name resolution, or the "
                "brokers' advertised.listeners"
            )


def telling(earlier: SourceClusterError | None, latest: SourceClusterError, deadline: Deadline) -> SourceClusterError:
    """Return the later error; after the deadline the earlier one, because the last attempt failed only for lack of
    time.
    """
    return latest if earlier is None or deadline.left else earlier
