"""A blocking socket to one broker, with or without TLS, under a deadline.

A time-out of a socket begins again with every byte, so a broker that trickles would hold its caller for ever. Here each
call waits only for what is left of its deadline.

Blocking, not asyncio: a copy waits for one answer at a time, and asyncio took more CPU for each GB fetched (0.28 to
0.33 s, blocking sockets 0.23 to 0.25 s).
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tiered_storage.errors import ClusterRefusedError, ClusterUnreachableError, ConfigurationError
from tiered_storage.kafka_wire.connections.client_settings import BrokerAddress, ClientSettings, TlsSettings

_HANDSHAKE = "the TLS handshake"


@dataclass(frozen=True, slots=True)
class Deadline:
    """A moment (seconds, by `now`) that ends a call of `seconds`."""

    seconds: float
    at: float
    now: Callable[[], float] = time.monotonic

    @classmethod
    def after(cls, seconds: float, now: Callable[[], float] = time.monotonic) -> Deadline:
        """Return the deadline of a call that begins now."""
        return cls(seconds, now() + seconds, now)

    @property
    def left(self) -> float:
        """The seconds left; 0 after the deadline."""
        return max(0.0, self.at - self.now())

    def within(self, seconds: float) -> Deadline:
        """Return the deadline of a part that may take `seconds`, and never longer than the whole."""
        part = Deadline.after(seconds, self.now)
        return part if part.at < self.at else self


class Transport:
    """Moves bytes between a broker and this process. For one thread.

    After an error it is of no use any more: close it. Methods raise ClusterUnreachableError for a deadline that has
    passed and for a connection that is lost, ClusterRefusedError for one that TLS refuses.
    """

    def __init__(self, connected: socket.socket, address: BrokerAddress) -> None:
        """Take over `connected`; `open_transport` opens it."""
        self._socket = connected
        self._address = address

    def send(self, data: bytes, deadline: Deadline) -> None:
        """Send all of `data`."""
        with _named(self._address, "sending a request", deadline):
            _wait_at_most(self._socket, deadline)
            try:
                self._socket.sendall(data)
            except OSError:
                # With TLS 1.3 a broker refuses our certificate only after the handshake: read its reason before
                # raising.
                if isinstance(self._socket, ssl.SSLSocket):
                    self._socket.recv(1)
                raise

    def receive_into(self, view: memoryview, deadline: Deadline) -> None:
        """Fill `view` with the next bytes."""
        at, size = 0, len(view)
        with _named(self._address, "waiting for an answer", deadline):
            while at < size:
                _wait_at_most(self._socket, deadline)
                received = self._socket.recv_into(view[at:])
                if not received:
                    raise ClusterUnreachableError(f"{self._address} closed the connection")
                at += received

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()


def open_transport(address: BrokerAddress, settings: ClientSettings, deadline: Deadline) -> Transport:
    """Connect to `address`, with a TLS handshake if `settings` ask for one.

    Raises as the methods of Transport; ConfigurationError if a file of certificates cannot be read.
    """
    context = tls_context(settings.tls) if settings.tls else None
    connected = _connected(address, settings, deadline)
    try:
        if context is not None:
            with _named(address, _HANDSHAKE, deadline):
                _wait_at_most(connected, deadline)
                connected = context.wrap_socket(connected, server_hostname=address.host)
    except BaseException:
        connected.close()
        raise
    return Transport(connected, address)


def tls_context(tls: TlsSettings) -> ssl.SSLContext:
    """Return the context of a client that trusts and shows what `tls` names.

    Raises ConfigurationError, which names the property, if a file cannot be read.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = tls.check_host
    context.verify_mode = ssl.CERT_REQUIRED if tls.verify else ssl.CERT_NONE
    _trust(context, tls.ca_location, tls.ca_pem, "ssl.ca.location")
    if tls.certificate_location:
        try:
            # Without a password, OpenSSL would ask for one on the terminal.
            context.load_cert_chain(tls.certificate_location, tls.key_location, lambda: tls.key_password)
        except (OSError, ValueError) as error:
            raise ConfigurationError(
                f"{tls.certificate_location} and {tls.key_location} are not a certificate and its key in PEM form, or "
                "ssl.key.password is wrong: correct ssl.certificate.location, ssl.key.location or ssl.key.password: "
                f"{error}"
            ) from error
    return context


def trusting_context(ca_location: str, ca_pem: str) -> ssl.SSLContext:
    """Return the context of an HTTPS client that trusts these authorities; empty: the machine's.

    Raises ConfigurationError, which names https.ca.location, if the file cannot be read.
    """
    context = ssl.create_default_context()
    _trust(context, ca_location, ca_pem, "https.ca.location")
    return context


def _trust(context: ssl.SSLContext, location: str, pem: str, name: str) -> None:
    try:
        if pem:
            context.load_verify_locations(cadata=pem)
        elif location:
            context.load_verify_locations(location)
        else:
            context.load_default_certs()
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"{location or name}: not certificates in PEM form: correct {name}: {error}"
        ) from error


def _connected(address: BrokerAddress, settings: ClientSettings, deadline: Deadline) -> socket.socket:
    """Connect to the first of the host's addresses that answers."""
    failure: OSError = OSError("the host has no address")
    with _named(address, "connecting", deadline):
        for family, kind, protocol, _, found in socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM):
            opened = socket.socket(family, kind, protocol)
            try:
                _set_options(opened, settings)
                _wait_at_most(opened, deadline)
                opened.connect(found)
            except OSError as error:
                opened.close()
                failure = error
            else:
                return opened
        raise failure


def _set_options(opened: socket.socket, settings: ClientSettings) -> None:
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # Keep-alive shows an idle connection, too, that the broker's machine is gone.
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if settings.receive_buffer_bytes:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, settings.receive_buffer_bytes)


def _wait_at_most(opened: socket.socket, deadline: Deadline) -> None:
    left = deadline.left
    if not left:
        raise TimeoutError
    opened.settimeout(left)


@contextmanager
def _named(address: BrokerAddress, doing: str, deadline: Deadline) -> Iterator[None]:
    """Turn a socket's errors into ours."""
    try:
        yield
    except TimeoutError as error:
        doubt = ", and that the listener speaks TLS (security.protocol)" if doing == _HANDSHAKE else ""
        raise ClusterUnreachableError(
            f"{address}: {doing} took longer than {deadline.seconds:g} s: check the broker's load and the network "
            f"(socket.timeout.ms, socket.connection.setup.timeout.ms){doubt}"
        ) from error
    except (ssl.SSLEOFError, ssl.SSLZeroReturnError) as error:
        raise ClusterUnreachableError(
            f"{address}: {doing} failed: the connection was closed; if that repeats, the listener does not speak TLS: "
            "set security.protocol accordingly"
        ) from error
    except ssl.SSLError as error:
        raise ClusterRefusedError(f"{address}: {doing} failed: {_tls_advice(error)}") from error
    except OSError as error:
        raise ClusterUnreachableError(f"{address}: {doing} failed: {error.strerror or error}") from error
    except ValueError as error:
        # Python checks the form of a host name first: it refuses an empty label, a leading dot and a null character.
        raise ClusterUnreachableError(f"{address}: {doing} failed: no host has that name: {error}") from error


def _tls_advice(error: ssl.SSLError) -> str:
    reason = error.reason or str(error)
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code in _HOST_MISMATCH:
            return (
                f"{error.verify_message} connect by a name that the broker's certificate has, or set "
                "ssl.endpoint.identification.algorithm=none"
            )
        return f"{error.verify_message}: set ssl.ca.location to the authority that signed the broker's certificate"
    if reason in _ASKS_FOR_CERTIFICATE:
        return f"{reason}: the broker asks for a client's certificate: set ssl.certificate.location, ssl.key.location"
    if reason in _REFUSES_CERTIFICATE:
        return f"{reason}: the broker does not trust the certificate of ssl.certificate.location"
    if reason in _NO_TLS:
        return f"{reason}: the listener does not speak TLS: set security.protocol to plaintext or sasl_plaintext"
    return reason


_HOST_MISMATCH = (62, 64)
"""OpenSSL's X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH."""
_ASKS_FOR_CERTIFICATE = ("TLSV13_ALERT_CERTIFICATE_REQUIRED", "SSLV3_ALERT_BAD_CERTIFICATE")
_REFUSES_CERTIFICATE = ("TLSV1_ALERT_UNKNOWN_CA", "SSLV3_ALERT_CERTIFICATE_UNKNOWN", "SSLV3_ALERT_CERTIFICATE_EXPIRED")
_NO_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE")
