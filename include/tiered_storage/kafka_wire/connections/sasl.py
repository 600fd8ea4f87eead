"""Logins by SASL: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 and OAUTHBEARER, apart from the connection they run over.

An exchange is a generator: it yields the client's next message and is sent the broker's answer to it.

    PLAIN         \\0 name \\0 password
    SCRAM-*       RFC 5802 without channel binding, by scramp; the broker's signature is verified
    OAUTHBEARER   RFC 7628: n,, ^A auth=Bearer TOKEN ^A [name=value ^A ...] ^A; after a JSON error, the client sends ^A

Source: KIP-43, KIP-84, KIP-255, KIP-768; the RFCs.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Generator

import httpx
from scramp import ScramClient, ScramException

from tiered_storage.errors import ClusterRefusedError, ClusterUnreachableError, ConfigurationError
from tiered_storage.kafka_wire.connections.client_settings import OidcSettings, SaslSettings
from tiered_storage.kafka_wire.connections.transport import trusting_context

TokenSource = Callable[[], str]
"""Returns a token that is valid now; it is called before every login."""
Exchange = Generator[bytes, bytes, None]

_TOKEN_SECONDS = 30.0
_SHARE_OF_LIFETIME = 0.8
"""A token is replaced after this share of its time."""


def exchange(sasl: SaslSettings, token: TokenSource | None) -> Exchange:
    """Return the messages of one login. `token` is for OAUTHBEARER.

    The generator raises ClusterRefusedError if the broker fails its part, or refuses ours in a message of SASL's own.
    Raises ConfigurationError for OAUTHBEARER without a source of tokens.
    """
    if sasl.mechanism == "PLAIN":
        return _plain(sasl)
    if sasl.mechanism == "OAUTHBEARER":
        if token is None:
            raise ConfigurationError(
                "sasl.mechanism=OAUTHBEARER has no source of tokens: set sasl.oauthbearer.method=oidc and the token "
                "endpoint's properties"
            )
        return _oauthbearer(sasl, token)
    return _scram(sasl)


def token_source(sasl: SaslSettings | None) -> TokenSource | None:
    """Return the source of tokens that the settings name, if they name one."""
    return OidcTokens(sasl.oidc) if sasl and sasl.oidc else None


def _plain(sasl: SaslSettings) -> Exchange:
    yield f"\0{sasl.username}\0{sasl.password}".encode()


def _scram(sasl: SaslSettings) -> Exchange:
    try:
        client = ScramClient([sasl.mechanism], sasl.username, sasl.password)
        first = yield client.get_client_first().encode()
        client.set_server_first(first.decode())
        final = yield client.get_client_final().encode()
        client.set_server_final(final.decode())
    except (ScramException, UnicodeDecodeError) as error:
        raise ClusterRefusedError(
            f"the {sasl.mechanism} login as sasl.username failed: {error}; if the password is right, this is not the "
            "cluster that it was set for"
        ) from None


def _oauthbearer(sasl: SaslSettings, token: TokenSource) -> Exchange:
    extensions = "".join(f"{name}={value}\x01" for name, value in sasl.extensions.items())
    refused = yield f"n,,\x01auth=Bearer {token()}\x01{extensions}\x01".encode()
    if refused:
        # The broker closes the exchange with an error after this.
        yield b"\x01"
        raise ClusterRefusedError(f"the broker refuses the OAUTHBEARER token: {_status(refused)}")


def _status(refused: bytes) -> str:
    """Return the `status` of the broker's JSON."""
    try:
        return str(json.loads(refused)["status"])
    except (ValueError, LookupError, TypeError):
        return "it gives no reason"


class OidcTokens:
    """Gets tokens by client credentials, and keeps one for most of its lifetime. For one thread."""

    def __init__(self, oidc: OidcSettings, now: Callable[[], float] = time.monotonic) -> None:
        """Measure lifetimes by `now` (seconds). Nothing is sent yet."""
        self._oidc = oidc
        self._now = now
        self._token = ""
        self._until = now()

    def __call__(self) -> str:
        """Return a token.

        Raises ClusterUnreachableError if the endpoint does not answer, ClusterRefusedError if it gives no token.
        """
        if not self._token or self._now() >= self._until:
            answer = self._answer()
            lifetime = answer.get("expires_in")
            self._token = str(answer["access_token"])
            self._until = self._now() + _SHARE_OF_LIFETIME * (lifetime if isinstance(lifetime, int | float) else 0)
        return self._token

    def _answer(self) -> dict[str, object]:
        form = {"grant_type": "client_credentials"} | ({"scope": self._oidc.scope} if self._oidc.scope else {})
        url = self._oidc.token_url
        try:
            answer = httpx.post(
                url,
                data=form,
                auth=(self._oidc.client_id, self._oidc.client_secret),
                headers={"accept": "application/json"},
                timeout=_TOKEN_SECONDS,
                verify=trusting_context(self._oidc.ca_location, self._oidc.ca_pem),
            )
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ClusterUnreachableError(
                f"{url}: no token (sasl.oauthbearer.token.endpoint.url, https.ca.location): {error}"
            ) from error
        if answer.is_server_error:
            raise ClusterUnreachableError(f"{url}: no token: HTTP status {answer.status_code}")
        try:
            found = answer.json()
        except ValueError:
            found = None
        if not answer.is_success or not isinstance(found, dict) or not found.get("access_token"):
            raise ClusterRefusedError(
                f"{url}: no token: HTTP status {answer.status_code}: check sasl.oauthbearer.client.id, "
                "sasl.oauthbearer.client.secret and sasl.oauthbearer.scope"
            )
        return found
