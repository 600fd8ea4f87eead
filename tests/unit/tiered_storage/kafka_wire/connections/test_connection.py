from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from scramp import ScramMechanism

from tiered_storage.errors import (
    ClusterRefusedError,
    ClusterUnreachableError,
    ConfigurationError,
    MalformedAnswerError,
    SourceClusterError,
)
from tiered_storage.kafka_wire.connections.apis import API_VERSIONS, APIS, METADATA, SASL_AUTHENTICATE, SASL_HANDSHAKE
from tiered_storage.kafka_wire.connections.client_settings import ClientSettings, SaslSettings
from tiered_storage.kafka_wire.connections.connection import Connection, open_connection
from tiered_storage.kafka_wire.connections.frames import entity
from tiered_storage.kafka_wire.connections.transport import Deadline
from tiered_storage.kafka_wire.metadata import ClusterMetadata, metadata_request, read_metadata
from unit.tiered_storage.kafka_wire.scripted_broker import Asked, ScriptedBroker, framed, schema, versions_frame

ALL = {each.key: (0, each.latest) for each in APIS}
PLAIN = SaslSettings("PLAIN", "me", "s3cr3t")


def opened(
    broker: ScriptedBroker,
    sasl: SaslSettings | None = None,
    seconds: float = 5,
    now: Callable[[], float] | None = None,
) -> Connection:
    settings = ClientSettings((broker.address,), sasl=sasl, client_id="me")
    deadline = Deadline.after(seconds, now) if now else Deadline.after(seconds)
    return open_connection(broker.address, settings, deadline)


def metadata_answer(asked: Asked) -> bytes:
    kio = schema(asked)
    answer = entity(
        kio.MetadataResponse,
        throttle_time=timedelta(0),
        brokers=(),
        cluster_id="lab",
        controller_id=1,
        topics=(),
        error_code=ErrorCode.none,
    )
    return framed(answer, asked.correlation_id)


def ask(connection: Connection, seconds: float = 5, now: Callable[[], float] | None = None) -> ClusterMetadata:
    deadline = Deadline.after(seconds, now) if now else Deadline.after(seconds)
    message = metadata_request(connection.version(METADATA), None)
    return connection.exchange(METADATA, message, deadline, read_metadata)


def test_the_latest_version_that_both_know_is_used() -> None:
    with ScriptedBroker(metadata_answer, {**ALL, METADATA.key: (0, 11)}) as broker:
        connection = opened(broker)
        assert ask(connection).cluster_id == "lab"
        assert ask(connection).cluster_id == "lab"
        connection.close()
    assert [(each.key, each.version) for each in broker.asked] == [(API_VERSIONS.key, 3)] + 2 * [(METADATA.key, 11)]
    assert [each.correlation_id for each in broker.asked] == [1, 2, 3]
    assert {each.client_id for each in broker.asked} == {"me"}


def test_a_broker_that_does_not_know_the_first_question_is_asked_an_older_one() -> None:
    def script(asked: Asked) -> bytes:
        if asked.key != API_VERSIONS.key:
            return metadata_answer(asked)
        if asked.version > 0:
            return versions_frame(asked, {API_VERSIONS.key: (0, 2)}, 35, version=0)
        return versions_frame(asked, ALL)

    with ScriptedBroker(script, answers_versions=False) as broker:
        assert ask(opened(broker)).cluster_id == "lab"
    assert [(each.key, each.version) for each in broker.asked] == [(18, 3), (18, 0), (METADATA.key, METADATA.latest)]


@pytest.mark.parametrize(
    ("ranges", "message"),
    [
        (
            {**ALL, METADATA.key: (0, 8)},
            r"offers Metadata in versions 0 to 8, this client 9 to 13: brokers of Kafka 2\.8",
        ),
        ({**ALL, METADATA.key: (14, 15)}, "offers Metadata in versions 14 to 15, this client 9 to 13"),
        ({API_VERSIONS.key: (0, 3)}, "does not offer Metadata; .* not of a controller"),
    ],
)
def test_no_version_in_common_names_both_ranges(ranges: dict[int, tuple[int, int]], message: str) -> None:
    with ScriptedBroker(metadata_answer, ranges) as broker:
        connection = opened(broker)
        with pytest.raises(ClusterRefusedError, match=f"^{broker.address} {message}"):
            ask(connection)


def test_a_broker_that_refuses_to_name_its_versions_is_reported() -> None:
    def script(asked: Asked) -> bytes:
        return versions_frame(asked, {}, 31)

    with (
        ScriptedBroker(script, answers_versions=False) as broker,
        pytest.raises(ClusterRefusedError, match="ApiVersions failed with CLUSTER_AUTHORIZATION_FAILED"),
    ):
        opened(broker)


def garbled_size(asked: Asked) -> bytes:
    return b"HTTP/1.1 400 Bad Request\r\n\r\n"


def another_answer(asked: Asked) -> bytes:
    answer = bytearray(metadata_answer(asked))
    answer[7] ^= 0xFF
    return bytes(answer)


def cut_off(asked: Asked) -> bytes:
    return (10).to_bytes(4, "big") + metadata_answer(asked)[4:14]


def nothing(asked: Asked) -> None:
    return None


@pytest.mark.parametrize(
    ("script", "kind", "message"),
    [
        (garbled_size, MalformedAnswerError, r"Metadata: the answer announces 1,213,486,160 bytes"),
        (another_answer, MalformedAnswerError, r"Metadata: the answer has the correlation id"),
        (cut_off, MalformedAnswerError, r"Metadata: 1 bytes are announced at byte 10, 0 are left"),
        (
            nothing,
            ClusterUnreachableError,
            r"closed the connection; does the listener take security\.protocol=plaintext",
        ),
    ],
)
def test_a_connection_is_closed_after_an_answer_that_cannot_be_used(
    script: Callable[[Asked], bytes | None], kind: type[SourceClusterError], message: str
) -> None:
    with ScriptedBroker(script) as broker:
        connection = opened(broker)
        with pytest.raises(kind, match=message) as error:
            ask(connection)
        assert str(broker.address) in str(error.value)
        assert error.value.retriable
        assert not connection.is_open


def test_a_broker_that_never_answers_ends_the_request() -> None:
    with ScriptedBroker(lambda _: b"") as broker:
        connection = opened(broker)
        with pytest.raises(ClusterUnreachableError, match=r"^Metadata: .*\b0\.3 s"):
            ask(connection, 0.3)
        assert not connection.is_open


class Logins:
    """The broker's side of SASL; `lifetime_ms` is that of its sessions."""

    def __init__(self, mechanism: str = "PLAIN", error_code: ErrorCode = ErrorCode.none, lifetime_ms: int = 0) -> None:
        self.mechanism = mechanism
        self.error_code = error_code
        self.lifetime_ms = lifetime_ms
        self.scram: Any = None
        self.messages: list[bytes] = []

    def __call__(self, asked: Asked) -> bytes:
        kio = schema(asked)
        if asked.key == SASL_HANDSHAKE.key:
            known = asked.message.mechanism == self.mechanism
            code = ErrorCode.none if known else ErrorCode.unsupported_sasl_mechanism
            return framed(
                kio.SaslHandshakeResponse(error_code=code, mechanisms=(self.mechanism,)), asked.correlation_id
            )
        if asked.key != SASL_AUTHENTICATE.key:
            return metadata_answer(asked)
        self.messages.append(asked.message.auth_bytes)
        answer = kio.SaslAuthenticateResponse(
            error_code=self.error_code,
            error_message="no reason" if self.error_code else None,
            auth_bytes=self.answer(asked.message.auth_bytes),
            session_lifetime=timedelta(milliseconds=self.lifetime_ms),
        )
        return framed(answer, asked.correlation_id)

    def answer(self, message: bytes) -> bytes:
        if self.mechanism == "PLAIN":
            return b""
        if self.scram is None:
            stored = ScramMechanism(self.mechanism).make_auth_info("s3cr3t")
            self.scram = ScramMechanism(self.mechanism).make_server(lambda _: stored)
            self.scram.set_client_first(message.decode())
            return str(self.scram.get_server_first()).encode()
        self.scram.set_client_final(message.decode())
        return str(self.scram.get_server_final()).encode()


def test_a_login_comes_before_the_first_request() -> None:
    logins = Logins()
    with ScriptedBroker(logins) as broker:
        ask(opened(broker, PLAIN))
    assert [each.key for each in broker.asked] == [18, 17, 36, METADATA.key]
    assert logins.messages == [b"\0me\0s3cr3t"]


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_login_of_several_steps_is_carried_through(mechanism: str) -> None:
    with ScriptedBroker(Logins(mechanism)) as broker:
        ask(opened(broker, SaslSettings(mechanism, "me", "s3cr3t")))
    assert [each.key for each in broker.asked] == [18, 17, 36, 36, METADATA.key]


def test_a_wrong_password_names_what_to_check_and_shows_none() -> None:
    with (
        ScriptedBroker(Logins(error_code=ErrorCode.sasl_authentication_failed)) as broker,
        pytest.raises(ClusterRefusedError, match=r"check sasl\.username and sasl\.password") as error,
    ):
        opened(broker, PLAIN)
    assert str(broker.address) in str(error.value)
    assert "s3cr3t" not in str(error.value)


def test_a_mechanism_that_the_broker_lacks_names_those_it_has() -> None:
    with (
        ScriptedBroker(Logins("SCRAM-SHA-512")) as broker,
        pytest.raises(ClusterRefusedError, match=r"sasl\.mechanism.*SCRAM-SHA-512"),
    ):
        opened(broker, PLAIN)


def test_a_listener_without_logins_is_named() -> None:
    without = {key: versions for key, versions in ALL.items() if key not in (SASL_HANDSHAKE.key, SASL_AUTHENTICATE.key)}
    with (
        ScriptedBroker(Logins(), without) as broker,
        pytest.raises(ClusterRefusedError, match=r"SASL.*security\.protocol"),
    ):
        opened(broker, PLAIN)


def test_tokens_are_needed_before_anything_is_sent() -> None:
    with (
        ScriptedBroker(Logins("OAUTHBEARER")) as broker,
        pytest.raises(ConfigurationError, match="tokens"),
    ):
        opened(broker, SaslSettings("OAUTHBEARER"))


def test_a_session_is_renewed_on_its_connection_before_it_ends() -> None:
    time = [0.0]

    def now() -> float:
        return time[0]

    with ScriptedBroker(Logins(lifetime_ms=10_000)) as broker:
        connection = opened(broker, PLAIN, now=now)
        time[0] = 8.4
        ask(connection, now=now)
        time[0] = 8.6
        ask(connection, now=now)
        time[0] = 17.0
        ask(connection, now=now)
    metadata = METADATA.key
    assert [each.key for each in broker.asked] == [18, 17, 36, metadata, 17, 36, metadata, metadata]
    assert broker.connections == 1


def test_a_session_that_cannot_be_renewed_closes_the_connection() -> None:
    time = [0.0]
    logins = Logins(lifetime_ms=10_000)
    with ScriptedBroker(logins) as broker:
        connection = opened(broker, PLAIN, now=lambda: time[0])
        logins.error_code = ErrorCode.sasl_authentication_failed
        time[0] = 9.0
        with pytest.raises(ClusterRefusedError, match="refuses the PLAIN login"):
            ask(connection, now=lambda: time[0])
        assert not connection.is_open
