from __future__ import annotations

import json
import ssl
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any
from urllib.parse import parse_qs

import pytest
import trustme
from scramp import ScramException, ScramMechanism

from tiered_storage.errors import ClusterRefusedError, ClusterUnreachableError, ConfigurationError
from tiered_storage.kafka_wire.connections.client_settings import OidcSettings, SaslSettings
from tiered_storage.kafka_wire.connections.sasl import Exchange, OidcTokens, exchange, token_source

MECHANISMS = ["SCRAM-SHA-256", "SCRAM-SHA-512"]


def scram_server(mechanism: str, password: str) -> Any:
    stored = ScramMechanism(mechanism).make_auth_info(password)
    return ScramMechanism(mechanism).make_server(lambda _: stored)


def log_in(steps: Exchange, server: Any) -> None:
    server.set_client_first(next(steps).decode())
    server.set_client_final(steps.send(server.get_server_first().encode()).decode())
    with pytest.raises(StopIteration):
        steps.send(server.get_server_final().encode())


def test_plain_sends_name_and_password() -> None:
    steps = exchange(SaslSettings("PLAIN", "me", "s3cr3t ü"), None)
    assert next(steps) == "\0me\0s3cr3t ü".encode()
    with pytest.raises(StopIteration):
        steps.send(b"")


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("name", ["me", "me,my=self"])
def test_scram_logs_in_to_its_server(mechanism: str, name: str) -> None:
    log_in(exchange(SaslSettings(mechanism, name, "s3cr3t"), None), scram_server(mechanism, "s3cr3t"))


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_scram_proves_no_other_password(mechanism: str) -> None:
    with pytest.raises(ScramException, match="keys"):
        log_in(exchange(SaslSettings(mechanism, "me", "guess"), None), scram_server(mechanism, "s3cr3t"))


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_server_that_does_not_know_the_password_is_refused(mechanism: str) -> None:
    steps = exchange(SaslSettings(mechanism, "me", "s3cr3t"), None)
    server = scram_server(mechanism, "another")
    server.set_client_first(next(steps).decode())
    steps.send(server.get_server_first().encode())
    with pytest.raises(ClusterRefusedError, match="signature") as error:
        steps.send(b"v=" + b"A" * 44)
    assert "s3cr3t" not in "".join(traceback.format_exception(error.value))


@pytest.mark.parametrize("answer", [b"", b"\xff", b"r=x,s=y,i=1", b"e=unknown-user"])
def test_an_answer_that_is_not_scrams_is_refused(answer: bytes) -> None:
    steps = exchange(SaslSettings("SCRAM-SHA-256", "me", "s3cr3t"), None)
    next(steps)
    with pytest.raises(ClusterRefusedError, match=r"SCRAM-SHA-256 .*sasl\.username"):
        steps.send(answer)


def test_oauthbearer_sends_a_token_and_its_extensions() -> None:
    steps = exchange(SaslSettings("OAUTHBEARER", extensions={"a": "1", "b": "2"}), lambda: "token")
    assert next(steps) == b"n,,\x01auth=Bearer token\x01a=1\x01b=2\x01\x01"
    with pytest.raises(StopIteration):
        steps.send(b"")


@pytest.mark.parametrize(
    ("refusal", "reason"),
    [(b'{"status":"invalid_token"}', "invalid_token"), (b"[]", "no reason"), (b"\xff", "no reason")],
)
def test_oauthbearer_ends_a_refused_exchange(refusal: bytes, reason: str) -> None:
    steps = exchange(SaslSettings("OAUTHBEARER"), lambda: "token")
    next(steps)
    assert steps.send(refusal) == b"\x01"
    with pytest.raises(ClusterRefusedError, match=f"refuses the OAUTHBEARER token: .*{reason}"):
        steps.send(b"")


def test_oauthbearer_needs_a_source_of_tokens() -> None:
    with pytest.raises(ConfigurationError, match=r"sasl\.oauthbearer\.method=oidc"):
        exchange(SaslSettings("OAUTHBEARER"), None)


@dataclass
class TokenEndpoint:
    """Answers with `status` and `answer`."""

    url: str = ""
    status: int = 200
    answer: bytes = b'{"access_token": "t1", "expires_in": 100}'
    forms: list[dict[str, list[str]]] = field(default_factory=list)
    authorizations: list[str] = field(default_factory=list)


@contextmanager
def served(tls: ssl.SSLContext | None = None) -> Iterator[TokenEndpoint]:
    found = TokenEndpoint()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"])).decode()
            found.forms.append(parse_qs(body))
            found.authorizations.append(self.headers["authorization"])
            self.send_response(found.status)
            self.send_header("content-length", str(len(found.answer)))
            self.end_headers()
            self.wfile.write(found.answer)

        def log_message(self, *args: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        if tls:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        found.url = f"{'https' if tls else 'http'}://127.0.0.1:{server.server_port}/token"
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield found
        server.shutdown()
        thread.join()


@pytest.fixture
def endpoint() -> Iterator[TokenEndpoint]:
    with served() as found:
        yield found


def tokens(url: str, now: Callable[[], float] = lambda: 0.0, scope: str = "kafka") -> OidcTokens:
    return OidcTokens(OidcSettings(url, "me", "s3cr3t", scope), now)


def test_a_token_is_kept_for_most_of_its_lifetime(endpoint: TokenEndpoint) -> None:
    time = [0.0]
    source = tokens(endpoint.url, lambda: time[0])
    assert source() == "t1"
    endpoint.answer = json.dumps({"access_token": "t2"}).encode()
    time[0] = 79.9
    assert source() == "t1"
    time[0] = 80.0
    assert source() == "t2"
    # This one says nothing of its lifetime.
    endpoint.answer = json.dumps({"access_token": "t3"}).encode()
    assert source() == "t3"
    assert endpoint.forms[0] == {"grant_type": ["client_credentials"], "scope": ["kafka"]}
    assert endpoint.authorizations == ["Basic bWU6czNjcjN0"] * 3


@pytest.mark.parametrize(
    ("status", "answer"), [(401, b"{}"), (200, b"<html>"), (200, b"[]"), (200, b'{"access_token": ""}'), (302, b"")]
)
def test_an_endpoint_without_a_token_names_what_to_check(endpoint: TokenEndpoint, status: int, answer: bytes) -> None:
    endpoint.status, endpoint.answer = status, answer
    with pytest.raises(
        ClusterRefusedError, match=rf"HTTP status {status}: check sasl\.oauthbearer\.client\.id"
    ) as error:
        tokens(endpoint.url)()
    assert "s3cr3t" not in "".join(traceback.format_exception(error.value))


def test_an_endpoint_that_fails_may_serve_later(endpoint: TokenEndpoint) -> None:
    endpoint.status = 503
    with pytest.raises(ClusterUnreachableError, match="HTTP status 503"):
        tokens(endpoint.url)()


def test_an_endpoint_is_trusted_by_its_authority() -> None:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    with served(context) as endpoint:
        oidc = OidcSettings(endpoint.url, "me", "s3cr3t", ca_pem=authority.cert_pem.bytes().decode())
        assert OidcTokens(oidc)() == "t1"
        with pytest.raises(ClusterUnreachableError, match=r"https\.ca\.location\): .*certificate verify failed"):
            OidcTokens(OidcSettings(endpoint.url, "me", "s3cr3t"))()


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/token", "login/token"])
def test_an_endpoint_that_nobody_answers_at_is_named(url: str) -> None:
    with pytest.raises(ClusterUnreachableError, match=rf"{url}: no token \(sasl\.oauthbearer\.token\.endpoint\.url"):
        tokens(url)()


def test_settings_with_an_endpoint_have_a_source_of_tokens() -> None:
    oidc = OidcSettings("http://127.0.0.1:1/token", "me", "s3cr3t")
    assert isinstance(token_source(SaslSettings("OAUTHBEARER", oidc=oidc)), OidcTokens)
    assert token_source(SaslSettings("OAUTHBEARER")) is None
    assert token_source(None) is None
