"""One client's login at a gateway without brokers: the server's side of SASL.

    PLAIN       name \\0 name \\0 password, over TLS only
    SCRAM-*     RFC 5802 without channel binding, by scramp

Source: KIP-43, KIP-84, KIP-152; RFC 4616, RFC 5802.
"""

from __future__ import annotations

from typing import Any, Final

from scramp import ScramException, ScramMechanism

from tiered_storage.gateway.standalone.users import ScramKeys, Users

_PLAIN: Final = "PLAIN"
_SCRAM: Final = ("SCRAM-SHA-512", "SCRAM-SHA-256")


class LoginRefusedError(Exception):
    """A client gave no valid name and password."""


class Login:
    """A login, step by step. Then `user` is the name."""

    def __init__(self, users: Users, *, with_tls: bool) -> None:
        """Let `users` log in; PLAIN only `with_tls`."""
        self.mechanisms = (*_SCRAM, _PLAIN) if with_tls else _SCRAM
        self.user: str | None = None
        self._users = users
        self._mechanism: str | None = None
        self._scram: Any = None
        self._name = ""

    @property
    def has_begun(self) -> bool:
        """Whether a mechanism was chosen."""
        return self._mechanism is not None

    def choose(self, mechanism: str) -> bool:
        """Begin with a mechanism; False: there is no such one here."""
        if mechanism not in self.mechanisms:
            return False
        self._mechanism = mechanism
        if mechanism != _PLAIN:
            self._scram = ScramMechanism(mechanism).make_server(self._keys_of)
        return True

    def step(self, sent: bytes) -> bytes:
        """Return the answer to what a client sent. Raises LoginRefusedError."""
        try:
            return self._plain(sent.decode()) if self._scram is None else self._of_scram(sent.decode())
        except (ScramException, ValueError, LookupError) as error:
            raise LoginRefusedError(str(error)) from error

    def _plain(self, sent: str) -> bytes:
        acts_as, name, password = sent.split("\0")
        if acts_as not in {"", name} or not self._users.is_password(name, password):
            raise LoginRefusedError("no user has that name and password")
        self.user = name
        return b""

    def _of_scram(self, sent: str) -> bytes:
        server = self._scram
        if not self._name:
            server.set_client_first(sent)
            return str(server.get_server_first()).encode()
        server.set_client_final(sent)
        answer = str(server.get_server_final()).encode()
        self.user = self._name
        return answer

    def _keys_of(self, name: str) -> ScramKeys:
        self._name = name
        return self._users.keys(str(self._mechanism), name)
