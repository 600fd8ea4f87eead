"""One connection to one broker: versions, login, and one request at a time.

Opening it asks for the broker's versions (a broker that does not know the version of that request answers with version
0 and the error UNSUPPORTED_VERSION) and logs in. A broker that limits sessions (connections.max.reauth.ms) is logged in
to again on the same connection, before the next request after most of the session.

Source: KIP-35, KIP-152, KIP-368, KIP-511.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from tiered_storage import __version__
from tiered_storage.errors import (
    ClusterRefusedError,
    ClusterUnreachableError,
    MalformedAnswerError,
)
from tiered_storage.kafka_wire.connections.apis import API_VERSIONS, SASL_AUTHENTICATE, SASL_HANDSHAKE, Api, ApiVersions
from tiered_storage.kafka_wire.connections.client_settings import BrokerAddress, ClientSettings, SaslSettings
from tiered_storage.kafka_wire.connections.error_codes import (
    NONE,
    SASL_AUTHENTICATION_FAILED,
    UNSUPPORTED_SASL_MECHANISM,
    UNSUPPORTED_VERSION,
    error_name,
)
from tiered_storage.kafka_wire.connections.frames import (
    LARGEST_MESSAGE,
    SIZE_BYTES,
    decode_answer,
    decode_size,
    encode_request,
    request,
)
from tiered_storage.kafka_wire.connections.sasl import TokenSource, exchange
from tiered_storage.kafka_wire.connections.transport import Deadline, Transport, open_transport

SHARE_OF_SESSION = 0.85
"""A session is renewed after this share of its lifetime, as Java's client does at the earliest."""
CLIENT_SOFTWARE = "remote-log"
"""What a broker's metrics count this client as."""
_LAST_CORRELATION_ID = (1 << 31) - 1

Answer = TypeVar("Answer")
Decode = Callable[[memoryview, Api, int, int], Answer]
"""Decodes an answer without its size: of a request of that API and version, with that correlation id."""


class Connection:
    """A connection to the broker at `address`. For one thread.

    After any error it is closed, as the next answer could be that of an earlier request.
    """

    def __init__(
        self, transport: Transport, address: BrokerAddress, settings: ClientSettings, token: TokenSource | None = None
    ) -> None:
        """Take over `transport`; `open_connection` asks for versions and logs in."""
        self.address = address
        self.is_open = True
        self._transport = transport
        self._settings = settings
        self._token = token
        self._versions = ApiVersions(str(address))
        self._correlation_id = 0
        self._session_ends: Deadline | None = None
        self._served = False
        """Whether the broker has answered anything but the first questions, which every listener answers."""

    def version(self, api: Api) -> int:
        """Return the version of `api` that requests on this connection have. Raises ClusterRefusedError."""
        return self._versions.choose(api)

    def exchange(self, api: Api, message: Any, deadline: Deadline, read: Callable[[Any], Answer]) -> Answer:
        """Send kio's request `message` of the API, and return what `read` makes of kio's response.

        Raises ClusterUnreachableError, ClusterRefusedError or MalformedAnswerError, also that of `read`, and closes the
        connection.
        """

        def decode(frame: memoryview, api: Api, version: int, correlation_id: int) -> Answer:
            return read(decode_answer(frame, api, version, correlation_id))

        return self.receive(api, message, deadline, decode, _fresh_buffer, LARGEST_MESSAGE)

    def receive(
        self,
        api: Api,
        message: Any,
        deadline: Deadline,
        decode: Decode[Answer],
        buffer: Callable[[int], memoryview],
        largest: int,
    ) -> Answer:
        """Send kio's request `message`, and return what `decode` makes of the answer.

        The answer without its size, `largest` bytes at most, lands in what `buffer` gives for its size. Raises as
        `exchange`.
        """
        try:
            self._renew_session(deadline)
            answer = self._round_trip(api, message, deadline, decode, buffer, largest)
        except BaseException:
            self.close()
            raise
        self._served = True
        return answer

    def negotiate(self, deadline: Deadline) -> None:
        """Ask for the broker's versions, and log in. Raises as `exchange`."""
        try:
            self._ask_versions(deadline)
            self._log_in(deadline)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the connection."""
        self.is_open = False
        self._transport.close()

    def _ask_versions(self, deadline: Deadline) -> None:
        answer = self._round_trip(API_VERSIONS, _versions_request(API_VERSIONS.latest), deadline, _decode_versions)
        if answer.error_code == UNSUPPORTED_VERSION:
            answer = self._round_trip(API_VERSIONS, _versions_request(0), deadline)
        if answer.error_code != NONE:
            raise ClusterRefusedError(f"{self.address}: ApiVersions failed with {error_name(answer.error_code)}")
        self._versions = ApiVersions.of(str(self.address), answer)

    def _renew_session(self, deadline: Deadline) -> None:
        if self._session_ends is not None and not self._session_ends.left:
            self._log_in(deadline)

    def _log_in(self, deadline: Deadline) -> None:
        sasl = self._settings.sasl
        if sasl is None:
            return
        begun = deadline.now()
        handshake = self._small(SASL_HANDSHAKE, deadline, mechanism=sasl.mechanism)
        if handshake.error_code == UNSUPPORTED_SASL_MECHANISM:
            offered = ", ".join(handshake.mechanisms or ())
            raise ClusterRefusedError(
                f"{self.address} does not offer {sasl.mechanism}; set sasl.mechanism to one of: {offered}"
            )
        if handshake.error_code != NONE:
            raise ClusterRefusedError(
                f"{self.address}: SaslHandshake failed with {error_name(handshake.error_code)}: does the listener take "
                f"security.protocol={self._settings.protocol}?"
            )
        lifetime = self._authenticate(sasl, deadline)
        # Count from before the login: the broker starts counting during it.
        self._session_ends = (
            Deadline(lifetime, begun + SHARE_OF_SESSION * lifetime, deadline.now) if lifetime > 0 else None
        )

    def _authenticate(self, sasl: SaslSettings, deadline: Deadline) -> float:
        """Return the lifetime of the session in seconds; 0: without end."""
        steps = exchange(sasl, self._token)
        try:
            message = next(steps)
            while True:
                answer = self._small(SASL_AUTHENTICATE, deadline, auth_bytes=message)
                if answer.error_code != NONE:
                    raise self._refused(sasl, answer)
                message = steps.send(answer.auth_bytes)
        except StopIteration:
            return float(answer.session_lifetime.total_seconds())
        except ClusterRefusedError as error:
            raise ClusterRefusedError(f"{self.address}: {error}") from error

    def _refused(self, sasl: SaslSettings, answer: Any) -> ClusterRefusedError:
        advice = (
            "check the token"
            if sasl.mechanism == "OAUTHBEARER"
            else "check sasl.username and sasl.password, and that the broker has that user for this sasl.mechanism"
        )
        reason = "" if answer.error_code == SASL_AUTHENTICATION_FAILED else f" ({error_name(answer.error_code)})"
        return ClusterRefusedError(f"the broker refuses the {sasl.mechanism} login{reason}: {advice}")

    def _small(self, api: Api, deadline: Deadline, **values: Any) -> Any:
        return self._round_trip(api, request(api, self.version(api), **values), deadline)

    def _round_trip(
        self,
        api: Api,
        message: Any,
        deadline: Deadline,
        decode: Decode[Answer] = decode_answer,
        buffer: Callable[[int], memoryview] | None = None,
        largest: int = LARGEST_MESSAGE,
    ) -> Answer:
        self._correlation_id = self._correlation_id % _LAST_CORRELATION_ID + 1
        try:
            self._transport.send(encode_request(message, self._correlation_id, self._settings.client_id), deadline)
            size = bytearray(SIZE_BYTES)
            self._transport.receive_into(memoryview(size), deadline)
            frame = (buffer or _fresh_buffer)(decode_size(size, largest))
            self._transport.receive_into(frame, deadline)
            return decode(frame, api, message.__version__, self._correlation_id)
        except MalformedAnswerError as error:
            raise MalformedAnswerError(f"{self.address}: {api}: {error}") from error
        except ClusterUnreachableError as error:
            raise ClusterUnreachableError(f"{api}: {error}{self._doubt(api)}") from error

    def _doubt(self, api: Api) -> str:
        """Return what may be wrong if a broker closes a connection before it has served anything."""
        if self._served or api in (SASL_HANDSHAKE, SASL_AUTHENTICATE):
            return ""
        return f"; does the listener take security.protocol={self._settings.protocol}?"


def open_connection(
    address: BrokerAddress, settings: ClientSettings, deadline: Deadline, token: TokenSource | None = None
) -> Connection:
    """Connect to the broker at `address`, and log in.

    Raises ClusterUnreachableError, ClusterRefusedError or MalformedAnswerError; ConfigurationError if a file that the
    settings name cannot be read.
    """
    within = deadline.within(settings.connect_seconds)
    connection = Connection(open_transport(address, settings, within), address, settings, token)
    connection.negotiate(within)
    return connection


def _versions_request(version: int) -> Any:
    return request(API_VERSIONS, version, client_software_name=CLIENT_SOFTWARE, client_software_version=__version__)


def _fresh_buffer(size: int) -> memoryview:
    return memoryview(bytearray(size))


def _decode_versions(frame: memoryview, api: Api, version: int, correlation_id: int) -> Any:
    """Decode an answer that is in version 0 if it refuses the request's version.

    Both begin with the error code.
    """
    refused = frame[4:6] == UNSUPPORTED_VERSION.to_bytes(2, "big")
    return decode_answer(frame, api, 0 if refused else version, correlation_id)
