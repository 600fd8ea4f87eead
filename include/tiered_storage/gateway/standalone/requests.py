"""What becomes of a client's requests: answered out of the log, or refused."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from tiered_storage.errors import MalformedAnswerError
from tiered_storage.gateway.allowed_apis import (
    API_VERSIONS,
    DESCRIBE_CLUSTER,
    FETCH,
    FIND_COORDINATOR,
    LIST_OFFSETS,
    METADATA,
    OFFSET_FOR_LEADER_EPOCH,
    PRODUCE,
    refused_versions,
)
from tiered_storage.gateway.client_connection import Filled
from tiered_storage.gateway.limits.memory_budget import MemoryAccount
from tiered_storage.gateway.operation.metrics import GatewayMetrics
from tiered_storage.gateway.standalone.apis import (
    CONSUMER_GROUP_HEARTBEAT,
    DESCRIBE_CONFIGS,
    HEARTBEAT,
    INIT_PRODUCER_ID,
    JOIN_GROUP,
    LEAVE_GROUP,
    NO_ERROR,
    OFFSET_COMMIT,
    OFFSET_FETCH,
    SERVED,
    SYNC_GROUP,
    served_versions,
)
from tiered_storage.gateway.standalone.descriptions import Descriptions
from tiered_storage.gateway.standalone.log_fetch import LogFetch
from tiered_storage.gateway.standalone.offsets import LogOffsets
from tiered_storage.gateway.standalone.refusals import (
    NO_GROUPS,
    READ_ONLY,
    REFUSED_TRANSACTION,
    refused,
    refused_produce,
)
from tiered_storage.kafka_wire.connections.frames import decode_request, encode_answer
from tiered_storage.kafka_wire.server.fetch_request import take_fetch
from tiered_storage.kafka_wire.server.frame_protocol import Piece
from tiered_storage.kafka_wire.server.request_header import RequestHeader, read_header

_log = logging.getLogger(__name__)

_GROUP_KEY: Final = 0
"""FindCoordinator asks for a group, and not for a transaction."""
_OF_GROUPS: Final = (
    JOIN_GROUP,
    SYNC_GROUP,
    HEARTBEAT,
    LEAVE_GROUP,
    OFFSET_COMMIT,
    OFFSET_FETCH,
    CONSUMER_GROUP_HEARTBEAT,
)
_NO_ACKS: Final = 0


@dataclass(frozen=True, slots=True)
class ServedLog:
    """What all clients of a process share."""

    descriptions: Descriptions
    offsets: LogOffsets
    metrics: GatewayMetrics
    most_fetch_bytes: int


class StandaloneRequests:
    """The requests of one client's connection. For one event loop."""

    def __init__(self, log: ServedLog, fetch: LogFetch, memory: MemoryAccount, peer: Callable[[], str]) -> None:
        """Answer out of `log`, and Fetches by `fetch`; `peer` is the client's address, for messages.

        `memory` is the connection's account.
        """
        self._log = log
        self._fetch = fetch
        self._memory = memory
        self._peer = peer
        self._refused: set[str] = set()
        answers: dict[int, Callable[[int, Any], Awaitable[Any]]] = {
            LIST_OFFSETS.key: lambda version, asked: log.offsets.list_offsets(LIST_OFFSETS, version, asked, self._may),
            OFFSET_FOR_LEADER_EPOCH.key: lambda version, asked: log.offsets.offsets_for_epochs(
                OFFSET_FOR_LEADER_EPOCH, version, asked, self._may
            ),
            METADATA.key: lambda version, asked: log.descriptions.metadata(METADATA, version, asked, self._may),
            DESCRIBE_CLUSTER.key: lambda version, _: log.descriptions.cluster(DESCRIBE_CLUSTER, version),
            DESCRIBE_CONFIGS.key: lambda version, asked: log.descriptions.configs(version, asked, self._may),
            FIND_COORDINATOR.key: self._coordinator,
        }
        self._answers = answers

    async def answer(self, frame: memoryview) -> list[Piece] | Filled:
        """Return the answer to a request. Raises MalformedAnswerError for what ends the connection."""
        header = read_header(frame, SERVED)
        self._log.metrics.asked(header.api.name)
        if not header.is_known:
            return [refused_versions(header.correlation_id)]
        if header.api is API_VERSIONS:
            return [served_versions(header.version, header.correlation_id, with_login=False)]
        if header.api is FETCH:
            asked = take_fetch(frame, header, min(self._log.most_fetch_bytes, self._memory.share))
            return await self._fetch.answer(header, asked, self._may)
        return [encode_answer(answer, header.correlation_id) for answer in await self._decoded(frame, header)]

    def close(self) -> None:
        """End what the client left open."""
        self._fetch.close()

    async def _decoded(self, frame: memoryview, header: RequestHeader) -> list[Any]:
        """Return kio's answer to a request that kio knows, or none."""
        asked = decode_request(header.body(frame), header.api, header.version)
        if header.api is PRODUCE:
            self._refuse(READ_ONLY)
            if int(asked.acks) == _NO_ACKS:
                raise MalformedAnswerError(f"{self._peer()} writes without acks, and {READ_ONLY}")
            return [refused_produce(PRODUCE, header.version, asked)]
        if header.api in _OF_GROUPS or header.api is INIT_PRODUCER_ID:
            self._refuse(READ_ONLY if header.api is INIT_PRODUCER_ID else NO_GROUPS)
            return [refused(header.api, header.version, asked)]
        return [await self._answers[header.api.key](header.version, asked)]

    async def _coordinator(self, version: int, asked: Any) -> Any:
        keys = asked.coordinator_keys if hasattr(asked, "coordinator_keys") else (asked.key,)
        if int(getattr(asked, "key_type", _GROUP_KEY)) == _GROUP_KEY:
            return self._log.descriptions.coordinators(FIND_COORDINATOR, version, keys, NO_ERROR, None)
        self._refuse(READ_ONLY)
        return self._log.descriptions.coordinators(FIND_COORDINATOR, version, keys, REFUSED_TRANSACTION, READ_ONLY)

    def _may(self, _: str) -> bool:
        return True

    def _refuse(self, reason: str) -> None:
        """Log once a connection why the client gets an error."""
        if reason not in self._refused:
            self._refused.add(reason)
            _log.warning("%s is refused: %s", self._peer(), reason)
