"""The client for Kafka's protocol logs in to a real broker by every mechanism, and names what a broker refuses."""

from __future__ import annotations

import time

import pytest
from confluent_kafka.admin import AclOperation  # type: ignore[attr-defined]

from servers.guarded_kafka import DESCRIBER, PASSWORD, READER, SESSION_MS, GuardedKafka, unsecured_token
from support.records import varied_records
from tiered_storage.errors import ClusterRefusedError, ClusterUnreachableError
from tiered_storage.kafka_wire.brokers import Brokers
from tiered_storage.kafka_wire.cluster import ClusterClient
from tiered_storage.kafka_wire.connections.apis import OffsetSpec
from tiered_storage.kafka_wire.connections.client_settings import parse_client_settings
from tiered_storage.kafka_wire.connections.error_codes import TOPIC_AUTHORIZATION_FAILED, PartitionError
from tiered_storage.kafka_wire.fetch import FetchBuffer, FetchPosition
from tiered_storage.kafka_wire.metadata import TopicPartition
from tiered_storage.kafka_wire.partition_requests import ListedOffset

TOPIC = "guarded"
GUARDED = TopicPartition(TOPIC, 0)
RECORDS = 10


@pytest.fixture(scope="module")
def guarded(guarded_broker: GuardedKafka) -> GuardedKafka:
    guarded_broker.kafka.client.create_topic(TOPIC)
    guarded_broker.kafka.client.produce(TOPIC, varied_records(RECORDS, seed=1))
    describes = (AclOperation.DESCRIBE,)
    guarded_broker.grant(TOPIC, {READER: (*describes, AclOperation.READ, AclOperation.DELETE), DESCRIBER: describes})
    return guarded_broker


def client_of(guarded: GuardedKafka, listener: str, **properties: str) -> ClusterClient:
    """Return a client of a listener; `properties` have _ for the dots."""
    settings = parse_client_settings(guarded.properties(listener, **properties), "test")
    return ClusterClient(Brokers(settings, lambda: unsecured_token("reader")))


def _reads_all(client: ClusterClient) -> None:
    with client:
        assert client.list_offsets({GUARDED: OffsetSpec.LATEST}) == {GUARDED: ListedOffset(RECORDS, -1, 0)}
        [found] = client.fetch([FetchPosition(TOPIC, 0, 0)], FetchBuffer(2 << 20)).partitions
        assert (found.error_code, found.high_watermark) == (0, RECORDS)
        assert found.records


@pytest.mark.parametrize("listener", ["SASL", "SASLTLS"])
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_login_by_password_reads(guarded: GuardedKafka, listener: str, mechanism: str) -> None:
    _reads_all(client_of(guarded, listener, sasl_mechanism=mechanism))


def test_a_login_by_token_reads(guarded: GuardedKafka) -> None:
    _reads_all(client_of(guarded, "OAUTH"))


def test_a_client_with_a_certificate_is_known_by_it(guarded: GuardedKafka) -> None:
    with client_of(guarded, "TLS", **guarded.certificate) as client:
        found = client.list_offsets({GUARDED: OffsetSpec.LATEST})[GUARDED]
    # The connection serves; the certificate's owner has no right on the topic.
    assert isinstance(found, PartitionError)
    assert found.code == TOPIC_AUTHORIZATION_FAILED


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_wrong_password_names_the_setting(guarded: GuardedKafka, mechanism: str) -> None:
    client = client_of(guarded, "SASL", sasl_mechanism=mechanism, sasl_password="guess")
    with client, pytest.raises(ClusterRefusedError, match=r"check sasl\.username and sasl\.password") as error:
        client.metadata()
    assert "guess" not in str(error.value)


def test_a_mechanism_that_the_listener_lacks_names_those_it_has(guarded: GuardedKafka) -> None:
    client = client_of(guarded, "SHORT", sasl_mechanism="SCRAM-SHA-512")
    with client, pytest.raises(ClusterRefusedError, match=r"sasl\.mechanism .*PLAIN$"):
        client.metadata()


def test_an_expired_token_is_refused(guarded: GuardedKafka) -> None:
    settings = client_of(guarded, "OAUTH").settings
    with (
        ClusterClient(Brokers(settings, lambda: unsecured_token("reader", -600))) as client,
        pytest.raises(ClusterRefusedError, match=r"refuses the OAUTHBEARER (login|token)"),
    ):
        client.metadata()


def test_another_authority_names_the_setting(guarded: GuardedKafka) -> None:
    client = client_of(guarded, "SASLTLS", ssl_ca_location=str(guarded.folder / "other-ca.pem"))
    with client, pytest.raises(ClusterRefusedError, match=r"set ssl\.ca\.location"):
        client.metadata()


@pytest.mark.parametrize(
    ("certificate", "message"),
    [("", r"set ssl\.certificate\.location"), ("unauthorized.pem", r"ssl\.certificate\.location")],
)
def test_a_client_without_a_known_certificate_is_refused(guarded: GuardedKafka, certificate: str, message: str) -> None:
    shown = {"ssl_certificate_location": str(guarded.folder / certificate)} if certificate else {}
    with client_of(guarded, "TLS", **shown) as client, pytest.raises(ClusterRefusedError, match=message):
        client.metadata()


@pytest.mark.parametrize(
    ("listener", "protocol"), [("SASL", "plaintext"), ("TLS", "plaintext"), ("SASL", "sasl_ssl"), ("TLS", "sasl_ssl")]
)
def test_another_protocol_than_the_listeners_is_named(guarded: GuardedKafka, listener: str, protocol: str) -> None:
    properties = {"sasl_username": "reader", "sasl_password": PASSWORD, "sasl_mechanism": "PLAIN"}
    client = client_of(guarded, listener, security_protocol=protocol, **properties)
    with client, pytest.raises((ClusterUnreachableError, ClusterRefusedError), match=r"security\.protocol|certificate"):
        client.metadata(seconds=3)


def test_a_missing_right_is_named_with_its_operation(guarded: GuardedKafka) -> None:
    with client_of(guarded, "SASL", sasl_username="describer") as client:
        assert client.list_offsets({GUARDED: OffsetSpec.LATEST}) == {GUARDED: ListedOffset(RECORDS, -1, 0)}
        [found] = client.fetch([FetchPosition(TOPIC, 0, 0)], FetchBuffer(2 << 20)).partitions
        assert found.error_code == TOPIC_AUTHORIZATION_FAILED
        deleted = client.delete_records({GUARDED: 0})[GUARDED]
        assert isinstance(deleted, PartitionError)
        assert f"--operation Delete --topic {TOPIC}" in deleted.remedy
    with client_of(guarded, "SASL", sasl_username="unauthorized") as client:
        assert client.metadata().topics == {}
        refused = client.list_offsets({GUARDED: OffsetSpec.LATEST})[GUARDED]
        assert isinstance(refused, PartitionError)
        assert f"--operation Describe --topic {TOPIC}" in refused.remedy


def test_a_session_that_ends_is_renewed_on_its_connection(guarded: GuardedKafka) -> None:
    """The broker closes connections that continue without; then another one would be open."""
    with client_of(guarded, "SHORT") as client:
        client.metadata()
        [before] = client._brokers._connections.values()
        end = time.monotonic() + 1.5 * SESSION_MS / 1000
        while time.monotonic() < end:
            time.sleep(0.25)
            assert client.metadata().topics
        assert list(client._brokers._connections.values()) == [before]
