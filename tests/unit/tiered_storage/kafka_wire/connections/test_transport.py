from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import trustme

from tiered_storage.errors import ClusterRefusedError, ClusterUnreachableError, ConfigurationError, SourceClusterError
from tiered_storage.kafka_wire.connections.client_settings import BrokerAddress, ClientSettings, TlsSettings
from tiered_storage.kafka_wire.connections.connection import open_connection
from tiered_storage.kafka_wire.connections.transport import Deadline, Transport, open_transport, tls_context
from unit.tiered_storage.kafka_wire.scripted_broker import ScriptedBroker


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def folder(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Has the authority, a client's certificate and key, and those of another authority."""
    folder = tmp_path_factory.mktemp("certificates")
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    issued = authority.issue_cert("client@example")
    issued.private_key_pem.write_to_path(str(folder / "client.key"))
    issued.cert_chain_pems[0].write_to_path(str(folder / "client.pem"))
    trustme.CA().cert_pem.write_to_path(str(folder / "other-ca.pem"))
    unauthorized = trustme.CA().issue_cert("client@example")
    unauthorized.private_key_and_cert_chain_pem.write_to_path(str(folder / "unauthorized.pem"))
    return folder


def broker(authority: trustme.CA, name: str = "127.0.0.1", *, asks: bool = False) -> ScriptedBroker:
    """A broker with a certificate for `name`, which `asks` for a client's."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(name).configure_cert(context)
    if asks:
        authority.configure_trust(context)
        context.verify_mode = ssl.CERT_REQUIRED
    return ScriptedBroker(lambda _: None, tls=context)


def connect(served: ScriptedBroker, tls: TlsSettings | None, seconds: float = 5) -> None:
    settings = ClientSettings((served.address,), tls)
    open_connection(served.address, settings, Deadline.after(seconds)).close()


def test_tls_connects_to_whom_the_authority_signed(authority: trustme.CA, folder: Path) -> None:
    with broker(authority) as served:
        connect(served, TlsSettings(ca_location=f"{folder}/ca.pem"))
        connect(served, TlsSettings(ca_pem=(folder / "ca.pem").read_text()))
    with broker(authority, asks=True) as served:
        connect(served, TlsSettings(f"{folder}/ca.pem", "", f"{folder}/client.pem", f"{folder}/client.key"))


def test_an_unknown_authority_is_refused(authority: trustme.CA, folder: Path) -> None:
    with (
        broker(authority) as served,
        pytest.raises(ClusterRefusedError, match=r"127\.0\.0\.1:\d+.*TLS.*ssl\.ca\.location"),
    ):
        connect(served, TlsSettings(ca_location=f"{folder}/other-ca.pem"))
    with broker(authority) as served:
        connect(served, TlsSettings(verify=False, check_host=False))


def test_another_name_is_refused_unless_it_is_not_checked(authority: trustme.CA, folder: Path) -> None:
    with broker(authority, "kafka-1") as served:
        with pytest.raises(ClusterRefusedError, match=r"ssl\.endpoint\.identification\.algorithm=none"):
            connect(served, TlsSettings(ca_location=f"{folder}/ca.pem"))
        connect(served, TlsSettings(ca_location=f"{folder}/ca.pem", check_host=False))


@pytest.mark.parametrize(
    ("certificate", "message"),
    [
        ("", r"asks for a client's certificate: set ssl\.certificate\.location"),
        ("unauthorized.pem", "does not trust the"),
    ],
)
def test_a_client_that_the_broker_does_not_know_is_refused(
    authority: trustme.CA, folder: Path, certificate: str, message: str
) -> None:
    shown = f"{folder}/{certificate}" if certificate else ""
    with broker(authority, asks=True) as served, pytest.raises(ClusterRefusedError, match=message):
        connect(served, TlsSettings(f"{folder}/ca.pem", "", shown, shown))


def test_a_listener_without_tls_is_named(folder: Path) -> None:
    def greet(listener: socket.socket) -> None:
        with listener.accept()[0] as accepted:
            accepted.sendall(b"SSH-2.0-\r\n")
            accepted.recv(1 << 16)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=greet, args=(listener,), daemon=True).start()
        address = BrokerAddress(*listener.getsockname())
        with pytest.raises(ClusterRefusedError, match=r"security\.protocol"):
            open_transport(address, ClientSettings((address,), TlsSettings()), Deadline.after(5))


def test_a_listener_with_tls_is_named_by_a_client_without(authority: trustme.CA) -> None:
    with (
        broker(authority) as served,
        pytest.raises(SourceClusterError, match=r"security\.protocol"),
    ):
        connect(served, None)


@pytest.mark.parametrize(
    ("tls", "name"),
    [
        (TlsSettings(ca_location="/absent.pem"), r"correct ssl\.ca\.location"),
        (TlsSettings(ca_pem="no certificate"), r"correct ssl\.ca\.location"),
        (TlsSettings("", "", "/absent.pem", "/absent.key"), r"correct ssl\.certificate\.location"),
    ],
)
def test_files_that_cannot_be_read_are_named(tls: TlsSettings, name: str) -> None:
    with pytest.raises(ConfigurationError, match=name):
        tls_context(tls)


def test_a_key_with_a_password_needs_it(authority: trustme.CA, tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization

    issued = authority.issue_cert("client@example")
    issued.cert_chain_pems[0].write_to_path(str(tmp_path / "client.pem"))
    key = serialization.load_pem_private_key(issued.private_key_pem.bytes(), None)
    (tmp_path / "client.key").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"s3cr3t"),
        )
    )

    def context(password: str) -> ssl.SSLContext:
        return tls_context(TlsSettings("", "", f"{tmp_path}/client.pem", f"{tmp_path}/client.key", password))

    assert context("s3cr3t")
    for wrong in ("", "s3cr3t-of-another"):
        with pytest.raises(ConfigurationError, match=r"correct .*ssl\.key\.password") as error:
            context(wrong)
        assert "s3cr3t" not in str(error.value)


@pytest.fixture
def pair() -> Iterator[tuple[Transport, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield Transport(ours, BrokerAddress("kafka-1", 9092)), theirs


def test_bytes_land_in_the_callers_buffer(pair: tuple[Transport, socket.socket]) -> None:
    transport, theirs = pair
    theirs.sendall(b"abcdef")
    buffer = bytearray(6)
    transport.receive_into(memoryview(buffer)[1:5], Deadline.after(5))
    assert buffer == b"\0abcd\0"


def test_a_broker_that_trickles_does_not_hold_its_caller(pair: tuple[Transport, socket.socket]) -> None:
    """Each byte comes long before a time-out of the socket's own would end: all of them would take 20 s and be read."""
    transport, theirs = pair
    ended = threading.Event()

    def trickle() -> None:
        while not ended.wait(0.02):
            theirs.send(b"x")

    thread = threading.Thread(target=trickle)
    thread.start()
    with pytest.raises(ClusterUnreachableError, match=r"kafka-1:9092: .*\b0\.2 s"):
        transport.receive_into(memoryview(bytearray(1000)), Deadline.after(0.2))
    ended.set()
    thread.join()


def test_a_broker_that_reads_nothing_does_not_hold_its_caller(pair: tuple[Transport, socket.socket]) -> None:
    with pytest.raises(ClusterUnreachableError, match=r"\b0\.1 s"):
        pair[0].send(bytes(32 << 20), Deadline.after(0.1))


def test_a_deadline_that_has_passed_asks_nobody(pair: tuple[Transport, socket.socket]) -> None:
    transport, theirs = pair
    theirs.sendall(b"abc")
    with pytest.raises(ClusterUnreachableError, match=r"\b0 s"):
        transport.receive_into(memoryview(bytearray(3)), Deadline.after(0))


def test_a_closed_connection_is_named(pair: tuple[Transport, socket.socket]) -> None:
    transport, theirs = pair
    theirs.sendall(b"abc")
    theirs.close()
    with pytest.raises(ClusterUnreachableError, match="kafka-1:9092 closed the connection"):
        transport.receive_into(memoryview(bytearray(4)), Deadline.after(5))


@pytest.mark.parametrize(
    ("host", "port", "reason"), [("127.0.0.1", 1, "Connection refused"), ("no-such-host.invalid", 9092, "")]
)
def test_an_address_that_nobody_has_is_named(host: str, port: int, reason: str) -> None:
    address = BrokerAddress(host, port)
    with pytest.raises(ClusterUnreachableError, match=f"{host}:{port}: connecting failed: .*{reason}"):
        open_transport(address, ClientSettings((address,)), Deadline.after(5))


@pytest.mark.parametrize("host", ["kafka..example", ".example", f"{'x' * 64}.example"])
def test_a_name_that_no_host_can_have_is_named(host: str) -> None:
    """A broker may advertise one."""
    address = BrokerAddress(host, 9092)
    with pytest.raises(ClusterUnreachableError, match=f"^{host}:9092: .*no host"):
        open_transport(address, ClientSettings((address,)), Deadline.after(5))


def test_a_host_that_accepts_and_says_nothing_ends_the_handshake() -> None:
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        address = BrokerAddress(*listener.getsockname())
        with pytest.raises(ClusterUnreachableError, match=r"TLS .*\b2 s"):
            # Reading the machine's authorities counts too, and takes its time on a busy machine.
            open_transport(address, ClientSettings((address,), TlsSettings()), Deadline.after(2))


def test_a_part_never_outlasts_the_whole() -> None:
    whole = Deadline.after(10, lambda: 100.0)
    assert whole.within(3).at == 103
    assert whole.within(30).at == 110
    assert Deadline(10, 99, lambda: 100.0).left == 0
