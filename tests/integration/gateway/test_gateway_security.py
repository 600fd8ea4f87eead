"""Logins pass through the gateway to the broker, and its rights decide also over remote records; TLS ends there."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from typing import Any

import pytest
import trustme
from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AclOperation, AdminClient  # type: ignore[attr-defined]

from integration.gateway.hostile_clients import connected, is_closed_by_the_other_side
from integration.gateway.remote_topics import fetch_until_answered
from servers.guarded_kafka import CLIENT_SECRET, DESCRIBER, READER, GuardedKafka, token_endpoint, unsecured_token
from support.gateways import STOP_SECONDS, RunningGateway, copied_and_trimmed, running_gateway
from support.live_sites import LONG, SMALL_SEGMENTS, LiveSite
from support.records import varied_records
from tiered_storage.errors import ClusterRefusedError
from tiered_storage.gateway.connections.client_connection import LARGEST_BEFORE_LOGIN
from tiered_storage.kafka_wire.brokers import Brokers
from tiered_storage.kafka_wire.cluster import ClusterClient
from tiered_storage.kafka_wire.connections.apis import METADATA, SASL_AUTHENTICATE, SASL_HANDSHAKE
from tiered_storage.kafka_wire.connections.client_settings import parse_client_settings
from tiered_storage.kafka_wire.connections.error_codes import TOPIC_AUTHORIZATION_FAILED
from tiered_storage.kafka_wire.connections.frames import decode_answer, encode_request, request
from tiered_storage.kafka_wire.fetch import FetchedPartition
from tiered_storage_airflow.demo_cluster.brokers import free_first_port

TOPIC, LARGE = "gateway-guarded", "gateway-guarded-large"
COUNT = 400


@pytest.fixture(scope="module")
def site(guarded_broker: GuardedKafka, tmp_path_factory: pytest.TempPathFactory) -> LiveSite:
    """A remote log whose own client may do everything; the first records of its topic are remote only."""
    found = LiveSite(guarded_broker.kafka, tmp_path_factory.mktemp("guarded-site"), (TOPIC,), {})
    client = guarded_broker.kafka.client
    client.create_topic(TOPIC, 1, SMALL_SEGMENTS | LONG)
    client.produce(TOPIC, varied_records(COUNT, seed=1), batch_num_messages=20)
    describes = (AclOperation.DESCRIBE,)
    guarded_broker.grant(TOPIC, {READER: (*describes, AclOperation.READ), DESCRIBER: describes})
    assert 0 < copied_and_trimmed(found, TOPIC) < COUNT
    client.create_topic(LARGE)
    guarded_broker.grant(LARGE, {READER: (*describes, AclOperation.WRITE)})
    return found


def serving(site: LiveSite, guarded: GuardedKafka, listener: str, **properties: str) -> LiveSite:
    """The same remote log, with a gateway in front of another listener; the gateway logs in with `properties`."""
    given = guarded.properties(listener, **properties)
    servers = given.pop("bootstrap.servers")
    file = site.root / f"{listener}.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in given.items()))
    file.chmod(0o600)
    own = {
        "bootstrap.servers": servers,
        "cluster.client.properties.file": str(file),
        "gateway.port": free_first_port([1]),
    }
    return LiveSite(site.kafka, site.root, site.topics, {**site.settings, **own})


@pytest.fixture(scope="module")
def sasl(site: LiveSite, guarded_broker: GuardedKafka) -> Iterator[RunningGateway]:
    named = serving(site, guarded_broker, "SASL")
    with running_gateway(named.config, named.settings["gateway.port"]) as started:
        yield started


def client_of(gateway: RunningGateway, guarded: GuardedKafka, listener: str, **properties: str) -> ClusterClient:
    """Return a client that connects to the gateway as to a listener of the broker."""
    given = guarded.properties(listener, **properties) | {"bootstrap.servers": gateway.bootstrap_servers}
    return ClusterClient(Brokers(parse_client_settings(given, "test"), lambda: unsecured_token("reader")))


def first_records(client: ClusterClient) -> FetchedPartition:
    with client:
        return fetch_until_answered(client, TOPIC, 0)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_login_by_password_passes_through(sasl: RunningGateway, guarded_broker: GuardedKafka, mechanism: str) -> None:
    found = first_records(client_of(sasl, guarded_broker, "SASL", sasl_mechanism=mechanism))

    assert found.error_code == 0
    assert int.from_bytes(found.records[:8], "big") == 0


def test_a_wrong_password_is_the_brokers_to_refuse(sasl: RunningGateway, guarded_broker: GuardedKafka) -> None:
    client = client_of(sasl, guarded_broker, "SASL", sasl_password="guess")

    with client, pytest.raises(ClusterRefusedError, match=r"check sasl\.username and sasl\.password"):
        client.metadata()


def test_a_client_that_is_not_logged_in_sends_nothing_large(sasl: RunningGateway, guarded_broker: GuardedKafka) -> None:
    with socket.create_connection(("127.0.0.1", sasl.port), STOP_SECONDS) as unauthorized:
        unauthorized.settimeout(STOP_SECONDS)
        unauthorized.sendall(struct.pack(">i", LARGEST_BEFORE_LOGIN + 1))
        assert unauthorized.recv(1) == b""


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_a_client_that_is_logged_in_does(sasl: RunningGateway, guarded_broker: GuardedKafka, mechanism: str) -> None:
    given = guarded_broker.properties("SASL", sasl_mechanism=mechanism)
    producer = Producer(given | {"bootstrap.servers": sasl.bootstrap_servers, "message.timeout.ms": 60_000})
    refused: list[KafkaError | None] = []
    producer.produce(LARGE, bytes(900_000), on_delivery=lambda error, _: refused.append(error))

    assert not producer.flush(STOP_SECONDS)
    assert refused == [None]


def test_without_the_right_to_read_nothing_remote_is_given(sasl: RunningGateway, guarded_broker: GuardedKafka) -> None:
    found = first_records(client_of(sasl, guarded_broker, "SASL", sasl_username="describer"))

    assert found.error_code == TOPIC_AUTHORIZATION_FAILED
    assert not found.records


def test_without_the_right_to_delete_nothing_remote_is_deleted(
    site: LiveSite, sasl: RunningGateway, guarded_broker: GuardedKafka
) -> None:
    assert site.run("topics", "allow-deletion", TOPIC, "--only", "remote").exit_code == 0
    admin = AdminClient({**guarded_broker.properties("SASL"), "bootstrap.servers": sasl.bootstrap_servers})
    wanted = TopicPartition(TOPIC, 0, 1)

    with pytest.raises(KafkaException) as records:
        admin.delete_records([wanted])[wanted].result(STOP_SECONDS)
    with pytest.raises(KafkaException) as topics:
        admin.delete_topics([TOPIC])[TOPIC].result(STOP_SECONDS)

    codes = [each.value.args[0].code() for each in (records, topics)]
    assert codes == [TOPIC_AUTHORIZATION_FAILED, TOPIC_AUTHORIZATION_FAILED]
    with site.open() as remote_log:
        [partition] = [each for each in remote_log.context.segments.list_partitions() if each.topic == TOPIC]
        assert remote_log.context.segments.log_start_offset(partition) == 0
        assert remote_log.context.segments.partition_state(partition).delete_state is None


def test_a_login_by_token_passes_through(site: LiveSite, guarded_broker: GuardedKafka) -> None:
    with token_endpoint() as url:
        named = serving(
            site,
            guarded_broker,
            "OAUTH",
            sasl_oauthbearer_method="oidc",
            sasl_oauthbearer_token_endpoint_url=url,
            sasl_oauthbearer_client_id="remote-log",
            sasl_oauthbearer_client_secret=CLIENT_SECRET,
        )
        with running_gateway(named.config, named.settings["gateway.port"]) as gateway:
            found = first_records(client_of(gateway, guarded_broker, "OAUTH"))
            refused, is_closed = answer_to_token(unsecured_token("reader", seconds=-60), gateway)

    assert found.error_code == 0
    assert found.records
    # The broker refuses a token in words only, and a client that is not logged in sends nothing large.
    assert refused.error_code.value == 0
    assert b"invalid_token" in refused.auth_bytes
    assert is_closed


def answer_to_token(token: str, gateway: RunningGateway) -> tuple[Any, bool]:
    """Log in by a token; return the answer, and whether a request larger than a login's ends the connection."""
    login = f"n,,\x01auth=Bearer {token}\x01\x01".encode()
    with (
        socket.create_connection(("127.0.0.1", gateway.port), STOP_SECONDS) as unauthorized,
        unauthorized.makefile("rb") as file,
    ):
        unauthorized.settimeout(STOP_SECONDS)
        asked = [
            request(SASL_HANDSHAKE, 1, mechanism="OAUTHBEARER"),
            request(SASL_AUTHENTICATE, 2, auth_bytes=login),
        ]
        for number, each in enumerate(asked):
            unauthorized.sendall(encode_request(each, number, "unauthorized"))
            answer = file.read(*struct.unpack(">i", file.read(4)))
        unauthorized.sendall(struct.pack(">i", LARGEST_BEFORE_LOGIN + 1))
        is_closed = file.read(1) == b""
    return decode_answer(memoryview(answer), SASL_AUTHENTICATE, 2, 1), is_closed


def test_no_client_uses_the_gateways_own_certificate(site: LiveSite, guarded_broker: GuardedKafka) -> None:
    named = serving(site, guarded_broker, "TLS", **guarded_broker.certificate)
    with running_gateway(named.config, named.settings["gateway.port"]) as gateway, connected(gateway) as opened:
        opened.sendall(encode_request(request(METADATA, 1, topics=None), 1, "unauthorized"))
        assert is_closed_by_the_other_side(opened)


def test_tls_ends_at_the_gateway_and_is_taken_up_again(site: LiveSite, guarded_broker: GuardedKafka) -> None:
    authority = trustme.CA()
    certificate = site.root / "gateway.pem"
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(certificate)
    trusted = site.root / "gateway-ca.pem"
    authority.cert_pem.write_to_path(trusted)
    behind = serving(site, guarded_broker, "SASLTLS")
    named = LiveSite(
        behind.kafka,
        behind.root,
        behind.topics,
        {**behind.settings, "gateway.ssl.certificate.location": str(certificate)},
    )
    with running_gateway(named.config, named.settings["gateway.port"]) as gateway:
        client = client_of(gateway, guarded_broker, "SASLTLS", ssl_ca_location=str(trusted))
        found = first_records(client)
        unauthorized = client_of(gateway, guarded_broker, "SASLTLS")
        with unauthorized, pytest.raises(ClusterRefusedError, match="certificate"):
            unauthorized.metadata()

    assert found.error_code == 0
    assert found.records
