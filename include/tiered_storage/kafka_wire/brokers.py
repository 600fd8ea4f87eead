"""The brokers of a cluster: what their metadata say of leaders, and one connection to each that is kept open.

Metadata are read again once they are stale, or name no leader for a partition that is asked about.
"""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, TypeVar

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
    ) -> None:
        """Log in by tokens of `token`, instead of those of the settings, if it is given.

        `cluster_id` is the id that each broker's cluster must have, or ConfigurationError is raised before it is asked
        for anything; None: whichever it has.
        """
        self.settings = settings
        self._cluster_id = cluster_id
        self._token = token or token_source(settings.sasl)
        self._now = now
        self._sleep = sleep
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
            # A broker may not know yet what the metadata have; what they do not have either stays unknown.
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

    def read_metadata(self, topics: Collection[str] | None, deadline: Deadline) -> ClusterMetadata:
        """Ask one broker after the other for the metadata of `topics`, None: of all."""

        def ask(connection: Connection) -> ClusterMetadata:
            message = metadata_request(connection.version(METADATA), topics)
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
                f"{connection.address} leads from host {socket.gethostname()} to the cluster {found}, and the work is "
                f"on the cluster {self._cluster_id}: let bootstrap.servers and what the brokers advertise "
                "(advertised.listeners) lead to that cluster on every host"
            )


def telling(earlier: SourceClusterError | None, latest: SourceClusterError, deadline: Deadline) -> SourceClusterError:
    """Return the later error; after the deadline the earlier one, as the last attempt only had no time."""
    return latest if earlier is None or deadline.left else earlier
