"""A real broker with a listener for every way to log in, and the certificates that its clients need."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import parse_qs

import trustme
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclBindingFilter,
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
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from servers.kafka_programs import KafkaPrograms
from servers.real_kafka import RealKafka

PASSWORD = "throw-away"
CLIENT_SECRET = "not-to-be-shown"
KEY_PASSWORD = "opens-the-clients-key"
SESSION_MS = 2_000
REQUEST_SECONDS = 30

_PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
_SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
_OAUTH = "org.apache.kafka.common.security.oauthbearer"
_UNSECURED = f"{_OAUTH}.internals.unsecured.OAuthBearerUnsecured"
_USERS = " ".join(f'user_{name}="{PASSWORD}"' for name in ("reader", "describer", "unauthorized", "limited"))


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
    **_mechanisms("mutual"),
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
    "listener.name.mutual.ssl.client.auth": "required",
    "ssl.principal.mapping.rules": "RULE:^.*CN=([^,]+).*$/$1/,DEFAULT",
    "ssl.keystore.type": "PEM",
    "ssl.truststore.type": "PEM",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
LISTENERS = {
    "SASL": "SASL_PLAINTEXT",
    "SASLTLS": "SASL_SSL",
    "MUTUAL": "SASL_SSL",
    "SHORT": "SASL_PLAINTEXT",
    "OAUTH": "SASL_PLAINTEXT",
    "TLS": "SSL",
    "AWAY": "PLAINTEXT",
}
"""Security protocols by listener. MUTUAL asks for a client's certificate beside its password, TLS for that alone."""
UNREACHABLE = "127.0.0.1:1"
"""The address that the listener AWAY advertises, where nothing listens."""

READER, DESCRIBER, LIMITED, CERTIFIED = "User:reader", "User:describer", "User:limited", "User:client"
READS = (AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS, AclOperation.READ)
"""What a copy needs of a topic."""


@dataclass(frozen=True, slots=True)
class GuardedKafka:
    """A broker with the listeners LISTENERS, and PLAINTEXT, where everything is allowed; certificates are in `folder`.

    Users reader, describer, limited and unauthorized have PASSWORD; reader by SCRAM too, remote-log by that
    alone. `client.pem` belongs to CERTIFIED, and its key is locked with KEY_PASSWORD. `unauthorized.pem` is signed by
    an authority that the broker does not trust.
    """

    kafka: RealKafka
    folder: Path

    def properties(self, listener: str, **properties: str) -> dict[str, str]:
        """Return a client's properties for a listener; `properties` come on top, with _ for the dots."""
        protocol = LISTENERS[listener].lower()
        found = {"bootstrap.servers": self.kafka.address(listener), "security.protocol": protocol}
        if protocol.endswith("ssl"):
            found["ssl.ca.location"] = str(self.folder / "ca.pem")
        if protocol.startswith("sasl") and listener != "OAUTH":
            found |= {"sasl.username": "reader", "sasl.password": PASSWORD, "sasl.mechanism": "PLAIN"}
        if listener == "OAUTH":
            found["sasl.mechanism"] = "OAUTHBEARER"
        return found | {name.replace("_", "."): value for name, value in properties.items()}

    @property
    def certificate(self) -> dict[str, str]:
        """The properties, with _ for the dots, of a client with a certificate that the broker trusts."""
        shown = str(self.folder / "client.pem")
        return {
            "ssl_certificate_location": shown,
            "ssl_key_location": shown,
            "ssl_key_password": KEY_PASSWORD,
        }

    def grant(
        self, name: str, rights: Mapping[str, tuple[AclOperation, ...]], resource: ResourceType = ResourceType.TOPIC
    ) -> None:
        """Allow each principal its operations on a topic, or on another resource of that name."""
        admin = AdminClient({"bootstrap.servers": self.kafka.bootstrap_servers})
        literal, allow = ResourcePatternType.LITERAL, AclPermissionType.ALLOW
        bindings = [
            AclBinding(resource, name, literal, principal, "*", operation, allow)
            for principal, operations in rights.items()
            for operation in operations
        ]
        for each in admin.create_acls(bindings).values():
            each.result(REQUEST_SECONDS)

    def revoke(self, topic: str, principal: str, operation: AclOperation) -> None:
        """Take back a right on a topic that was granted."""
        admin = AdminClient({"bootstrap.servers": self.kafka.bootstrap_servers})
        literal, allow = ResourcePatternType.LITERAL, AclPermissionType.ALLOW
        granted = AclBindingFilter(ResourceType.TOPIC, topic, literal, principal, "*", operation, allow)
        for each in admin.delete_acls([granted]).values():
            each.result(REQUEST_SECONDS)


@contextmanager
def guarded_kafka(programs: KafkaPrograms, folder: Path) -> Iterator[GuardedKafka]:
    """Run such a broker, with its files in `folder`."""
    properties = {**_PROPERTIES, **_certificates(folder)}
    advertised = {"AWAY": UNREACHABLE}
    broker = RealKafka(programs, folder / "broker", properties=properties, listeners=LISTENERS, advertised=advertised)
    with broker as kafka:
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
            for name in ("reader", "remote-log"):
                user = UserScramCredentialUpsertion(name, ScramCredentialInfo(mechanism, 4096), PASSWORD.encode())
                for each in admin.alter_user_scram_credentials([user]).values():
                    each.result(REQUEST_SECONDS)
        yield GuardedKafka(kafka, folder)


def _certificates(folder: Path) -> dict[str, str]:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    trustme.CA().cert_pem.write_to_path(str(folder / "other-ca.pem"))
    locked = BestAvailableEncryption(KEY_PASSWORD.encode())
    for name, signer, encryption in (
        ("broker", authority, NoEncryption()),
        ("client", authority, locked),
        ("unauthorized", trustme.CA(), NoEncryption()),
    ):
        issued = signer.issue_cert("127.0.0.1", common_name=name)
        # Java reads keys in PKCS 8 only.
        key = load_pem_private_key(issued.private_key_pem.bytes(), None)
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption)
        (folder / f"{name}.pem").write_bytes(pem + b"".join(each.bytes() for each in issued.cert_chain_pems))
    return {"ssl.keystore.location": str(folder / "broker.pem"), "ssl.truststore.location": str(folder / "ca.pem")}


def unsecured_token(subject: str, seconds: int = 600) -> str:
    """Return a token that no one signed, as Kafka's validator for tests takes it."""
    # A token of this very moment would be of the future for a broker whose clock ticks in milliseconds.
    now = int(time.time())
    parts = ({"alg": "none"}, {"sub": subject, "iat": now, "exp": now + seconds})
    return "".join(base64.urlsafe_b64encode(json.dumps(each).encode()).decode().rstrip("=") + "." for each in parts)


@contextmanager
def token_endpoint() -> Iterator[str]:
    """Run an endpoint that gives reader's tokens to the client remote-log with CLIENT_SECRET; yield its URL."""
    login = base64.b64encode(f"remote-log:{CLIENT_SECRET}".encode()).decode()

    class Endpoint(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            form = parse_qs(self.rfile.read(int(self.headers["content-length"])).decode())
            is_right = self.headers["authorization"] == f"Basic {login}"
            is_asked = form.get("grant_type") == ["client_credentials"]
            token = {"access_token": unsecured_token("reader"), "token_type": "Bearer", "expires_in": 600}
            self.send_response(200 if is_right and is_asked else 401)
            self.send_header("content-type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps(token if is_right and is_asked else {"error": "invalid_client"}).encode())

        def log_message(self, *_: object) -> None:
            """Write nothing to the test's output."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Endpoint)
    thread = Thread(target=server.serve_forever, name="token endpoint")
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/token"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
