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
from tiered_storage.gateway.broker_ports import BrokerPorts
from tiered_storage.gateway.broker_questions import BrokerQuestions, NamedTopic
from tiered_storage.gateway.connections.client_connection import ClientConnection
from tiered_storage.gateway.connections.owed_answers import Change, Changed
from tiered_storage.gateway.deletions.client_deletions import DELETING, ClientDeletions, Deletion
from tiered_storage.gateway.deletions.remote_deletions import RemoteDeletions
from tiered_storage.gateway.fetch_errors import ReadFailures
from tiered_storage.gateway.limits.client_quotas import ClientName, ClientQuotas
from tiered_storage.gateway.operation.metrics import GatewayMetrics
from tiered_storage.gateway.remote_fetch import RemoteFetch
from tiered_storage.gateway.remote_offsets import RemoteOffsets
from tiered_storage.gateway.remote_partitions import RemotePartitions
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
_SCRAM: Final = "SCRAM-"
_SCRAM_STEPS: Final = 2
"""A broker's first answer to SCRAM shows nothing of whether the client knows the password."""
_PLAIN: Final = "PLAIN"
_OAUTHBEARER: Final = "OAUTHBEARER"
"""If a broker refuses a token, its first answer has the reason but no error code; the next answer has the code."""
_IN_ADDRESSES: Final = {
    METADATA.key: broker_addresses.in_metadata,
    FIND_COORDINATOR.key: broker_addresses.in_coordinators,
    DESCRIBE_CLUSTER.key: broker_addresses.in_cluster,
}


class ClientRequests:
    """The requests of one client's connection. For one event loop."""

    def __init__(
        self,
        number: int,
        connection: ClientConnection,
        ports: BrokerPorts,
        partitions: RemotePartitions,
        metrics: GatewayMetrics,
        failures: ReadFailures,
        quotas: ClientQuotas,
        deletions: RemoteDeletions,
        names: dict[bytes, NamedTopic],
        *,
        most_fetch_bytes: int,
        most_wait_ms: int,
        skips_missing: bool,
    ) -> None:
        """Serve connection `number`; a Fetch has `most_fetch_bytes` of records at most.

        All connections of a process share `names`, topics by their ids.
        """
        questions = BrokerQuestions(connection.own, names=names)
        self._connection = connection
        self._turns = partitions.turns
        self._ports = ports
        self._metrics = metrics
        self._most_fetch_bytes = most_fetch_bytes
        self._login_steps = 1
        self._refuses_in_words = False
        self._mechanism = ""
        self._user = ""
        self._fetch = RemoteFetch(
            number,
            partitions,
            questions,
            metrics,
            failures,
            connection.memory,
            quotas,
            most_wait_ms,
            skips_missing=skips_missing,
        )
        self._offsets = RemoteOffsets(partitions, questions, failures)
        self._deletions = ClientDeletions(partitions, questions, connection.own, deletions)
        self._preparing: asyncio.Task[None] | None = None
        self._prepared: Deletion | None = None
        self._changes: dict[int, Callable[[memoryview, RequestHeader], Change | None]] = {
            **dict.fromkeys(_IN_ADDRESSES, self._with_addresses),
            API_VERSIONS.key: self._api_versions,
            SASL_HANDSHAKE.key: self._handshake,
            SASL_AUTHENTICATE.key: self._authenticate,
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
            return self._take_deletion(frame, header)
        self._metrics.asked(header.api.name)
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
        if self._preparing is not None:
            self._preparing.cancel()

    def _take_deletion(self, frame: memoryview, header: RequestHeader) -> bool:
        """Prepare a deletion, or forward it if it is: then it is taken again.

        It is the first one that waits, so there is only one.
        """
        deletion = self._prepared
        if deletion is None:
            if self._preparing is None:
                asked = self._deletions.decode(frame, header)
                self._preparing = asyncio.get_running_loop().create_task(self._prepare(frame, header, asked))
            return False
        self._prepared = self._preparing = None
        self._metrics.asked(header.api.name)
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

    def _with_addresses(self, _: memoryview, header: RequestHeader) -> Change:
        in_answer = _IN_ADDRESSES[header.api.key]
        return lambda answer: in_answer(answer, header, self._ports.translate)

    def _produce(self, _: memoryview, header: RequestHeader) -> Change | None:
        self._turns.pace()
        if header.version < broker_addresses.PRODUCE_WITH_ENDPOINTS:
            return None
        return lambda answer: broker_addresses.in_produce(answer, header, self._ports.translate)

    def _api_versions(self, _: memoryview, header: RequestHeader) -> Change:
        return partial(self._versions, header)

    def _handshake(self, frame: memoryview, header: RequestHeader) -> None:
        mechanism = header.body(frame).string(flexible=False)
        self._login_steps = _SCRAM_STEPS if mechanism.startswith(_SCRAM) else 1
        self._refuses_in_words = mechanism == _OAUTHBEARER
        self._mechanism, self._user = mechanism, ""

    def _authenticate(self, frame: memoryview, header: RequestHeader) -> Change:
        asked = decode_request(header.body(frame), header.api, header.version)
        self._user = self._user or user_of(self._mechanism, asked.auth_bytes)
        return partial(self._authenticated, header)

    def _authenticated(self, header: RequestHeader, answer: memoryview) -> Changed:
        found: Any = decode_answer(answer[SIZE_BYTES:], header.api, header.version, header.correlation_id)
        is_refused = found.error_code.value != NONE or (self._refuses_in_words and found.auth_bytes)
        self._login_steps -= not is_refused
        if not self._login_steps:
            self._connection.logged_in()
        return [answer]

    def _a_fetch(self, frame: memoryview, header: RequestHeader) -> Change:
        most_bytes = min(self._most_fetch_bytes, self._connection.memory.share)
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
            addresses = broker_addresses.in_tags(answer, SIZE_BYTES + layout.tags_start, self._ports.translate)
        more = [] if addresses is None else [addresses]
        if layout.records_size:
            self._turns.pace()
        if self._fetch.is_concerned(request, layout):
            return self._fetch.fill(answer, request, layout, more, ClientName(self._user, header.client_id))
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


def user_of(mechanism: str, message: bytes) -> str:
    """Return the user that a login's first message names; "" if its mechanism does not show it.

    It is the broker that refuses the user: nobody uses the name before.
    """
    text = message.decode(errors="replace")
    if mechanism == _PLAIN:
        return text.split("\0")[1] if text.count("\0") > 1 else ""
    if mechanism.startswith(_SCRAM):
        return next((each[2:] for each in text.split(",") if each.startswith("n=")), "")
    return ""
