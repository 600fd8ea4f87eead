"""What becomes of a client's requests: passed on as they are, changed on the way there or back, or refused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from tiered_storage.gateway.allowed_apis import (
    ALLOWED,
    API_VERSIONS,
    DESCRIBE_CLUSTER,
    FETCH,
    FIND_COORDINATOR,
    LIST_OFFSETS,
    METADATA,
    OFFSET_FOR_LEADER_EPOCH,
    PRODUCE,
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
    capped_versions,
    refused_versions,
)
from tiered_storage.gateway.broker_questions import BrokerQuestions
from tiered_storage.gateway.connections.client_connection import ClientConnection
from tiered_storage.gateway.connections.client_login import ClientLogin
from tiered_storage.gateway.connections.owed_answers import Change, Changed
from tiered_storage.gateway.deletions.client_deletions import DELETING, ClientDeletions, Deletion
from tiered_storage.gateway.limits.client_quotas import ClientName
from tiered_storage.gateway.remote_fetch import RemoteFetch
from tiered_storage.gateway.remote_offsets import RemoteOffsets
from tiered_storage.gateway.served_cluster import ServedCluster
from tiered_storage.kafka_wire.connections.apis import ApiVersions
from tiered_storage.kafka_wire.connections.error_codes import NONE, UNSUPPORTED_VERSION
from tiered_storage.kafka_wire.connections.frames import (
    SIZE_BYTES,
    decode_answer,
    decode_request,
    encode_answer,
)
from tiered_storage.kafka_wire.server import broker_addresses
from tiered_storage.kafka_wire.server.fetch_request import FetchRequest, take_fetch
from tiered_storage.kafka_wire.server.request_header import RequestHeader, read_header
from tiered_storage.kafka_wire.server.send_queue import spliced

_ERROR_CODE: Final = slice(SIZE_BYTES + 4, SIZE_BYTES + 6)
"""Where an answer to ApiVersions has its error code, in every version."""
_IN_ADDRESSES: Final = {
    METADATA.key: broker_addresses.in_metadata,
    FIND_COORDINATOR.key: broker_addresses.in_coordinators,
    DESCRIBE_CLUSTER.key: broker_addresses.in_cluster,
}


class ClientRequests:
    """The requests of one client's connection. For one event loop."""

    def __init__(self, number: int, connection: ClientConnection, cluster: ServedCluster) -> None:
        """Serve connection `number` with what all connections of the `cluster` share."""
        questions = BrokerQuestions(connection.own, names=cluster.names)
        self._connection = connection
        self._cluster = cluster
        self._login = ClientLogin(connection)
        self._fetch = RemoteFetch(number, cluster, questions, connection.memory)
        self._offsets = RemoteOffsets(cluster.partitions, questions, cluster.failures)
        deletions = ClientDeletions(cluster.partitions, questions, connection.own, cluster.deletions)
        self._deletions = _Deletions(connection, deletions)
        self._changes: dict[int, Callable[[memoryview, RequestHeader], Change | None]] = {
            **dict.fromkeys(_IN_ADDRESSES, self._with_addresses),
            API_VERSIONS.key: self._api_versions,
            SASL_HANDSHAKE.key: self._login.handshake,
            SASL_AUTHENTICATE.key: self._login.authenticate,
            PRODUCE.key: self._produce,
            FETCH.key: self._a_fetch,
            LIST_OFFSETS.key: self._list_offsets,
            OFFSET_FOR_LEADER_EPOCH.key: self._epochs,
        }
        """By API key: returns the function that changes the answer to a request. Other answers stay as they are."""

    def take(self, frame: memoryview) -> bool:
        """Pass a request on, or answer it; False: it waits for what comes before.

        Raises MalformedAnswerError for what is refused: the connection ends.
        """
        header = read_header(frame, ALLOWED)
        if not self._connection.can_take(header):
            return False
        if header.api.key in DELETING:
            is_taken = self._deletions.take(frame, header)
            if is_taken:
                self._cluster.metrics.asked(header.api.name)
            return is_taken
        self._cluster.metrics.asked(header.api.name)
        if not header.is_known:
            self._connection.reply(refused_versions(header.correlation_id), frame)
            return True
        make_change = self._changes.get(header.api.key)
        self._connection.forward(frame, header, make_change(frame, header) if make_change else None)
        return True

    def close(self) -> None:
        """End what the client left open."""
        self._fetch.close()
        self._deletions.close()

    def _with_addresses(self, _: memoryview, header: RequestHeader) -> Change:
        in_answer = _IN_ADDRESSES[header.api.key]
        return lambda answer: in_answer(answer, header, self._cluster.ports.translate)

    def _produce(self, _: memoryview, header: RequestHeader) -> Change | None:
        self._cluster.partitions.share.pace()
        if header.version < broker_addresses.PRODUCE_WITH_ENDPOINTS:
            return None
        return lambda answer: broker_addresses.in_produce(answer, header, self._cluster.ports.translate)

    def _api_versions(self, _: memoryview, header: RequestHeader) -> Change:
        return partial(self._versions, header)

    def _a_fetch(self, frame: memoryview, header: RequestHeader) -> Change:
        most_bytes = min(self._cluster.limits.most_fetch_bytes, self._connection.memory.share)
        asked = take_fetch(frame, header, most_bytes, share=self._fetch.needs_share())
        return partial(self._fetched, header, asked)

    def _list_offsets(self, frame: memoryview, header: RequestHeader) -> Change:
        asked = decode_request(header.body(frame), header.api, header.version)
        return lambda answer: self._offsets.list_offsets(answer, header, asked)

    def _epochs(self, frame: memoryview, header: RequestHeader) -> Change:
        asked = decode_request(header.body(frame), header.api, header.version)
        return lambda answer: self._offsets.offsets_for_leader_epochs(answer, header, asked)

    def _fetched(self, header: RequestHeader, request: FetchRequest, answer: memoryview) -> Changed:
        layout = self._fetch.layout(answer, header)
        addresses = None
        if header.version >= broker_addresses.FETCH_WITH_ENDPOINTS:
            addresses = broker_addresses.in_tags(answer, SIZE_BYTES + layout.tags_start, self._cluster.ports.translate)
        more = [] if addresses is None else [addresses]
        if self._fetch.is_concerned(request, layout):
            # Its local records do not limit remote work: a client that has caught up with some partitions would slow
            # itself down in the others.
            return self._fetch.fill(answer, request, layout, more, ClientName(self._login.user, header.client_id))
        if layout.records_size:
            self._cluster.partitions.share.pace()
        return spliced(answer, more) if more else [answer]

    def _versions(self, header: RequestHeader, answer: memoryview) -> Changed:
        refused = int.from_bytes(answer[_ERROR_CODE], "big", signed=True)
        if refused == UNSUPPORTED_VERSION:
            # A broker that does not know the version answers in version 0.
            found: Any = decode_answer(answer[SIZE_BYTES:], header.api, 0, header.correlation_id)
        else:
            found = decode_answer(answer[SIZE_BYTES:], header.api, header.version, header.correlation_id)
        if refused == NONE:
            self._connection.own.versions = ApiVersions.of(self._connection.broker.peer, found)
        return [encode_answer(capped_versions(found), header.correlation_id)]


class _Deletions:
    """The requests of one client that delete: each is prepared, then forwarded. For one event loop."""

    def __init__(self, connection: ClientConnection, deletions: ClientDeletions) -> None:
        """Forward over `connection` what `deletions` prepare."""
        self._connection = connection
        self._deletions = deletions
        self._preparing: asyncio.Task[None] | None = None
        self._prepared: Deletion | None = None

    def take(self, frame: memoryview, header: RequestHeader) -> bool:
        """Prepare a deletion and return False, or forward it if it is prepared: it is taken again.

        It is the first request that waits, so there is only one. Raises MalformedAnswerError.
        """
        deletion = self._prepared
        if deletion is None:
            if self._preparing is None:
                asked = self._deletions.decode(frame, header)
                self._preparing = asyncio.get_running_loop().create_task(self._prepare(frame, header, asked))
            return False
        self._prepared = self._preparing = None
        self._connection.forward(
            frame, header, lambda answer: self._deletions.answer(answer, header, deletion), sent=deletion.frame
        )
        return True

    async def _prepare(self, frame: memoryview, header: RequestHeader, asked: Any) -> None:
        try:
            self._prepared = await self._deletions.prepare(frame, header, asked)
            self._connection.arrived.take()
        except Exception as error:  # noqa: BLE001 - a connection that cannot continue must not hang
            # Without an answer, the broker must not get the request.
            if not self._connection.has_ended:
                self._connection.failed(error)

    def close(self) -> None:
        """End what the client left open."""
        self._deletions.close()
        if self._preparing is not None:
            self._preparing.cancel()
