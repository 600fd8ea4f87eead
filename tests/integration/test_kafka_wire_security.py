"""The client for Kafka's protocol logs in to a real broker by every mechanism, and names what a broker refuses."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import trustme
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from servers.kafka_programs import KafkaPrograms
from servers.real_kafka import RealKafka
from support.records import varied_records
from tiered_storage.errors import ClusterRefusedError, ClusterUnreachableError
from tiered_storage.kafka_wire.cluster import ClusterClient
from tiered_storage.kafka_wire.connections.client_settings import parse_client_settings
from tiered_storage.kafka_wire.connections.error_codes import TOPIC_AUTHORIZATION_FAILED, PartitionError
from tiered_storage.kafka_wire.fetch import FetchBuffer, FetchPosition
from tiered_storage.kafka_wire.metadata import TopicPartition
from tiered_storage.kafka_wire.partition_requests import ListedOffset, OffsetSpec

TOPIC = "guarded"
GUARDED = TopicPartition(TOPIC, 0)
RECORDS = 10
PASSWORD = "throw-away"
SESSION_MS = 2_000
REQUEST_SECONDS = 30

_PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
_SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
_OAUTH = "org.apache.kafka.common.security.oauthbearer"
_UNSECURED = f"{_OAUTH}.internals.unsecured.OAuthBearerUnsecured"
_USERS = " ".join(f'user_{name}="{PASSWORD}"' for name in ("reader", "describer", "stranger"))


def _mechanisms(listener: str) -> dict[str, str]:
    prefix = f"listener.name.{listener}"
    return {
        f"{prefix}.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        f"{prefix}.plain.sasl.jaas.config": f"{_PLAIN} required {_USERS};",
        f"{prefix}.scram-sha-256.sasl.jaas.config": f"{_SCRAM} required;",
        f"{prefix}.scram-sha-512.sasl.jaas.config": f"{_SCRAM} required;",
    }


_PROPERTIES = {
    **_mechanisms("sasl"),
    **_mechanisms("sasltls"),
    "listener.name.short.sasl.enabled.mechanisms": "PLAIN",
    "listener.name.short.plain.sasl.jaas.config": f"{_PLAIN} required {_USERS};",
    "listener.name.short.plain.connections.max.reauth.ms": str(SESSION_MS),
    "listener.name.oauth.sasl.enabled.mechanisms": "OAUTHBEARER",
    "listener.name.oauth.oauthbearer.sasl.jaas.config": (
        f'{_OAUTH}.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="broker";'
    ),
    "listener.name.oauth.oauthbearer.sasl.login.callback.handler.class": f"{_UNSECURED}LoginCallbackHandler",
    "listener.name.oauth.oauthbearer.sasl.server.callback.handler.class": f"{_UNSECURED}ValidatorCallbackHandler",
    "listener.name.tls.ssl.client.auth": "required",
    "ssl.keystore.type": "PEM",
    "ssl.truststore.type": "PEM",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
_LISTENERS = {
    "SASL": "SASL_PLAINTEXT",
    "SASLTLS": "SASL_SSL",
    "SHORT": "SASL_PLAINTEXT",
    "OAUTH": "SASL_PLAINTEXT",
    "TLS": "SSL",
}


@dataclass(frozen=True, slots=True)
class Guarded:
    """A broker with a listener a kind of login; certificates are in `folder`."""

    kafka: RealKafka
    folder: Path

    def client(self, listener: str, **properties: str) -> ClusterClient:
        """Return a client of a listener; `properties` have _ for the dots."""
        protocol = _LISTENERS[listener].lower()
        given = {name.replace("_", "."): value for name, value in properties.items()}
        defaults = {"bootstrap.servers": self.kafka.address(listener), "security.protocol": protocol}
        if protocol.endswith("ssl"):
            defaults["ssl.ca.location"] = str(self.folder / "ca.pem")
        if protocol.startswith("sasl") and listener != "OAUTH":
            defaults |= {"sasl.username": "reader", "sasl.password": PASSWORD, "sasl.mechanism": "PLAIN"}
        if listener == "OAUTH":
            defaults["sasl.mechanism"] = "OAUTHBEARER"
        return ClusterClient(parse_client_settings(defaults | given, "test"), lambda: _unsecured_token("reader"))


@pytest.fixture(scope="module")
def guarded(kafka_programs: KafkaPrograms, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("guarded")
    properties = {**_PROPERTIES, **_certificates(folder)}
    with RealKafka(kafka_programs, folder / "broker", properties=properties, listeners=_LISTENERS) as kafka:
        kafka.client.create_topic(TOPIC)
        kafka.client.produce(TOPIC, varied_records(RECORDS, seed=1))
        _grant(AdminClient({"bootstrap.servers": kafka.bootstrap_servers}))
        yield Guarded(kafka, folder)


def _certificates(folder: Path) -> dict[str, str]:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    trustme.CA().cert_pem.write_to_path(str(folder / "other-ca.pem"))
    for name, signer in (("broker", authority), ("client", authority), ("stranger", trustme.CA())):
        issued = signer.issue_cert("127.0.0.1", common_name=name)
        # Java reads keys in PKCS 8 only.
        key = load_pem_private_key(issued.private_key_pem.bytes(), None)
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        (folder / f"{name}.pem").write_bytes(pem + b"".join(each.bytes() for each in issued.cert_chain_pems))
    return {"ssl.keystore.location": str(folder / "broker.pem"), "ssl.truststore.location": str(folder / "ca.pem")}


def _grant(admin: AdminClient) -> None:
    """Let reader read and delete, and describer describe; make reader a user of both kinds of SCRAM."""
    rights = [
        *((user, operation) for user in ("reader", "describer") for operation in [AclOperation.DESCRIBE]),
        *(("reader", operation) for operation in (AclOperation.READ, AclOperation.DELETE)),
    ]
    bindings = [
        AclBinding(
            ResourceType.TOPIC,
            TOPIC,
            ResourcePatternType.LITERAL,
            f"User:{user}",
            "*",
            operation,
            AclPermissionType.ALLOW,
        )
        for user, operation in rights
    ]
    mechanisms = (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512)
    futures = list(admin.create_acls(bindings).values())
    for mechanism in mechanisms:
        user = UserScramCredentialUpsertion("reader", ScramCredentialInfo(mechanism, 4096), PASSWORD.encode())
        futures += admin.alter_user_scram_credentials([user]).values()
    for each in futures:
        each.result(REQUEST_SECONDS)


def _unsecured_token(subject: str, seconds: int = 600) -> str:
    """A token that no one signed, as Kafka's validator for tests takes it."""
    now = time.time()
    parts = ({"alg": "none"}, {"sub": subject, "iat": now, "exp": now + seconds})
    return "".join(base64.urlsafe_b64encode(json.dumps(each).encode()).decode().rstrip("=") + "." for each in parts)


def _reads_all(client: ClusterClient) -> None:
    with client:
        assert client.list_offsets({GUARDED: OffsetSpec.LATEST}) == {GUARDED: ListedOffset(RECORDS, -1, 0)}
        [found] = client.fetch([FetchPosition(TOPIC, 0, 0)], FetchBuffer(2 << 20)).partitions
        assert (found.error_code, found.high_watermark) == (0, RECORDS)
        assert found.records


@pytest.mark.parametrize("listener", ["SASL", "SASLTLS"])
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_login_by_password_reads(guarded: Guarded, listener: str, mechanism: str) -> None:
    _reads_all(guarded.client(listener, sasl_mechanism=mechanism))


def test_a_login_by_token_reads(guarded: Guarded) -> None:
    _reads_all(guarded.client("OAUTH"))


def test_a_client_with_a_certificate_is_known_by_it(guarded: Guarded) -> None:
    shown = str(guarded.folder / "client.pem")
    with guarded.client("TLS", ssl_certificate_location=shown, ssl_key_location=shown) as client:
        found = client.list_offsets({GUARDED: OffsetSpec.LATEST})[GUARDED]
    # The connection serves; the certificate's owner has no right on the topic.
    assert isinstance(found, PartitionError)
    assert found.code == TOPIC_AUTHORIZATION_FAILED


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_wrong_password_names_the_setting(guarded: Guarded, mechanism: str) -> None:
    client = guarded.client("SASL", sasl_mechanism=mechanism, sasl_password="guess")
    with client, pytest.raises(ClusterRefusedError, match=r"check sasl\.username and sasl\.password") as error:
        client.metadata()
    assert "guess" not in str(error.value)


def test_a_mechanism_that_the_listener_lacks_names_those_it_has(guarded: Guarded) -> None:
    client = guarded.client("SHORT", sasl_mechanism="SCRAM-SHA-512")
    with client, pytest.raises(ClusterRefusedError, match=r"set sasl\.mechanism to one of: PLAIN$"):
        client.metadata()


def test_an_expired_token_is_refused(guarded: Guarded) -> None:
    settings = guarded.client("OAUTH").settings
    with (
        ClusterClient(settings, lambda: _unsecured_token("reader", -600)) as client,
        pytest.raises(ClusterRefusedError, match=r"refuses the OAUTHBEARER (login|token)"),
    ):
        client.metadata()


def test_another_authority_names_the_setting(guarded: Guarded) -> None:
    client = guarded.client("SASLTLS", ssl_ca_location=str(guarded.folder / "other-ca.pem"))
    with client, pytest.raises(ClusterRefusedError, match=r"set ssl\.ca\.location"):
        client.metadata()


@pytest.mark.parametrize(
    ("certificate", "message"),
    [("", r"set ssl\.certificate\.location"), ("stranger.pem", r"ssl\.certificate\.location")],
)
def test_a_client_without_a_known_certificate_is_refused(guarded: Guarded, certificate: str, message: str) -> None:
    shown = {"ssl_certificate_location": str(guarded.folder / certificate)} if certificate else {}
    with guarded.client("TLS", **shown) as client, pytest.raises(ClusterRefusedError, match=message):
        client.metadata()


@pytest.mark.parametrize(
    ("listener", "protocol"), [("SASL", "plaintext"), ("TLS", "plaintext"), ("SASL", "sasl_ssl"), ("TLS", "sasl_ssl")]
)
def test_another_protocol_than_the_listeners_is_named(guarded: Guarded, listener: str, protocol: str) -> None:
    properties = {"sasl_username": "reader", "sasl_password": PASSWORD, "sasl_mechanism": "PLAIN"}
    client = guarded.client(listener, security_protocol=protocol, **properties)
    with client, pytest.raises((ClusterUnreachableError, ClusterRefusedError), match=r"security\.protocol|certificate"):
        client.metadata(seconds=3)


def test_a_missing_right_is_named_with_its_operation(guarded: Guarded) -> None:
    with guarded.client("SASL", sasl_username="describer") as client:
        assert client.list_offsets({GUARDED: OffsetSpec.LATEST}) == {GUARDED: ListedOffset(RECORDS, -1, 0)}
        [found] = client.fetch([FetchPosition(TOPIC, 0, 0)], FetchBuffer(2 << 20)).partitions
        assert found.error_code == TOPIC_AUTHORIZATION_FAILED
        deleted = client.delete_records({GUARDED: 0})[GUARDED]
        assert isinstance(deleted, PartitionError)
        assert f"--operation Delete --topic {TOPIC}" in deleted.remedy
    with guarded.client("SASL", sasl_username="stranger") as client:
        assert client.metadata().topics == {}
        refused = client.list_offsets({GUARDED: OffsetSpec.LATEST})[GUARDED]
        assert isinstance(refused, PartitionError)
        assert f"--operation Describe --topic {TOPIC}" in refused.remedy


def test_a_session_that_ends_is_renewed_on_its_connection(guarded: Guarded) -> None:
    """The broker closes connections that go on without; then another one would be open."""
    with guarded.client("SHORT") as client:
        client.metadata()
        [before] = client._brokers._connections.values()
        end = time.monotonic() + 1.5 * SESSION_MS / 1000
        while time.monotonic() < end:
            time.sleep(0.25)
            assert client.metadata().topics
        assert list(client._brokers._connections.values()) == [before]
