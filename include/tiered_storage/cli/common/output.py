"""The output of the command line: tables for people, JSON for machines, one line for an error."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import typer

from tiered_storage.clock import as_date

if TYPE_CHECKING:
    from tiered_storage.remote_log.model import Finding

_ROWS_AT_ONCE = 1000
_WIDTH = 80
_FOLDED = 30
"""The minimum width in letters of a folded last text column; if narrower, it moves below its row."""
_NAMED = 20
"""The width of the first column if the row does not fit: a longer name gets its own line."""
_BETWEEN = "   "
_INDENT = "     "

_TIMES = ("timestamp", " at", " after", "until")
_DURATIONS = ((86_400_000, "days"), (3_600_000, "hours"), (60_000, "minutes"), (1000, "seconds"), (1, "ms"))
_SIZES = ((10**15, "PB"), (10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB"))


@dataclass(frozen=True, slots=True)
class Output:
    """Writes results to standard output, as a table or as one JSON document; everything else to standard error."""

    as_json: bool

    def rows(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], **extra: object) -> None:
        """Show `rows`. As JSON: {"rows": [one object a row], and the entries of `extra`}, with plain numbers.

        Findings and other dataclasses in the lists of `extra` become objects.

        As a table, columns of bytes and timestamps (ms) are formatted for people. A line has 80 letters, or as many as
        the terminal. Columns that do not fit are printed in full below their row; empty columns are left out.
        """
        if self.as_json:
            keys = [column.replace(" ", "_") for column in columns]
            named = {name: _as_objects(entry) for name, entry in extra.items()}
            self.document({"rows": [dict(zip(keys, row, strict=True)) for row in rows], **named})
            return
        sys.stdout.write(f"{title}\n\n")
        for line in _table(columns, rows, _line_width()) if rows else (" none",):
            sys.stdout.write(f"{line}\n")
        sys.stdout.write("\n")

    def document(self, value: Any) -> None:
        """Write one JSON document."""
        json.dump(value, sys.stdout, indent=2, default=str)
        sys.stdout.write("\n")

    def say(self, text: str) -> None:
        """Print a message for people beside the result."""
        sys.stderr.write(f"{text}\n")

    def findings(self, heading: str, findings: Sequence[Finding]) -> None:
        """Print findings about partitions for people."""
        for finding in findings:
            where = f"{finding.partition}: " if finding.partition else ""
            self.say(f"{heading}: {where}{finding.reason.removeprefix(where)}")

    def end(self, troubles: Sequence[Finding]) -> None:
        """Print `troubles` for people; if there are any, end the command with exit code 1."""
        self.findings("error", troubles)
        if troubles:
            raise typer.Exit(1)


def _as_objects(entry: object) -> object:
    """Return `entry` with the dataclasses of a list as mappings."""
    if not isinstance(entry, list | tuple):
        return entry
    return [asdict(each) if is_dataclass(each) and not isinstance(each, type) else each for each in entry]


def _line_width() -> int:
    """Return the width of a line in letters: 80, or that of the terminal."""
    return max(_WIDTH, shutil.get_terminal_size().columns) if sys.stdout.isatty() else _WIDTH


def _table(columns: Sequence[str], rows: Sequence[Sequence[object]], width: int) -> Iterator[str]:
    """Yield the lines of a table at most `width` wide; only a longer word exceeds it."""
    used = [at for at in range(len(columns)) if any(row[at] is not None for row in rows)] or [0]
    cells = [{at: _shown_as(columns[at], row[at]) for at in used} for row in rows]
    widths = {at: max(map(len, [columns[at], *(row[at] for row in cells)])) for at in used}
    is_number = {at: all(isinstance(row[at], int) for row in rows) for at in used}
    under = _fit(widths, width - 1, any(" " in row[used[-1]] for row in cells))

    def lines(shown: Mapping[int, str]) -> Iterator[str]:
        """Yield a row; the last column continues on the next lines."""
        *before, last = widths
        if before and len(shown[before[0]]) > widths[before[0]]:
            yield f" {shown[before[0]]}"
            shown = {**shown, before[0]: ""}
        padded = [shown[at].rjust(widths[at]) if is_number[at] else shown[at].ljust(widths[at]) for at in before]
        folded = _folded(shown[last], widths[last]) or [""]
        if is_number[last]:
            folded = [folded[0].rjust(widths[last])]
        yield " " + _BETWEEN.join([*padded, folded[0]]).rstrip()
        margin = " " * (1 + sum(widths[at] + len(_BETWEEN) for at in before))
        yield from (f"{margin}{more}" for more in folded[1:])

    yield from lines(dict(enumerate(columns)))
    yield " " + "─" * (sum(widths.values()) + len(_BETWEEN) * (len(widths) - 1))
    for row in cells:
        yield from lines(row)
        for at in sorted(under):
            if row[at]:
                first, *others = _folded(f"{columns[at]}: {row[at]}", width - len(_INDENT) - 2)
                yield f"{_INDENT}{first}"
                yield from (f"{_INDENT}  {more}" for more in others)


def _fit(widths: dict[int, int], width: int, folds: bool) -> list[int]:
    """Remove columns from `widths` until the others fit `width`; return the removed ones.

    Keep the first column. If the last column `folds`, narrow it before removing it.
    """
    first, last = min(widths), max(widths)
    under: list[int] = []

    def excess(of_last: int) -> int:
        others = [size for at, size in widths.items() if at != last or not folds]
        return sum(others) + len(_BETWEEN) * (len(widths) - 1) + (of_last if folds else 0) - width

    if excess(widths[last]) <= 0:
        return under
    widths[first] = min(widths[first], _NAMED)
    while len(widths) > 1 and excess(min(widths[last], _FOLDED) if folds else 0) > 0:
        others = [at for at in widths if at != first and not (folds and at == last)]
        folds = folds and bool(others)
        widest = max(others or [last], key=lambda at: widths[at])
        del widths[widest]
        under.append(widest)
    if folds:
        widths[last] -= max(0, excess(widths[last]))
    return under


def _folded(text: str, width: int) -> list[str]:
    """Return `text` in lines, broken only at spaces, so that a path or id can be pasted."""
    return wrap(text, width, break_long_words=False, break_on_hyphens=False)


class StreamedTable:
    """A table of any length on standard output; the first thousand rows decide the widths of its columns.

    Columns that do not fit on the line, and values wider than their column, are printed below their row as pairs of
    name and value. A line of text can come between two rows. `finish` prints the rows still held back.
    """

    def __init__(self, columns: Sequence[str]) -> None:
        self._columns = columns
        self._widths: dict[int, int] | None = None
        self._is_number: list[bool] = []
        self._held: list[Sequence[object] | str] = []

    def add(self, row: Sequence[object]) -> None:
        """Add `row`; numbers have no separators, so that other tools can parse them."""
        self._hold(row)

    def add_line(self, text: str) -> None:
        """Add a line of `text` between the rows."""
        self._hold(text)

    def finish(self) -> None:
        """Print everything added so far; the column names even if there are no rows."""
        held, self._held = self._held, []
        if self._widths is None:
            self._widths = self._begin([row for row in held if not isinstance(row, str)])
        for row in held:
            for line in [row] if isinstance(row, str) else self._lines([_plain(value) for value in row], self._widths):
                sys.stdout.write(f"{line}\n")

    def _hold(self, row: Sequence[object] | str) -> None:
        self._held.append(row)
        if len(self._held) == _ROWS_AT_ONCE:
            self.finish()

    def _begin(self, rows: Sequence[Sequence[object]]) -> dict[int, int]:
        """Write the header of the columns that fit on a line; return the width of each, as `rows` need it."""
        shown = [self._columns, *([_plain(value) for value in row] for row in rows)]
        widths = {at: max(map(len, column)) for at, column in enumerate(zip(*shown, strict=True))}
        self._is_number = [any(isinstance(value, int) for value in column) for column in zip(*rows, strict=True)]
        _fit(widths, _line_width() - 1, folds=False)
        # The other columns print their names before each value.
        names = [name if at in widths else "" for at, name in enumerate(self._columns)]
        line = " " + "─" * (sum(widths.values()) + len(_BETWEEN) * (len(widths) - 1))
        sys.stdout.write("\n".join([*self._lines(names, widths), line]) + "\n")
        return widths

    def _lines(self, row: Sequence[str], widths: Mapping[int, int]) -> Iterator[str]:
        numbers = self._is_number or [False] * len(row)

        def line(cells: Mapping[int, str]) -> str:
            padded = [cell.rjust(widths[at]) if numbers[at] else cell.ljust(widths[at]) for at, cell in cells.items()]
            return (" " + _BETWEEN.join(padded)).rstrip()

        beside = {at: row[at] for at in widths}
        if len(line(beside)) > _line_width():
            beside = {at: cell if len(cell) <= widths[at] else "" for at, cell in beside.items()}
        yield line(beside)
        under = [f"{self._columns[at]}: {cell}" for at, cell in enumerate(row) if cell and not beside.get(at)]
        yield from packed(under, _INDENT)


def packed(pairs: Iterable[str], margin: str) -> Iterator[str]:
    """Yield lines that begin with `margin` and hold as many of `pairs` as fit; a wider pair exceeds the line."""
    width, line = _line_width() - len(margin), ""
    for pair in pairs:
        if line and len(line) + 2 + len(pair) > width:
            yield margin + line
            line = ""
        line += f"  {pair}" if line else pair
        while len(line) > width:
            yield margin + line[:width]
            line = line[width:]
    if line:
        yield margin + line


def show_size(size: int) -> str:
    """Format a number of bytes for people, such as 1.2 GB (10**9 bytes)."""
    for unit, name in _SIZES:
        if size >= unit:
            return f"{size / unit:.1f} {name}"
    return f"{size} bytes"


def show_duration(ms: int) -> str:
    """Format milliseconds in the largest unit that divides them, such as 7 days."""
    unit, name = next((unit, name) for unit, name in _DURATIONS if ms % unit == 0)
    return f"{ms // unit:,} {name}"


def _shown_as(column: str, value: object) -> str:
    """Format `value` for people, by the name of its column."""
    if isinstance(value, int) and not isinstance(value, bool):
        if column.endswith("bytes"):
            return show_size(value)
        if column.endswith(_TIMES):
            return "none" if value == -1 else as_date(value)
    return _shown(value)


def _plain(value: object) -> str:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else _shown(value)


def show_bytes(value: bytes | None, most: int = 45) -> str:
    """Return `value` as text on one line, cut after `most` bytes; escape what is not printable text."""
    if value is None:
        return "null"
    text = printable(value[:most].decode("utf-8", "backslashreplace"))
    return text if len(value) <= most else f"{text}… ({len(value):,} bytes)"


def printable(text: str) -> str:
    """Return `text` with line breaks, terminal commands and other unprintable characters escaped."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return "" if value is None else str(value)
