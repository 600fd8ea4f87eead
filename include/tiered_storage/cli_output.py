"""How the command line speaks: tables for people, JSON for machines, one line for an error."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from tiered_storage.remote_log.copy_plan import Finding

_UNFOLDED = 100_000
_ROWS_AT_ONCE = 1000


@dataclass(frozen=True, slots=True)
class Output:
    """Where results go: a table on standard output, or one JSON document there; everything else to standard error."""

    as_json: bool

    def rows(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], **extra: object) -> None:
        """Show `rows`. As JSON: {"rows": [one object a row], and what `extra` names}."""
        if self.as_json:
            keys = [column.replace(" ", "_") for column in columns]
            self.document({"rows": [dict(zip(keys, row, strict=True)) for row in rows], **extra})
            return
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for column in columns:
            is_number = bool(rows) and all(isinstance(row[columns.index(column)], int) for row in rows)
            table.add_column(
                column, justify="right" if is_number else "left", overflow="fold", no_wrap=not sys.stdout.isatty()
            )
        for row in rows:
            table.add_row(*(Text(_shown(value)) for value in row))
        # Into a file or a pipe a row is one line, however long. A table's own title would be as narrow as the table.
        console = Console(width=None if sys.stdout.isatty() else _UNFOLDED)
        console.print(Text(title), soft_wrap=True)
        console.print(table, crop=False)

    def document(self, value: Any) -> None:
        """Write one JSON document."""
        json.dump(value, sys.stdout, indent=2, default=str)
        sys.stdout.write("\n")

    def say(self, text: str) -> None:
        """Tell a person something beside the result."""
        Console(stderr=True, soft_wrap=True, highlight=False).print(text, markup=False)

    def findings(self, heading: str, findings: Sequence[Finding]) -> None:
        """Tell a person about partitions that need looking at."""
        for finding in findings:
            where = f"{finding.partition}: " if finding.partition else ""
            self.say(f"{heading}: {where}{finding.reason.removeprefix(where)}")


class StreamedTable:
    """A table on standard output that may have any number of rows: its columns are as wide as the first thousand need.

    A line of text can come between two rows. `finish` shows what is still held back.
    """

    def __init__(self, columns: Sequence[str]) -> None:
        self._columns = columns
        self._widths: list[int] | None = None
        self._is_number: list[bool] = []
        self._held: list[Sequence[object] | str] = []

    def add(self, row: Sequence[object]) -> None:
        """Show `row`; numbers are shown without separators, so that another tool takes them."""
        self._hold(row)

    def add_line(self, text: str) -> None:
        """Show `text` between the rows."""
        self._hold(text)

    def finish(self) -> None:
        """Show all that was added, with the column's names even if it is nothing."""
        held, self._held = self._held, []
        if self._widths is None:
            rows = [row for row in held if not isinstance(row, str)]
            shown = [self._columns, *([_plain(value) for value in row] for row in rows)]
            self._widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
            self._is_number = [any(isinstance(value, int) for value in column) for column in zip(*rows, strict=True)]
            self._write(self._columns)
            sys.stdout.write(" " + "─" * (sum(self._widths) + 3 * len(self._widths) - 2) + "\n")
        for row in held:
            if isinstance(row, str):
                sys.stdout.write(f"{row}\n")
            else:
                self._write([_plain(value) for value in row])

    def _hold(self, row: Sequence[object] | str) -> None:
        self._held.append(row)
        if len(self._held) == _ROWS_AT_ONCE:
            self.finish()

    def _write(self, row: Sequence[str]) -> None:
        numbers = self._is_number or [False] * len(row)
        cells = [
            cell.rjust(width) if is_number else cell.ljust(width)
            for cell, width, is_number in zip(row, self._widths or [], numbers, strict=True)
        ]
        sys.stdout.write((" " + "   ".join(cells)).rstrip() + "\n")


def _plain(value: object) -> str:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else _shown(value)


def show_bytes(value: bytes | None, most: int = 60) -> str:
    """Return `value` as text on one line, cut behind so many bytes; what is no printable text is escaped."""
    if value is None:
        return "null"
    text = printable(value[:most].decode("utf-8", "backslashreplace"))
    return text if len(value) <= most else f"{text}… ({len(value):,} bytes)"


def printable(text: str) -> str:
    """Return `text` with all escaped that a terminal would not show: a line break, or a command to the terminal."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return "" if value is None else str(value)
