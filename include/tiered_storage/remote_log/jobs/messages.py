"""The messages of a job: one JSON object a line, so that only paths travel between tasks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

from pydantic import ValidationError

from tiered_storage.errors import ConfigurationError, TieredStorageError
from tiered_storage.remote_log.storage.documents.json_document import adapter_of, first_problem

Message = TypeVar("Message")


@dataclass(frozen=True, slots=True)
class CopyFailure:
    """Why a copy failed: the error's class, its message, and whether a retry may help."""

    error: str
    message: str
    retriable: bool

    @classmethod
    def of(cls, error: TieredStorageError | OSError) -> CopyFailure:
        """Describe `error`."""
        retriable = error.retriable if isinstance(error, TieredStorageError) else True
        return cls(type(error).__name__, str(error), retriable)


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
