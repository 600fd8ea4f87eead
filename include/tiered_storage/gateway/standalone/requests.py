"""What becomes of a client's requests: answered out of the log, or refused."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from kio.schema.errors import ErrorCode

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
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
    refused_versions,
)
from tiered_storage.gateway.connections.owed_answers import Filled
from tiered_storage.gateway.standalone.apis import (
    AFTER_LOGIN,
    BEFORE_LOGIN,
    CONSUMER_GROUP_HEARTBEAT,
    DESCRIBE_CONFIGS,
    HEARTBEAT,
    INIT_PRODUCER_ID,
    JOIN_GROUP,
    LEAVE_GROUP,
    NO_ERROR,
    NO_TIME,
    OFFSET_COMMIT,
    OFFSET_FETCH,
    SERVED,
    SYNC_GROUP,
    served_versions,
)
from tiered_storage.gateway.standalone.connection import StandaloneConnection
from tiered_storage.gateway.standalone.log_fetch import LogFetch
from tiered_storage.gateway.standalone.login import Login, LoginRefusedError
from tiered_storage.gateway.standalone.refusals import (
    NO_GROUPS,
    READ_ONLY,
    REFUSED_TRANSACTION,
    refused,
    refused_produce,
)
from tiered_storage.gateway.standalone.served_log import ServedLog
from tiered_storage.kafka_wire.connections.apis import Api
from tiered_storage.kafka_wire.connections.error_codes import (
    NONE,
    SASL_AUTHENTICATION_FAILED,
    UNSUPPORTED_SASL_MECHANISM,
)
from tiered_storage.kafka_wire.connections.frames import answer, decode_request, elements, encode_answer
from tiered_storage.kafka_wire.server.fetch_request import take_fetch
from tiered_storage.kafka_wire.server.request_header import RequestHeader, read_header
from tiered_storage.kafka_wire.server.send_queue import Buffer
from tiered_storage.settings.read_rights import Right

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
_DESCRIBE: Final = Right.DESCRIBE
_REFUSAL_SECONDS: Final = 0.1
"""How long a refusal of a login takes at least: as Kafka's connection.failed.authentication.delay.ms."""
_WRONG_PASSWORD: Final = "Authentication failed: the user name or the password is wrong"  # noqa: S105 - a message


class StandaloneRequests:
    """The requests of one client's connection. For one event loop."""

    def __init__(
        self, log: ServedLog, fetch: LogFetch, connection: StandaloneConnection, largest_request: int, *, with_tls: bool
    ) -> None:
        """Answer out of `log`, and Fetches by `fetch`; requests have `largest_request` bytes once a login is over."""
        self._log = log
        self._fetch = fetch
        self._connection = connection
        self._largest_request = largest_request
        self._login = None if log.access is None else Login(log.access.users, with_tls=with_tls)
        self.is_over = False
        self._refused: set[str] = set()
        self._answers: dict[int, Callable[[int, Any], Awaitable[Any]]] = {
            LIST_OFFSETS.key: lambda version, asked: log.offsets.list_offsets(version, asked, self._may(_DESCRIBE)),
            OFFSET_FOR_LEADER_EPOCH.key: lambda version, asked: log.offsets.offsets_for_epochs(
                version, asked, self._may(_DESCRIBE)
            ),
            METADATA.key: lambda version, asked: log.descriptions.metadata(version, asked, self._may(_DESCRIBE)),
            DESCRIBE_CLUSTER.key: lambda version, _: log.descriptions.cluster(version),
            DESCRIBE_CONFIGS.key: lambda version, asked: log.descriptions.configs(version, asked, self._may(_DESCRIBE)),
            FIND_COORDINATOR.key: self._coordinator,
            SASL_HANDSHAKE.key: self._handshake,
            SASL_AUTHENTICATE.key: self._authenticate,
        }

    async def answer(self, frame: memoryview) -> list[Buffer] | Filled:
        """Return the answer to a request. Raises MalformedAnswerError for what ends the connection."""
        header = read_header(frame, self._apis())
        self._log.metrics.asked(header.api.name)
        if not header.is_known:
            return [refused_versions(header.correlation_id)]
        if header.api is API_VERSIONS:
            return [served_versions(header.version, header.correlation_id, with_login=self._login is not None)]
        if header.api is FETCH:
            asked = take_fetch(frame, header, min(self._log.most_fetch_bytes, self._connection.memory.share))
            return await self._fetch.answer(header, asked, self._may(Right.READ), self._user())
        return [encode_answer(each, header.correlation_id) for each in await self._decoded(frame, header)]

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
        keys = elements(asked.coordinator_keys) if hasattr(asked, "coordinator_keys") else (asked.key,)
        if int(getattr(asked, "key_type", _GROUP_KEY)) == _GROUP_KEY:
            return self._log.descriptions.coordinators(version, keys, NO_ERROR, None)
        self._refuse(READ_ONLY)
        return self._log.descriptions.coordinators(version, keys, REFUSED_TRANSACTION, READ_ONLY)

    def _apis(self) -> Mapping[int, Api]:
        """Return what the client may ask now."""
        if self._login is None:
            return SERVED
        return BEFORE_LOGIN if self._login.user is None else AFTER_LOGIN

    def _may(self, right: Right) -> Callable[[str], bool]:
        """Return a function that returns whether the client has a right on a topic."""
        access, user = self._log.access, None if self._login is None else self._login.user
        if access is None or user is None:
            return lambda _: True
        # Read the rights for each topic: a person may withdraw one while a Fetch waits at the end of the log.
        return lambda topic: access.rights.current().allows(user, (), right, topic)

    async def _handshake(self, version: int, asked: Any) -> Any:
        login = self._begun_login(has_begun=False)
        is_known = login.choose(str(asked.mechanism))
        self.is_over = not is_known
        code = ErrorCode(NONE if is_known else UNSUPPORTED_SASL_MECHANISM)
        return answer(SASL_HANDSHAKE, version, error_code=code, mechanisms=login.mechanisms)

    async def _authenticate(self, version: int, asked: Any) -> Any:
        login = self._begun_login(has_begun=True)
        values: dict[str, Any] = {
            "error_code": ErrorCode(NONE),
            "error_message": None,
            "auth_bytes": b"",
            "session_lifetime": NO_TIME,
        }
        try:
            values["auth_bytes"] = login.step(bytes(asked.auth_bytes))
        except LoginRefusedError as error:
            _log.warning("%s cannot log in: %s", self._peer(), error)
            await asyncio.sleep(_REFUSAL_SECONDS)
            self.is_over = True
            values |= {"error_code": ErrorCode(SASL_AUTHENTICATION_FAILED), "error_message": _WRONG_PASSWORD}
        if login.user is not None:
            self._connection.client.largest = self._largest_request
        return answer(SASL_AUTHENTICATE, version, **values)

    def _begun_login(self, *, has_begun: bool) -> Login:
        """Return the login under way. Raises MalformedAnswerError for a message that comes out of turn."""
        login = self._login
        if login is None or login.user is not None or login.has_begun != has_begun:
            raise MalformedAnswerError(f"{self._peer()} sends a message of a login out of turn")
        return login

    def _user(self) -> str:
        return "" if self._login is None or self._login.user is None else self._login.user

    def _peer(self) -> str:
        return self._connection.client.peer

    def _refuse(self, reason: str) -> None:
        """Log once a connection why the client gets an error."""
        if reason not in self._refused:
            self._refused.add(reason)
            _log.warning("%s is refused: %s", self._peer(), reason)
