"""What a dump of a file is made of, in the order of the file: rows, and remarks about what is no row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from tiered_storage.errors import CorruptLogError


class RowKind(Enum):
    """What a row stands for: a batch of a log, a record of the batch before it, an entry of any other file."""

    BATCH = "batch"
    RECORD = "record"
    ENTRY = "entry"


@dataclass(frozen=True, slots=True)
class DumpRow:
    """One row by the names of its fields, as Kafka's own DumpLogSegments calls them; None: the file has none.

    Keys, values and header values are bytes, headers pairs of key and value; all else is a number, a text or a bool.
    """

    kind: RowKind
    fields: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class DumpNote:
    """Something to know that is no damage."""

    message: str


@dataclass(frozen=True, slots=True)
class DumpProblem:
    """Something that is not as Kafka writes it: `error` names file, position and reason."""

    error: CorruptLogError


DumpEvent = DumpRow | DumpNote | DumpProblem
