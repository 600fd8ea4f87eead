"""What a gateway sees of a client's login at its broker: the user, and when the client is logged in."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from tiered_storage.gateway.connections.client_connection import ClientConnection
from tiered_storage.gateway.connections.owed_answers import Change, Changed
from tiered_storage.kafka_wire.connections.error_codes import NONE
from tiered_storage.kafka_wire.connections.frames import SIZE_BYTES, decode_answer, decode_request
from tiered_storage.kafka_wire.server.request_header import RequestHeader

_SCRAM: Final = "SCRAM-"
_SCRAM_STEPS: Final = 2
"""A broker's first answer to SCRAM shows nothing of whether the client knows the password."""
_PLAIN: Final = "PLAIN"
_OAUTHBEARER: Final = "OAUTHBEARER"
"""If a broker refuses a token, its first answer has the reason but no error code; the next answer has the code."""


class ClientLogin:
    """The login on one client's connection. For one event loop."""

    def __init__(self, connection: ClientConnection) -> None:
        """Let `connection` know when the client is logged in."""
        self.user = ""
        """The user that the login names; "" if it does not show it, or did not begin."""
        self._connection = connection
        self._mechanism = ""
        self._steps_left = 1
        self._refuses_in_words = False

    def handshake(self, frame: memoryview, header: RequestHeader) -> None:
        """Take note of how the client logs in. Raises MalformedAnswerError."""
        mechanism = header.body(frame).string(flexible=False)
        self._steps_left = _SCRAM_STEPS if mechanism.startswith(_SCRAM) else 1
        self._refuses_in_words = mechanism == _OAUTHBEARER
        self._mechanism, self.user = mechanism, ""

    def authenticate(self, frame: memoryview, header: RequestHeader) -> Change:
        """Take a message of the login, and return what reads the broker's answer. Raises MalformedAnswerError."""
        asked = decode_request(header.body(frame), header.api, header.version)
        self.user = self.user or user_of(self._mechanism, asked.auth_bytes)
        return partial(self._authenticated, header)

    def _authenticated(self, header: RequestHeader, answer: memoryview) -> Changed:
        found: Any = decode_answer(answer[SIZE_BYTES:], header.api, header.version, header.correlation_id)
        is_refused = found.error_code.value != NONE or (self._refuses_in_words and found.auth_bytes)
        self._steps_left -= not is_refused
        if not self._steps_left:
            self._connection.logged_in()
        return [answer]


def user_of(mechanism: str, message: bytes) -> str:
    """Return the user that a login's first message names; "" if its mechanism does not show it.

    The broker accepts or refuses the user; the name is not used before that.
    """
    text = message.decode(errors="replace")
    if mechanism == _PLAIN:
        return text.split("\0")[1] if text.count("\0") > 1 else ""
    if mechanism.startswith(_SCRAM):
        return next((each[2:] for each in text.split(",") if each.startswith("n=")), "")
    return ""
