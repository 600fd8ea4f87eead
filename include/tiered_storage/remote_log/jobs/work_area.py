"""The messages between the steps of a run: small files of JSON lines under work.url.

Anybody with write access there could otherwise make a task delete, or a worker read and write, anything. So the last
line of every message is a signature: an HMAC-SHA256 over its path and its content, with a key that only the metadata
have. The workers of a job get a key derived from that key and the job's folder: they can sign results of that job, but
neither plans nor messages of other jobs. Reports, which only people read, are not signed.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Iterable
from typing import Self, TypeVar

from pydantic import ValidationError

from tiered_storage.errors import ConfigurationError, RemoteObjectNotFoundError, UntrustedMessageError
from tiered_storage.remote_log.storage.clients.object_client import ObjectClient
from tiered_storage.remote_log.storage.documents.json_document import adapter_of, first_problem

Message = TypeVar("Message")

MOST_MESSAGE_BYTES = 1 << 30
"""The maximum size of a signed message in bytes: a plan has one line per segment, of about 1 KiB."""

MOST_REPORT_BYTES = 5_000_000
"""The maximum size of a report in bytes; a task's figures are far smaller."""

_READS = 2
"""How often a file is read again if its writer replaces it between the check of its size and the read."""


def to_lines(messages: Iterable[Message], kind: type[Message]) -> bytes:
    """Return `messages` as JSON lines."""
    adapter = adapter_of(kind)
    return b"".join(adapter.dump_json(message) + b"\n" for message in messages)


def from_lines(raw: bytes, kind: type[Message], source: str) -> list[Message]:
    """Read what `to_lines` wrote. Raises ConfigurationError naming `source` and the line that is broken."""
    adapter = adapter_of(kind)
    messages = []
    for number, line in enumerate(raw.splitlines(), start=1):
        try:
            messages.append(adapter.validate_json(line))
        except ValidationError as error:
            reason = first_problem(error)
            raise ConfigurationError(f"{source}: line {number} is not a {kind.__name__}: {reason}") from None
    return messages


class WorkArea:
    """Messages by path; a path is written atomically, and may be written again.

    `key` returns the key that signs messages, and is called when the first one is written or read; without it only
    reports can be used.
    """

    def __init__(self, url: str, client: ObjectClient, key: Callable[[], bytes] | None = None) -> None:
        self.url = url
        self._client = client
        self._key = key

    def write(self, path: str, messages: Iterable[Message], kind: type[Message]) -> None:
        """Write `messages` to `path`, signed, replacing earlier ones."""
        content = to_lines(messages, kind)
        self._put(path, content + self._signature(path, content))

    def read(self, path: str, kind: type[Message]) -> list[Message]:
        """Read the messages at `path`.

        Raises RemoteObjectNotFoundError, UntrustedMessageError if their signature does not match this path, content and
        key, and ConfigurationError for corrupt ones and for more than MOST_MESSAGE_BYTES.
        """
        for _ in range(_READS):
            raw = self._raw(path, MOST_MESSAGE_BYTES)
            content = _content(raw)
            if hmac.compare_digest(raw[len(content) :], self._signature(path, content)):
                return from_lines(content, kind, f"{self.url}/{path}")
        raise UntrustedMessageError(
            f"{self.url}/{path}: was not written by this remote log, or was changed or moved since: nothing of it was "
            "executed; check who can write to work.url, then start the run again (also a run from before an upgrade, "
            "or from before the metadata were rebuilt)"
        )

    def read_if_there(self, path: str, kind: type[Message]) -> list[Message]:
        """Read the messages at `path`; none where it does not exist."""
        try:
            return self.read(path, kind)
        except RemoteObjectNotFoundError:
            return []

    def write_report(self, path: str, items: Iterable[Message], kind: type[Message]) -> None:
        """Write `items` to `path` for people and their programs, unsigned, replacing an earlier report."""
        self._put(path, to_lines(items, kind))

    def read_report(self, path: str, kind: type[Message]) -> list[Message]:
        """Read the report at `path`, only to show it: anybody with write access to the work area may have written it.

        None if it does not exist. Raises ConfigurationError for a corrupt one and for more than MOST_REPORT_BYTES.
        """
        try:
            return from_lines(self._raw(path, MOST_REPORT_BYTES), kind, f"{self.url}/{path}")
        except RemoteObjectNotFoundError:
            return []

    def claim(self, path: str) -> bool:
        """Return whether this is the first claim of `path`; create an empty file there."""
        return self._client.create(path, b"")

    def of_job(self, folder: str) -> Self:
        """Return this work area with only the key of the job in `folder`."""
        return type(self)(self.url, self._client, lambda: _authentication(self.key, b"job", folder))

    @property
    def key(self) -> bytes:
        """The key that signs messages here."""
        if self._key is None:
            raise UntrustedMessageError(
                f"{self.url}: this process opened the work area for reports only, so it has no key for messages"
            )
        return self._key()

    def remove(self, folder: str) -> None:
        """Delete all files in `folder`. Raises RemoteStorageError if any may still exist."""
        found = [listed.name for listed in self._client.list(folder)]
        for error in self._client.delete_many(found).values():
            raise error

    def names(self, folder: str) -> list[str]:
        """Return the paths of all files in `folder` and below it, relative to it."""
        return [found.name.removeprefix(f"{folder}/") for found in self._client.list(folder)]

    def content(self, path: str, most: int) -> bytes:
        """Return the bytes at `path`, only to show them; at most the first `most`.

        Raises RemoteObjectNotFoundError.
        """
        return self._client.get_range(path, 0, min(self._client.size(path), most))

    def close(self) -> None:
        """Close the store of the work area."""
        self._client.close()

    def _raw(self, path: str, most: int) -> bytes:
        """Return all bytes at `path`. Raises ConfigurationError if there are more than `most`."""
        size = self._client.size(path)
        if size > most:
            raise ConfigurationError(
                f"{self.url}/{path}: it has {size} bytes, more than the limit of {most} for such a file: check who can "
                "write to work.url"
            )
        return self._client.get_range(path, 0, size)

    def _put(self, path: str, raw: bytes) -> None:
        self._client.put(path, len(raw), iter([memoryview(raw)]))

    def _signature(self, path: str, content: bytes) -> bytes:
        digest = _authentication(self.key, b"message", path, content).hex()
        return f'{{"hmac_sha256":"{digest}"}}\n'.encode()


def _content(raw: bytes) -> bytes:
    """Return all but the last line."""
    return raw[: raw.rfind(b"\n", 0, -1) + 1]


def _authentication(key: bytes, purpose: bytes, path: str, content: bytes = b"") -> bytes:
    # No path contains a zero byte, so the authenticated text is unambiguous.
    return hmac.digest(key, b"\0".join((purpose, path.encode(), content)), hashlib.sha256)
