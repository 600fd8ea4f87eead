"""AWS's Security Token Service (STS) for tests, with roles whose sessions last seconds, and an S3 server that asks for
them. Neither checks signatures: they look at the key and the token of a request."""

from __future__ import annotations

import re
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs

from servers.s3_proxy import Asked, Refusal, proxy, served
from support.object_stores import S3Endpoint

_KEY = re.compile(r"Credential=([^/]+)/")


def role_arn(name: str) -> str:
    """Return the ARN of a role of the test account."""
    return f"arn:aws:iam::123456789012:role/{name}"


@dataclass(frozen=True, slots=True)
class Role:
    """A role: who may assume it (a key, the name of a role, or a web identity's token), and with which external id."""

    trusts: str
    external_id: str | None = None


@dataclass(frozen=True, slots=True)
class _Session:
    role: str
    token: str
    expires: float


@dataclass
class Account:
    """The roles and sessions of an account, and where its servers are. Sessions last `seconds`."""

    roles: dict[str, Role]
    admitted: str
    """The key or role that S3 admits."""
    seconds: float = 3600
    sts_url: str = ""
    s3: S3Endpoint = field(default_factory=lambda: S3Endpoint(""))
    sessions: dict[str, _Session] = field(default_factory=dict)
    """By access key."""
    seen: list[str] = field(default_factory=list)
    """The key of each request that S3 admitted."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def assume(self, form: dict[str, str], caller: str | None) -> tuple[int, str]:
        """Answer AssumeRole and AssumeRoleWithWebIdentity."""
        name = form["RoleArn"].rpartition("/")[2]
        role = self.roles.get(name)
        who = form.get("WebIdentityToken") or self._name_of(caller)
        if role is None or role.trusts != who or role.external_id != form.get("ExternalId"):
            return 403, _error("AccessDenied", f"not authorized to perform: sts:AssumeRole on {form['RoleArn']}")
        with self.lock:
            key = f"ASIA{len(self.sessions):04}"
            session = _Session(name, f"the-token-of-{key}", time.time() + self.seconds)
            self.sessions[key] = session
        return 200, _credentials(form["Action"], name, key, session)

    def look(self, asked: Asked) -> Refusal | None:
        """Say whether S3 admits a request."""
        key = _key_of(asked.headers) or ""
        session = self.sessions.get(key)
        if session is not None and time.time() >= session.expires:
            return Refusal(400, "ExpiredToken")
        if self._name_of(key) != self.admitted:
            return Refusal(403, "InvalidAccessKeyId")
        if session is not None and asked.headers.get("x-amz-security-token") != session.token:
            return Refusal(400, "InvalidToken")
        self.seen.append(key)
        return None

    def caller(self, key: str | None) -> tuple[int, str]:
        """Answer GetCallerIdentity."""
        name = self._name_of(key)
        arn = f"arn:aws:sts::123456789012:assumed-role/{name}/remote-log"
        result = f"<GetCallerIdentityResult><Arn>{arn}</Arn></GetCallerIdentityResult>"
        return 200, f"<GetCallerIdentityResponse>{result}</GetCallerIdentityResponse>"

    def _name_of(self, key: str | None) -> str | None:
        session = self.sessions.get(key or "")
        if session is None:
            return key
        return session.role if time.time() < session.expires else None


@contextmanager
def running_account(s3: S3Endpoint, account: Account, tls: ssl.SSLContext | None = None) -> Iterator[Account]:
    """Run STS for `account`, and let its S3 server pass on to `s3` what it admits."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
            form = {name: values[0] for name, values in parse_qs(raw).items()}
            key = _key_of({name.lower(): value for name, value in self.headers.items()})
            is_question = form["Action"] == "GetCallerIdentity"
            status, text = account.caller(key) if is_question else account.assume(form, key)
            self.send_response(status)
            self.send_header("Content-Type", "text/xml")
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            """Say nothing of requests."""

    with ExitStack() as running:
        account.sts_url = running.enter_context(served(Handler, tls))
        account.s3 = running.enter_context(proxy(s3, account.look, tls))
        yield account


def _key_of(headers: dict[str, Any]) -> str | None:
    found = _KEY.search(headers.get("authorization", ""))
    return None if found is None else found[1]


def _credentials(action: str, role: str, key: str, session: _Session) -> str:
    ends = datetime.fromtimestamp(session.expires, UTC).isoformat().replace("+00:00", "Z")
    fields = {"AccessKeyId": key, "SecretAccessKey": "secret", "SessionToken": session.token, "Expiration": ends}
    credentials = "".join(f"<{name}>{value}</{name}>" for name, value in fields.items())
    user = f"<Arn>arn:aws:sts::123456789012:assumed-role/{role}/session</Arn><AssumedRoleId>A:session</AssumedRoleId>"
    result = f"<Credentials>{credentials}</Credentials><AssumedRoleUser>{user}</AssumedRoleUser>"
    return f"<{action}Response><{action}Result>{result}</{action}Result></{action}Response>"


def _error(code: str, message: str) -> str:
    return f"<ErrorResponse><Error><Code>{code}</Code><Message>{message}</Message></Error></ErrorResponse>"
