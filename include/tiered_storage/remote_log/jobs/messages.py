"""The messages of a job: one JSON object a line, so that only paths travel between tasks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from tiered_storage.errors import ConfigurationError, TieredStorageError

Message = TypeVar("Message")

_ADAPTERS: dict[Any, TypeAdapter[Any]] = {}


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
    adapter = _adapter(kind)
    return b"".join(adapter.dump_json(message) + b"\n" for message in messages)


def from_lines(raw: bytes, kind: type[Message], source: str) -> list[Message]:
    """Read what `to_lines` wrote. Raises ConfigurationError naming `source` and the line that is broken."""
    adapter = _adapter(kind)
    messages = []
    for number, line in enumerate(raw.splitlines(), start=1):
        try:
            messages.append(adapter.validate_json(line))
        except ValidationError as error:
            [first, *_] = error.errors(include_url=False, include_context=False, include_input=False)
            where = ".".join(map(str, first["loc"]))
            reason = f"{where}: {first['msg']}" if where else first["msg"]
            raise ConfigurationError(f"{source}: line {number} is not a {kind.__name__}: {reason}") from None
    return messages


def _adapter(kind: type[Message]) -> TypeAdapter[Message]:
    """Return the cached reader and writer of `kind`; creating one takes longer than handling many messages."""
    if kind not in _ADAPTERS:
        _ADAPTERS[kind] = TypeAdapter(kind)
    return _ADAPTERS[kind]
