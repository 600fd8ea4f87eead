"""The events of a dump, in the order of the file: rows, notes and problems."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from tiered_storage.errors import CorruptLogError


class RowKind(Enum):
    """What a row is: a batch of a log, a record of the batch before it, or an entry of any other file."""

    BATCH = "batch"
    RECORD = "record"
    ENTRY = "entry"


@dataclass(frozen=True, slots=True)
class DumpRow:
    """One row, by DumpLogSegments' names for its fields; None: the file has none.

    Keys, values and header values are bytes; headers are pairs of key and value; all else is a number, a text or a
    bool.
    """

    kind: RowKind
    fields: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class DumpNote:
    """Information that is not damage."""

    message: str


@dataclass(frozen=True, slots=True)
class DumpProblem:
    """Something that Kafka would not have written: `error` names file, position and reason."""

    error: CorruptLogError


DumpEvent = DumpRow | DumpNote | DumpProblem
