"""Targets: what clients send to a gateway, before and after they log in, in pieces, with and without brokers.

The first byte of an input chooses whether clients log in, and how large the pieces are; the others are the client's.
Whatever they are: the gateway answers, or closes the connection with one of our errors, and the connection gives back
all that it held.
"""

from __future__ import annotations

import asyncio
import atexit
import functools
import logging
import shutil
import struct
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol, cast

from kio.index import load_request_schema, load_response_schema

from fuzz.target import Target
from fuzz.wire_targets import NUMBER, STRING, TOPIC_ID, filled
from support.served_clusters import gateway_limits, served_cluster
from support.wires import Wire, arrive
from tiered_storage.errors import RemoteStorageError
from tiered_storage.gateway.allowed_apis import (
    ALLOWED,
    API_VERSIONS,
    FETCH,
    LIST_OFFSETS,
    METADATA,
    OFFSET_FOR_LEADER_EPOCH,
    PRODUCE,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
)
from tiered_storage.gateway.client_requests import ClientRequests
from tiered_storage.gateway.connections.client_connection import ClientConnection
from tiered_storage.gateway.deletions.client_deletions import DELETE_RECORDS, DELETE_TOPICS
from tiered_storage.gateway.fetch_errors import ReadFailures
from tiered_storage.gateway.limits.memory_budget import MemoryBudget
from tiered_storage.gateway.limits.remote_share import RemoteShare
from tiered_storage.gateway.limits.remote_turns import RemoteTurns
from tiered_storage.gateway.operation.metrics import GatewayMetrics
from tiered_storage.gateway.remote_partitions import RemotePartitions
from tiered_storage.gateway.standalone.apis import SERVED
from tiered_storage.gateway.standalone.catalog import Catalog, Topics, named_topics
from tiered_storage.gateway.standalone.connection import StandaloneConnection
from tiered_storage.gateway.standalone.descriptions import Descriptions, Node
from tiered_storage.gateway.standalone.log_fetch import LogFetch
from tiered_storage.gateway.standalone.offsets import LogOffsets
from tiered_storage.gateway.standalone.requests import StandaloneRequests
from tiered_storage.gateway.standalone.served_log import Access, ServedLog
from tiered_storage.gateway.standalone.users import Users
from tiered_storage.kafka_log.files.kafka_uuid import encode_uuid
from tiered_storage.kafka_wire.connections.apis import Api
from tiered_storage.kafka_wire.connections.frames import SIZE_BYTES, encode_answer, encode_request, request
from tiered_storage.kafka_wire.server.frame_protocol import FrameProtocol
from tiered_storage.kafka_wire.server.request_header import expects_answer, read_header
from tiered_storage.remote_log.metadata.remote_log_metadata_manager import Topic
from tiered_storage.remote_log.model import TopicIdPartition
from tiered_storage.settings.read_rights import RightsFile
from tiered_storage.settings.settings import Settings

_LIMIT = 1 << 20
_WITH_LOGIN = 1
_PIECES = (1 << 20, 1, 3, 700)
_TURNS = 20
"""Of the event loop: after them nothing continues by itself but a wait for the clock."""
_USER, _PASSWORD = "reader", "secret"
_CORRELATION_ID = slice(SIZE_BYTES + 4, SIZE_BYTES + 8)
"""Where a request has it."""
_READ = (
    PRODUCE,
    FETCH,
    LIST_OFFSETS,
    METADATA,
    API_VERSIONS,
    OFFSET_FOR_LEADER_EPOCH,
    DELETE_TOPICS,
    DELETE_RECORDS,
    SASL_HANDSHAKE,
    SASL_AUTHENTICATE,
)
"""The APIs whose requests are sent to a gateway before brokers."""
_PARTITION = TopicIdPartition("cluster", encode_uuid(TOPIC_ID.bytes), NUMBER, STRING)
"""Filled requests name it."""
_SETTINGS = Settings()
_TOPIC = Topic(_PARTITION.cluster_id, _PARTITION.topic_id, _PARTITION.topic)


class _Gateway(Protocol):
    """One client's connection to a gateway."""

    client: Wire
    protocol: FrameProtocol
    budget: MemoryBudget
    ends: int

    @property
    def is_busy(self) -> bool:
        """Whether a broker has something to answer."""

    def react(self) -> None:
        """Do what the gateway's brokers do now."""

    def leave(self) -> None:
        """End the connection."""

    def check(self, content: bytes) -> None:
        """Check what the gateway did with the client's `content`."""


def _frames(content: bytes | bytearray) -> Iterator[bytes]:
    """Cut `content` into whole frames; what comes after them is left out."""
    at = 0
    while at + SIZE_BYTES <= len(content):
        end = at + SIZE_BYTES + struct.unpack_from(">i", content, at)[0]
        if not at + SIZE_BYTES <= end <= len(content):
            return
        yield bytes(content[at:end])
        at = end


def _served(begin: Callable[[bool], _Gateway], content: bytes) -> None:
    if not content:
        return
    asyncio.run(_serve(begin, bool(content[0] & _WITH_LOGIN), _PIECES[content[0] >> 1 & 3], content[1:]))


async def _serve(begin: Callable[[bool], _Gateway], with_login: bool, piece: int, content: bytes) -> None:
    with _without_failures() as failures:
        gateway = begin(with_login)
        for at in range(0, len(content), piece):
            arrive(gateway.protocol, content[at : at + piece])
            if gateway.is_busy or not gateway.client.is_read:
                await _settled(gateway)
            if gateway.client.closed or not gateway.client.is_read:
                break
        await _settled(gateway)
        gateway.leave()
        await _settled(gateway)
    assert not failures, failures
    assert (gateway.ends, gateway.budget.used, gateway.budget.is_short) == (1, 0, False)
    gateway.check(content)


async def _settled(gateway: _Gateway) -> None:
    for _ in range(_TURNS):
        gateway.react()
        await asyncio.sleep(0)


@contextmanager
def _without_failures() -> Iterator[list[object]]:
    """Gather the exceptions that the gateway logs as its own, and those that nobody took."""
    found: list[object] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.exc_info:
                found.append(record.exc_info[1])

    logger, handler = logging.getLogger("tiered_storage.gateway"), Handler()
    propagates, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    asyncio.get_running_loop().set_exception_handler(lambda _, context: found.append(context))
    try:
        yield found
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagates


class _NoRemoteLog:
    """A remote log that is out of reach, for reads and for deletions."""

    largest_chunk = 1000
    room = RemotePartitions.room

    def __init__(self) -> None:
        self.turns = RemoteTurns()
        self.share = RemoteShare()

    async def snapshot(self, *_: object) -> Any:
        raise RemoteStorageError("out of reach")

    offsets = latest = delete_records = snapshot

    async def delete_topics(self, _: object) -> None:
        """Leave what is remote of topics."""

    def partition(self, *_: object) -> TopicIdPartition:
        return _PARTITION

    def forget(self, _: object) -> None:
        """Let the reader forget a client."""

    def lose_sight(self, *_: object) -> None:
        """Take topics whose deletion is unclear."""


@functools.cache
def _metrics() -> GatewayMetrics:
    return GatewayMetrics()


# ------------------------------------------------------------------------------------------------------- with brokers


@functools.cache
def _answer(key: int, version: int) -> bytes:
    return encode_answer(filled(load_response_schema(key, version)), 0)


class _BeforeABroker:
    """A gateway before a broker that accepts everything: each login, too."""

    def __init__(self, with_login: bool) -> None:
        self.budget, self.ends, self._taken = MemoryBudget(_LIMIT), 0, 0
        self.client, self.broker = Wire(), Wire()
        connection = ClientConnection(_LIMIT, self._opened, self._ended, self.budget.account(), with_login=with_login)
        self._connection, self.protocol = connection, connection.client
        connection.client.connection_made(self.client)
        connection.broker.connection_made(self.broker)

    def _opened(self, connection: ClientConnection) -> ClientRequests:
        nothing = cast(Any, _NoRemoteLog())
        cluster = served_cluster(nothing, nothing, self.budget, gateway_limits(_LIMIT, 1), _metrics())
        self._requests = ClientRequests(1, connection, cluster)
        return self._requests

    def _ended(self, _: ClientConnection) -> None:
        self._requests.close()
        self.ends += 1

    @property
    def is_busy(self) -> bool:
        """Whether the broker was asked since it answered."""
        return self._taken < len(self.broker.sent)

    def react(self) -> None:
        """Answer what the broker was asked since the last call."""
        taken, self._taken = self._taken, len(self.broker.sent)
        for frame in _frames(self.broker.sent[taken:]):
            header = read_header(memoryview(frame), ALLOWED)
            is_answered = header.api.key != PRODUCE.key or expects_answer(header, memoryview(frame))
            if is_answered and not self.broker.closed:
                found = bytearray(_answer(header.api.key, header.version))
                found[SIZE_BYTES : 2 * SIZE_BYTES] = frame[_CORRELATION_ID]
                arrive(self._connection.broker, bytes(found))

    def leave(self) -> None:
        """Lose the client, then the broker."""
        self._connection.client.connection_lost(None)
        self._connection.broker.connection_lost(None)

    def check(self, _: bytes) -> None:
        """The broker gets whole requests of APIs that the gateway passes on."""
        sent = list(_frames(self.broker.sent))
        assert b"".join(sent) == self.broker.sent
        assert all(read_header(memoryview(each), ALLOWED).is_known for each in sent)


# ---------------------------------------------------------------------------------------------------- without brokers


class _WithoutBrokers:
    """A gateway of one topic whose records are out of reach; _USER may read it."""

    def __init__(self, with_login: bool) -> None:
        self.budget, self.ends, self.client = MemoryBudget(_LIMIT), 0, Wire()
        self._with_login = with_login
        self._connection = StandaloneConnection(_LIMIT, self._opened, self._ended, self.budget.account())
        self.protocol = self._connection.client
        self.protocol.connection_made(self.client)

    def _opened(self, connection: StandaloneConnection) -> StandaloneRequests:
        metrics, catalog, nothing = _metrics(), cast(Catalog, _OneTopic()), cast(Any, _NoRemoteLog())
        failures = ReadFailures(metrics)
        context: Any = SimpleNamespace(settings=_SETTINGS, decided_topic=lambda _: _TOPIC)
        log = ServedLog(
            catalog,
            nothing,
            Descriptions(context, catalog, Node("localhost", 9000)),
            LogOffsets(catalog, nothing, failures),
            self.budget,
            metrics,
            failures,
            _LIMIT,
            1,
            _access() if self._with_login else None,
        )
        fetch = LogFetch(1, log, connection.memory)
        return StandaloneRequests(log, fetch, connection, _LIMIT, with_tls=True)

    def _ended(self, _: StandaloneConnection) -> None:
        self.ends += 1

    is_busy = False

    def react(self) -> None:
        """There is no broker."""

    def leave(self) -> None:
        """Lose the client."""
        self.protocol.connection_lost(None)

    def check(self, content: bytes) -> None:
        """The client gets whole answers, one to each of its requests, in their order, up to where it is cut off."""
        answers = list(_frames(self.client.sent))
        assert b"".join(answers) == self.client.sent
        answered = [each[SIZE_BYTES:][:4] for each in answers]
        assert answered == [each[_CORRELATION_ID] for each in _frames(content)][: len(answers)]


class _OneTopic:
    async def topics(self) -> Topics:
        topics, ambiguous = named_topics([_PARTITION], [])
        return Topics(topics, {each.topic_id: each for each in topics.values()}, ambiguous, _PARTITION.cluster_id)


@functools.cache
def _access() -> Access:
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    users, rights = folder / "users.yaml", folder / "rights.yaml"
    users.touch(0o600)
    users.write_text(f"{_USER}: {_PASSWORD}")
    rights.write_text(f"users: {{{_USER}: {{read: ['*']}}}}")
    return Access(Users(users), RightsFile(rights))


# -------------------------------------------------------------------------------------------------------------- seeds


def _requests(apis: Iterable[Api]) -> Iterator[bytes]:
    for api in apis:
        for version in sorted({api.oldest, api.latest}):
            yield encode_request(filled(load_request_schema(api.key, version)), len(api.name), "fuzz")


def _login() -> bytes:
    plain = f"\0{_USER}\0{_PASSWORD}".encode()
    return encode_request(request(SASL_HANDSHAKE, 1, mechanism="PLAIN"), 1, "fuzz") + encode_request(
        request(SASL_AUTHENTICATE, 2, auth_bytes=plain), 2, "fuzz"
    )


def _seeds(apis: Iterable[Api]) -> Iterator[bytes]:
    everything = b"".join(_requests(apis))
    yield from (b"\0" + each for each in _requests(apis))
    for number in range(len(_PIECES)):
        yield bytes([number << 1 | _WITH_LOGIN]) + _login() + everything
        yield bytes([number << 1]) + everything


GATEWAY_TARGETS = (
    Target("gateway_requests", functools.partial(_served, _BeforeABroker), functools.partial(_seeds, _READ)),
    Target(
        "standalone_requests", functools.partial(_served, _WithoutBrokers), functools.partial(_seeds, SERVED.values())
    ),
)
