"""The dump command: show the content of Kafka's files."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated

import typer

from tiered_storage.cli.common.output import Output, StreamedTable, packed, printable, show_bytes
from tiered_storage.cli.common.session import JsonOption
from tiered_storage.kafka_log.dump.dump_event import DumpEvent, DumpNote, DumpProblem, DumpRow, RowKind
from tiered_storage.kafka_log.dump.file_dump import dump_file, find_files
from tiered_storage.kafka_log.dump.file_kind import FileKind, KafkaFile

_TIMES = ("CreateTime", "LogAppendTime")
_NO_TIME = "NoTimestampType"


def dump(
    files: Annotated[
        list[Path],
        typer.Argument(exists=True, help="Kafka's files, under their own names, or directories of such files."),
    ],
    records: Annotated[bool, typer.Option("--records", help="Also show the records of each batch.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show the content of logs, indexes, snapshots and checkpoints, and what is wrong with them. The broker may be
    running.

    Exit code 1 if anything is corrupt, or if an index contradicts the log beside it. With --json: one object a line;
    its "type" is file, batch, record, entry, note, problem or end; keys and values are in base64.
    """
    problems = 0
    for file in find_files(files):
        events = dump_file(file, with_records=records)
        problems += _write_lines(file, events) if as_json else _write_table(file, events)
    if problems:
        raise typer.Exit(1)


def _write_lines(file: KafkaFile, events: Iterable[DumpEvent]) -> int:
    """Write JSON lines; return the number of problems."""
    rows = problems = 0
    _write_line("file", {"file": str(file.path), "kind": file.kind.value})
    for event in events:
        match event:
            case DumpRow():
                rows += 1
                _write_line(event.kind.value, event.fields)
            case DumpNote():
                _write_line("note", {"message": event.message})
            case DumpProblem():
                problems += 1
                error = event.error
                fields = {"error": type(error).__name__, "position": error.position, "message": error.reason}
                _write_line("problem", {"file": error.path, **fields})
    _write_line("end", {"file": str(file.path), "rows": rows, "problems": problems})
    return problems


def _write_line(kind: str, fields: Mapping[str, object]) -> None:
    sys.stdout.write(_encode({"type": kind, **fields}) + "\n")


def _as_base64(value: object) -> str:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    raise TypeError(f"{type(value)} cannot be written as JSON")


_encode = json.JSONEncoder(default=_as_base64).encode


def _write_table(file: KafkaFile, events: Iterable[DumpEvent]) -> int:
    """Write a table, then notes and problems on standard error; return the number of problems."""
    output = Output(as_json=False)
    sys.stdout.write(f"{printable(str(file.path))}: {file.kind.value}\n\n")
    table: StreamedTable | None = None
    columns: tuple[str, ...] = ()
    problems = 0
    for event in events:
        match event:
            case DumpRow(kind=RowKind.RECORD):
                if table is not None:
                    for line in _shown_record(event.fields):
                        table.add_line(line)
            case DumpRow():
                if table is None:
                    columns = _columns(file, event.fields)
                    table = StreamedTable(columns)
                table.add([_shown_field(event.fields.get(column)) for column in columns])
            case DumpNote():
                output.say(printable(f"note: {file.path}: {event.message}"))
            case DumpProblem():
                problems += 1
                output.say(printable(f"problem: {event.error}"))
    if table is None:
        sys.stdout.write(" empty\n")
    else:
        table.finish()
    sys.stdout.write("\n")
    return problems


def _columns(file: KafkaFile, fields: Mapping[str, object]) -> tuple[str, ...]:
    """Return the columns: those of the first row; for a log, the two time columns, since each batch has one of them."""
    if file.kind is not FileKind.LOG:
        return tuple(fields)
    names = [name for name in fields if name not in (*_TIMES, _NO_TIME)]
    times_at = names.index("position") + 1
    return (*names[:times_at], *_TIMES, *names[times_at:])


def _shown_field(value: object) -> object:
    return printable(value) if isinstance(value, str) else value


def _shown_record(fields: Mapping[str, object]) -> Iterator[str]:
    """Yield a record's fields as pairs of name and value."""
    return packed((_shown_pair(name, value) for name, value in fields.items() if name != "headerKeys"), "   | ")


def _shown_pair(name: str, value: object) -> str:
    if name == "control":
        return f"{name}: {printable(json.dumps(value))}"
    if isinstance(value, tuple):
        pairs = ", ".join(f"{printable(key)}={show_bytes(content)}" for key, content in value)
        return f"{name}: [{pairs}]"
    return f"{name}: {show_bytes(value)}" if value is None or isinstance(value, bytes) else f"{name}: {value}"
