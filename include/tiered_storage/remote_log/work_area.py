"""Where a run's steps leave messages for one another: small files of JSON lines under work.url."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from tiered_storage.errors import RemoteObjectNotFoundError
from tiered_storage.remote_log.copy_messages import from_lines, to_lines
from tiered_storage.remote_log.storage.object_client import ObjectClient

Message = TypeVar("Message")


class WorkArea:
    """Messages by path; a path is written whole or not at all, and may be written again."""

    def __init__(self, url: str, client: ObjectClient) -> None:
        self.url = url
        self._client = client

    def write(self, path: str, messages: Iterable[Message], kind: type[Message]) -> None:
        """Write `messages` at `path`, replacing what is there."""
        raw = to_lines(messages, kind)
        self._client.put(path, len(raw), iter([memoryview(raw)]))

    def read(self, path: str, kind: type[Message]) -> list[Message]:
        """Read the messages at `path`. Raises RemoteObjectNotFoundError, and ConfigurationError for broken ones."""
        raw = self._client.get_range(path, 0, self._client.size(path))
        return from_lines(raw, kind, f"{self.url}/{path}")

    def read_if_there(self, path: str, kind: type[Message]) -> list[Message]:
        """Read the messages at `path`; none where it does not exist."""
        try:
            return self.read(path, kind)
        except RemoteObjectNotFoundError:
            return []

    def names(self, folder: str) -> list[str]:
        """Return the paths, below `folder`, of all that lies in it and in the folders below."""
        return [found.name.removeprefix(f"{folder}/") for found in self._client.list(folder)]

    def content(self, path: str, most: int) -> bytes:
        """Return the bytes at `path`, the first `most` of them where there are more. Raises as `read` does."""
        return self._client.get_range(path, 0, min(self._client.size(path), most))

    def close(self) -> None:
        """Let go of the store behind it."""
        self._client.close()
