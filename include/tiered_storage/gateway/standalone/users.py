"""Who may log in at a gateway without brokers: the file that gateway.users.file names.

    alice: a password
    bob: another one

Only its owner may be able to read it. It is read again when it changes: new logins go by it, open connections stay.
Clients log in by SCRAM, and only SCRAM's keys are kept here.

Source: RFC 5802; KIP-84.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import re
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

import yaml
from scramp import ScramMechanism

from tiered_storage.errors import ConfigurationError
from tiered_storage.regular_files import open_regular

_log = logging.getLogger(__name__)

MOST_BYTES: Final = 1 << 20
ITERATIONS: Final = 4096
"""SCRAM iterations; Kafka's minimum for its own users."""
_NAME: Final = re.compile(r"[A-Za-z0-9._@-]{1,100}")
_OF_OTHERS: Final = 0o077
_SALT_BYTES: Final = 16


class ScramKeys(NamedTuple):
    """The values that SCRAM derives from a password, in the order of scramp."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int


class Users:
    """The users in a file. For one event loop."""

    def __init__(self, path: Path) -> None:
        """Read the file `path`. Raises ConfigurationError."""
        self._path = path
        self._passwords = load_users(path)
        self._stamp = _stamp(path)
        self._keys: dict[tuple[str, str, str], ScramKeys] = {}
        self._secret = secrets.token_bytes(32)

    def is_password(self, name: str, password: str) -> bool:
        """Return whether a user has that password."""
        known = self._current().get(name)
        same = hmac.compare_digest((known or "").encode(), password.encode())
        return known is not None and same

    def keys(self, mechanism: str, name: str) -> ScramKeys:
        """Return a user's keys for a `mechanism` of SCRAM.

        For an unknown name they are random, with the same salt each time, so that no answer shows which names exist.
        """
        password = self._current().get(name)
        if password is None:
            salt = hmac.digest(self._secret, f"{mechanism} {name}".encode(), "sha256")[:_SALT_BYTES]
            size = hashlib.new(mechanism.removeprefix("SCRAM-").replace("-", "")).digest_size
            return ScramKeys(salt, secrets.token_bytes(size), secrets.token_bytes(size), ITERATIONS)
        key = (mechanism, name, password)
        if key not in self._keys:
            salt = secrets.token_bytes(_SALT_BYTES)
            self._keys[key] = ScramKeys(*ScramMechanism(mechanism).make_auth_info(password, ITERATIONS, salt))
        return self._keys[key]

    def _current(self) -> Mapping[str, str]:
        """Return the passwords in the file, by name; none while it is invalid."""
        stamp = _stamp(self._path)
        if stamp != self._stamp:
            self._stamp, self._keys = stamp, {}
            try:
                self._passwords = load_users(self._path)
            except ConfigurationError as error:
                _log.error("nobody can log in: %s", error)
                self._passwords = {}
        return self._passwords


def load_users(path: Path) -> dict[str, str]:
    """Return the passwords in the file `path`, by name. Raises ConfigurationError; its text shows no password."""
    try:
        with open_regular(path) as file:
            mode = os.fstat(file.fileno()).st_mode
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise ConfigurationError(f"{path} of gateway.users.file: cannot be read: {error.strerror}") from error
    if stat.S_IMODE(mode) & _OF_OTHERS:
        raise ConfigurationError(f"{path}: others on this machine can use the file of passwords: chmod 600 {path}")
    try:
        found = yaml.load(content.decode(), Loader=yaml.BaseLoader) if len(content) <= MOST_BYTES else None  # noqa: S506
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError):
        found = None
    is_valid = isinstance(found, dict) and all(
        isinstance(name, str) and _NAME.fullmatch(name) and isinstance(password, str) and password
        for name, password in found.items()
    )
    if not is_valid or not found:
        raise ConfigurationError(
            f"{path}: not a file of users: write one line 'name: password' each, names of letters, digits and ._@-"
        )
    return dict(found)


def _stamp(path: Path) -> tuple[int, ...] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return (found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino)
