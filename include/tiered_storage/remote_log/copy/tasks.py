"""What a copy run writes down between its steps: one JSON object a line, so that only paths travel between tasks.

plan (CopyPlan) -> begun (CopyTask, one a segment) -> copied (CopyOutcome, one a segment) -> committed
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from tiered_storage.errors import ConfigurationError, TieredStorageError
from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.remote_log.model import Lease, RemoteLogSegmentMetadata, RemoteLogSegmentMetadataUpdate

Message = TypeVar("Message")

_ADAPTERS: dict[Any, TypeAdapter[Any]] = {}


@dataclass(frozen=True, slots=True)
class CopyTask:
    """One segment to copy, begun as `metadata` under `lease`. `lineage` holds all epochs up to its end.

    `readable_from` is the first offset (inclusive) of the partition that readers are given once this is committed.
    `after` is the remote segment that it continues, if no other task of the run continues it: the local log must have
    the same batches.
    """

    metadata: RemoteLogSegmentMetadata
    lease: Lease
    log_path: Path
    lineage: tuple[EpochEntry, ...]
    readable_from: int = 0
    after: RemoteLogSegmentMetadata | None = None


@dataclass(frozen=True, slots=True)
class CopyFailure:
    """Why a copy did not succeed: the error's class, its message, and whether another try may help."""

    error: str
    message: str
    retriable: bool

    @classmethod
    def of(cls, error: TieredStorageError | OSError) -> CopyFailure:
        """Describe `error`."""
        retriable = error.retriable if isinstance(error, TieredStorageError) else True
        return cls(type(error).__name__, str(error), retriable)


@dataclass(frozen=True, slots=True)
class CopyOutcome:
    """How the copy of one task ended: with `finished`, the step that commits it, or with `failure`.

    `damages` name what is wrong beside the segment's bytes (a false index); they do not stop the copy, but the run is
    red. `notices` are worth knowing (an index rebuilt because it was not there). `seconds` of work; `library` is the
    folder that the worker's code came from.
    """

    task: CopyTask
    finished: RemoteLogSegmentMetadataUpdate | None
    failure: CopyFailure | None = None
    record_count: int = 0
    damages: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
    seconds: float = 0.0
    library: str = ""


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
    """Return what reads and writes messages of `kind`; making one takes longer than many messages do."""
    if kind not in _ADAPTERS:
        _ADAPTERS[kind] = TypeAdapter(kind)
    return _ADAPTERS[kind]
