"""How to connect to a cluster and log in, by librdkafka's property names.

The extra of an Airflow connection of the Kafka provider has the same properties. A property that the list in
client_properties.py does not allow is refused, as is a security property that this client cannot honour. Properties of
producers and consumers have no effect here and are ignored. No error and no representation shows a value.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from tiered_storage.errors import ConfigurationError
from tiered_storage.kafka_wire.connections.client_properties import FOR_RECORDS, checked_properties

DEFAULT_PORT = 9092
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
PROTOCOLS = ("plaintext", "ssl", "sasl_plaintext", "sasl_ssl")

_ADDRESS = re.compile(r"(?P<host>\[[0-9a-fA-F:.%]+\]|[^\s:/\[\]]+)(?::(?P<port>\d{1,5}))?")
_MAX_PORT = 65535
_MAX_MILLISECONDS = 3_600_000
_NOT_HONOURED: Final = {
    "ssl.keystore.location": "give the certificate and its key as PEM: ssl.certificate.location and ssl.key.location",
    "ssl.keystore.password": "give the certificate and its key as PEM: ssl.certificate.location and ssl.key.location",
    "ssl.certificate.pem": "write it into a file, and name that in ssl.certificate.location",
    "ssl.key.pem": "write it into a file, and name that in ssl.key.location",
    "ssl.crl.location": "remove it; revocation lists are not read",
    "ssl.cipher.suites": "remove it; the ciphers are OpenSSL's defaults",
    "ssl.curves.list": "remove it; the curves are OpenSSL's defaults",
    "ssl.sigalgs.list": "remove it; the signature algorithms are OpenSSL's defaults",
    "sasl.kerberos.keytab": "Kerberos is not supported: choose another sasl.mechanism",
    "sasl.kerberos.principal": "Kerberos is not supported: choose another sasl.mechanism",
    "sasl.kerberos.service.name": "Kerberos is not supported: choose another sasl.mechanism",
}


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """Where a broker listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """Whom to trust, and the certificate to show; empty: the machine's authorities, and no certificate."""

    ca_location: str = ""
    ca_pem: str = field(default="", repr=False)
    certificate_location: str = ""
    key_location: str = ""
    key_password: str = field(default="", repr=False)
    verify: bool = True
    check_host: bool = True


@dataclass(frozen=True, slots=True)
class OidcSettings:
    """Where to get tokens by OAuth's client credentials (RFC 6749, 4.4)."""

    token_url: str
    client_id: str
    client_secret: str = field(repr=False)
    scope: str = ""
    ca_location: str = ""
    ca_pem: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class SaslSettings:
    """How to log in. OAUTHBEARER without `oidc` takes a source of tokens from the caller."""

    mechanism: str
    username: str = ""
    password: str = field(default="", repr=False)
    oidc: OidcSettings | None = None
    extensions: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """A cluster's bootstrap addresses, and how to connect to its brokers. Times are in seconds."""

    bootstrap: tuple[BrokerAddress, ...]
    tls: TlsSettings | None = None
    sasl: SaslSettings | None = None
    client_id: str = "remote-log"
    rack: str = ""
    connect_seconds: float = 30.0
    """For the connection, its TLS handshake and its login together."""
    request_seconds: float = 60.0
    """For one request and its answer."""
    broker_seconds: float = 30.0
    """For a broker to do what takes more than one of them, such as a deletion of records."""
    receive_buffer_bytes: int = 0
    """Of the socket; 0: the operating system's choice."""

    @property
    def protocol(self) -> str:
        """The value of security.protocol."""
        return PROTOCOLS[(self.tls is not None) + 2 * (self.sasl is not None)]


def parse_client_settings(properties: Mapping[str, object], where: str) -> ClientSettings:
    """Return the settings of `properties`, which `where` names in errors.

    Raises ConfigurationError for a property that is refused, invalid or missing.
    """
    given = {name: value for name, value in properties.items() if name not in FOR_RECORDS}
    reader = _Reader(checked_properties(given, where), where)
    reader.refuse_what_is_not_honoured()
    protocol = reader.choice("security.protocol", PROTOCOLS, "plaintext")
    return ClientSettings(
        parse_addresses(reader.required("bootstrap.servers", "host:port of some brokers, with commas"), where),
        _tls(reader) if protocol.endswith("ssl") else None,
        _sasl(reader) if protocol.startswith("sasl") else None,
        reader.text("client.id") or "remote-log",
        reader.text("client.rack"),
        reader.seconds("socket.connection.setup.timeout.ms", 30_000),
        reader.seconds("socket.timeout.ms", 60_000),
        reader.seconds("request.timeout.ms", 30_000),
        reader.number("socket.receive.buffer.bytes", 0, 1 << 30),
    )


def parse_addresses(text: str, where: str) -> tuple[BrokerAddress, ...]:
    """Return the addresses of bootstrap.servers: `host[:port]`, with commas between them.

    Raises ConfigurationError, which names `where`.
    """
    return tuple(_address(part.strip(), where) for part in text.split(","))


def _address(text: str, where: str) -> BrokerAddress:
    found = _ADDRESS.fullmatch(text)
    port = int(found["port"] or DEFAULT_PORT) if found else 0
    if found is None or not 0 < port <= _MAX_PORT:
        raise ConfigurationError(
            f"{where}: bootstrap.servers has an entry that is not host:port; write them as in "
            "kafka-1:9092,kafka-2:9092, without a protocol"
        )
    return BrokerAddress(found["host"].strip("[]"), port)


def _tls(reader: _Reader) -> TlsSettings:
    certificate, key = reader.text("ssl.certificate.location"), reader.text("ssl.key.location")
    if bool(key) > bool(certificate):
        raise ConfigurationError(f"{reader.where}: ssl.key.location is set without ssl.certificate.location: set both")
    verify = reader.flag("enable.ssl.certificate.verification", default=True)
    checks = reader.choice("ssl.endpoint.identification.algorithm", ("https", "none", ""), "https")
    return TlsSettings(
        "" if reader.text("ssl.ca.location") == "probe" else reader.text("ssl.ca.location"),
        reader.text("ssl.ca.pem"),
        certificate,
        key or certificate,
        reader.text("ssl.key.password"),
        verify=verify,
        check_host=verify and checks == "https",
    )


def _sasl(reader: _Reader) -> SaslSettings:
    names = {reader.text(name) for name in ("sasl.mechanism", "sasl.mechanisms")} - {""}
    if len(names) != 1 or next(iter(names)) not in MECHANISMS:
        raise ConfigurationError(
            f"{reader.where}: set sasl.mechanism to one of {', '.join(MECHANISMS)}; sasl.mechanisms is its other name"
        )
    mechanism = names.pop()
    if mechanism != "OAUTHBEARER":
        advice = f"{mechanism} logs in with a name and a password"
        return SaslSettings(
            mechanism, reader.required("sasl.username", advice), reader.required("sasl.password", advice)
        )
    method = reader.choice("sasl.oauthbearer.method", ("default", "oidc"), "default")
    return SaslSettings(
        mechanism,
        oidc=_oidc(reader) if method == "oidc" else None,
        extensions=reader.pairs("sasl.oauthbearer.extensions"),
    )


def _oidc(reader: _Reader) -> OidcSettings:
    advice = "sasl.oauthbearer.method=oidc gets its tokens with it"
    return OidcSettings(
        reader.required("sasl.oauthbearer.token.endpoint.url", advice),
        reader.required("sasl.oauthbearer.client.id", advice),
        reader.required("sasl.oauthbearer.client.secret", advice),
        reader.text("sasl.oauthbearer.scope"),
        reader.text("https.ca.location"),
        reader.text("https.ca.pem"),
    )


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads values by their names. Methods raise ConfigurationError."""

    properties: Mapping[str, str]
    where: str

    def refuse_what_is_not_honoured(self) -> None:
        for name, advice in _NOT_HONOURED.items():
            if self.properties.get(name):
                raise ConfigurationError(f"{self.where}: {name} cannot be honoured here: {advice}")

    def text(self, name: str) -> str:
        return self.properties.get(name, "")

    def required(self, name: str, advice: str) -> str:
        value = self.text(name)
        if not value:
            raise ConfigurationError(f"{self.where}: {name} is missing: {advice}")
        return value

    def choice(self, name: str, choices: tuple[str, ...], default: str) -> str:
        value = self.properties.get(name, default).lower()
        if value not in choices:
            raise ConfigurationError(
                f"{self.where}: {name} must be one of {', '.join(each or 'empty' for each in choices)}"
            )
        return value

    def flag(self, name: str, *, default: bool) -> bool:
        return self.choice(name, ("true", "false"), str(default).lower()) == "true"

    def number(self, name: str, default: int, largest: int) -> int:
        value = self.properties.get(name, str(default))
        if not (value.isascii() and value.isdigit() and len(value) <= len(str(largest)) and int(value) <= largest):
            raise ConfigurationError(f"{self.where}: {name} is not a number from 0 to {largest:,}")
        return int(value)

    def seconds(self, name: str, default: int) -> float:
        value = self.number(name, default, _MAX_MILLISECONDS)
        if value == 0:
            raise ConfigurationError(f"{self.where}: {name} is 0; give at least 1 (milliseconds)")
        return value / 1000

    def pairs(self, name: str) -> dict[str, str]:
        parts = [each.partition("=") for each in self.text(name).split(",") if each.strip()]
        if not all(key.strip() and equals for key, equals, _ in parts):
            raise ConfigurationError(f"{self.where}: {name} is not name=value, with commas between them")
        return {key.strip(): value.strip() for key, _, value in parts}
