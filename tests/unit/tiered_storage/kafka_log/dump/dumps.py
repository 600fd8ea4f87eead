"""Dumps for tests: the rows, problems and notes of ours."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tiered_storage.kafka_log.dump.dump_event import DumpEvent, DumpNote, DumpProblem, DumpRow, RowKind
from tiered_storage.kafka_log.dump.file_dump import dump_file
from tiered_storage.kafka_log.dump.file_kind import recognize


def dumped(path: Path, *, with_records: bool = False) -> list[DumpEvent]:
    """All that a dump of `path` yields."""
    file = recognize(path)
    assert file is not None
    return list(dump_file(file, with_records=with_records))


def rows(events: Iterable[DumpEvent], kind: RowKind = RowKind.ENTRY) -> list[dict[str, Any]]:
    return [dict(event.fields) for event in events if isinstance(event, DumpRow) and event.kind is kind]


def problems(events: Iterable[DumpEvent]) -> list[tuple[str, int, str]]:
    """File name, position and reason of each problem."""
    return [
        (Path(event.error.path).name, event.error.position, event.error.reason)
        for event in events
        if isinstance(event, DumpProblem)
    ]


def notes(events: Iterable[DumpEvent]) -> list[str]:
    return [event.message for event in events if isinstance(event, DumpNote)]
