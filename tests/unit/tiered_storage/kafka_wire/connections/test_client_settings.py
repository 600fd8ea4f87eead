from __future__ import annotations

import ast
import pickle
import re
from pathlib import Path

import pytest

from tiered_storage.errors import ConfigurationError
from tiered_storage.kafka_wire.connections import client_settings
from tiered_storage.kafka_wire.connections.client_properties import ALLOWED
from tiered_storage.kafka_wire.connections.client_settings import (
    BrokerAddress,
    ClientSettings,
    OidcSettings,
    SaslSettings,
    TlsSettings,
    parse_client_settings,
)

PROJECT = Path(__file__).parents[5]
LAB = {"bootstrap.servers": "kafka-1:9092"}
LOGIN = {**LAB, "security.protocol": "SASL_SSL", "sasl.username": "me", "sasl.password": "s3cr3t"}
OIDC = {
    **LAB,
    "security.protocol": "sasl_ssl",
    "sasl.mechanism": "OAUTHBEARER",
    "sasl.oauthbearer.method": "oidc",
    "sasl.oauthbearer.token.endpoint.url": "https://login/token",
    "sasl.oauthbearer.client.id": "remote-log",
    "sasl.oauthbearer.client.secret": "s3cr3t",
}


def parsed(properties: dict[str, object]) -> ClientSettings:
    return parse_client_settings(properties, "connection lab")


def test_addresses_are_all_that_is_needed() -> None:
    found = parsed({"bootstrap.servers": "kafka-1, kafka-2:1234,[2001:db8::1]:9093,[::1]"})
    assert found == ClientSettings(
        (
            BrokerAddress("kafka-1", 9092),
            BrokerAddress("kafka-2", 1234),
            BrokerAddress("2001:db8::1", 9093),
            BrokerAddress("::1", 9092),
        )
    )
    assert [str(each) for each in found.bootstrap][1:3] == ["kafka-2:1234", "[2001:db8::1]:9093"]
    assert found.protocol == "plaintext"


@pytest.mark.parametrize(
    "text", ["", "kafka-1:9092,", "PLAINTEXT://kafka-1:9092", "kafka-1:0", "kafka-1:65536", "a b:1"]
)
def test_other_addresses_are_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"connection lab: bootstrap\.servers "):
        parsed({"bootstrap.servers": text})


def test_tls_and_a_login_are_read() -> None:
    found = parsed(
        {
            **LOGIN,
            "sasl.mechanisms": "SCRAM-SHA-512",
            "ssl.ca.location": "/etc/ca.pem",
            "ssl.certificate.location": "/etc/client.pem",
            "ssl.key.location": "/etc/client.key",
            "ssl.key.password": "s3cr3t",
            "client.id": "copier",
            "client.rack": "a",
            "socket.timeout.ms": 1500,
            "socket.connection.setup.timeout.ms": "2500",
            "request.timeout.ms": 3500,
            "socket.receive.buffer.bytes": 65536,
        }
    )
    assert found == ClientSettings(
        (BrokerAddress("kafka-1", 9092),),
        TlsSettings("/etc/ca.pem", "", "/etc/client.pem", "/etc/client.key", "s3cr3t"),
        SaslSettings("SCRAM-SHA-512", "me", "s3cr3t"),
        "copier",
        "a",
        2.5,
        1.5,
        3.5,
        65536,
    )
    assert found.protocol == "sasl_ssl"


@pytest.mark.parametrize(
    ("properties", "verify", "check_host"),
    [
        ({}, True, True),
        ({"ssl.endpoint.identification.algorithm": ""}, True, False),
        ({"ssl.endpoint.identification.algorithm": "none"}, True, False),
        ({"ssl.endpoint.identification.algorithm": "https"}, True, True),
        ({"enable.ssl.certificate.verification": False}, False, False),
    ],
)
def test_checks_of_certificates_can_be_switched_off(
    properties: dict[str, object], verify: bool, check_host: bool
) -> None:
    found = parsed({**LAB, "security.protocol": "ssl", **properties}).tls
    assert found == TlsSettings(verify=verify, check_host=check_host)


def test_a_token_endpoint_is_read() -> None:
    found = parsed({**OIDC, "sasl.oauthbearer.scope": "kafka", "sasl.oauthbearer.extensions": "a=1, b=2"}).sasl
    assert found == SaslSettings(
        "OAUTHBEARER",
        oidc=OidcSettings("https://login/token", "remote-log", "s3cr3t", "kafka"),
        extensions={"a": "1", "b": "2"},
    )


def test_properties_of_producers_and_consumers_are_ignored() -> None:
    others = {"group.id": "g", "enable.auto.commit": False, "auto.offset.reset": "earliest", "log_level": 0}
    assert parsed({**LAB, **others}) == parsed(dict(LAB))


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ({}, r"bootstrap\.servers is missing"),
        (
            {**LAB, "security.protocol": "sasl"},
            r"security\.protocol .*plaintext, ssl, sasl_plaintext, sasl_ssl",
        ),
        ({**LOGIN}, r"sasl\.mechanism .*PLAIN, SCRAM-SHA-256"),
        ({**LOGIN, "sasl.mechanism": "GSSAPI"}, r"set sasl\.mechanism to"),
        ({**LOGIN, "sasl.mechanism": "PLAIN", "sasl.mechanisms": "SCRAM-SHA-256"}, r"set sasl\.mechanism to"),
        ({**LOGIN, "sasl.mechanism": "PLAIN", "sasl.username": ""}, r"sasl\.username is missing: PLAIN"),
        ({**LOGIN, "sasl.mechanism": "PLAIN", "sasl.password": ""}, r"sasl\.password is missing"),
        ({**OIDC, "sasl.oauthbearer.client.secret": ""}, r"sasl\.oauthbearer\.client\.secret is missing"),
        ({**OIDC, "sasl.oauthbearer.extensions": "s3cr3t"}, r"sasl\.oauthbearer\.extensions is not name=value"),
        ({**LAB, "security.protocol": "ssl", "ssl.key.location": "k"}, r"set without ssl\.certificate\.location"),
        (
            {**LAB, "security.protocol": "ssl", "ssl.keystore.location": "k"},
            r"ssl\.keystore\.location cannot be honoured",
        ),
        ({**LAB, "sasl.kerberos.principal": "me"}, r"Kerberos is not supported"),
        ({**LAB, "socket.timeout.ms": "1m"}, r"socket\.timeout\.ms .*0 to 3,600,000"),
        ({**LAB, "socket.timeout.ms": 0}, r"socket\.timeout\.ms is 0"),
        ({**LAB, "socket.timeout.ms": 3_600_001}, r"socket\.timeout\.ms is not a number"),
        ({**LAB, "plugin.library.paths": "/tmp/s3cr3t.so"}, r"plugin\.library\.paths is refused"),
        ({**LAB, "oauth_cb": "s3cr3t"}, r"oauth_cb is refused"),
        ({**LAB, "s3cr3t": "1"}, r"name is not shown"),
    ],
)
def test_an_unsupported_option_is_refused_by_name(properties: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=f"connection lab: .*{message}") as error:
        parsed(properties)
    assert "s3cr3t" not in str(error.value)


def test_the_page_on_the_client_names_every_property_that_is_read() -> None:
    page = (PROJECT / "docs" / "kafka-client.md").read_text()
    _, _, table = page.partition("| Property | Meaning here |")
    code = ast.parse(Path(client_settings.__file__).read_text())
    strings = {node.value for node in ast.walk(code) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    read = {name for name in strings & ALLOWED if name not in client_settings._NOT_HONOURED}
    assert len(read) > 20
    assert read <= set(re.findall(r"`([a-z.]+)`", table))


@pytest.mark.parametrize("properties", [{**LOGIN, "sasl.mechanism": "PLAIN", "ssl.key.password": "s3cr3t"}, OIDC])
def test_settings_travel_and_show_no_secret(properties: dict[str, object]) -> None:
    found = parsed(properties)
    assert "s3cr3t" not in repr(found)
    assert pickle.loads(pickle.dumps(found)) == found  # noqa: S301
