"""How the command line speaks: tables for people, JSON for machines, one line for an error."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

_UNFOLDED = 100_000


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

    def findings(self, heading: str, findings: Sequence[Any]) -> None:
        """Tell a person about partitions that need looking at."""
        for finding in findings:
            self.say(" ".join(filter(None, (f"{heading}:", finding.partition, finding.message))))


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return "" if value is None else str(value)
