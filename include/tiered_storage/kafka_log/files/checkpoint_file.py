"""The frame that Kafka's checkpoint files share: text, one entry a line.

    version       `0`
    count         how many entries follow
    entries       `count` lines of fields with white space between them

A broker creates the file empty before it first writes it: an empty file has no entries.

Source: released Kafka.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tiered_storage.errors import CorruptIndexError
from tiered_storage.kafka_log.files.small_files import read_small_file, replace_file

VERSION = 0
MAX_ENTRIES = 200_000
MAX_CHECKPOINT_BYTES = MAX_ENTRIES * 300  # the longest topic name has 249 characters

_DIGITS = re.compile(r"[0-9]{1,19}")


@dataclass(frozen=True, slots=True)
class CheckpointEntry:
    """One entry line of the checkpoint `path`, which begins at byte `position`."""

    path: Path | str
    position: int
    fields: tuple[str, ...]

    def integer(self, field: int, bits: int) -> int:
        """Return `fields[field]` as a number of `bits` bits, not negative. Raises CorruptIndexError."""
        return _integer(self.path, self.position, self.fields[field], bits)


def read_checkpoint(path: Path, fields: int) -> list[CheckpointEntry]:
    """Read the entries of the checkpoint file `path`, each with `fields` fields.

    Raises CorruptIndexError if the version is unknown, the count differs from the number of lines, or a line has
    another number of fields.
    """
    return parse_checkpoint(read_small_file(path, MAX_CHECKPOINT_BYTES), path, fields)


def parse_checkpoint(content: bytes, path: Path | str, fields: int) -> list[CheckpointEntry]:
    """Read the entries in the `content` of a checkpoint; raises as `read_checkpoint`, naming `path`."""
    lines = _lines(path, content)
    if not lines:
        return []
    version = _integer(path, 0, lines[0][1], bits=32)
    if version != VERSION:
        raise CorruptIndexError(path, 0, f"checkpoint version {version} is unknown: {VERSION} was expected")
    if len(lines) == 1:
        raise CorruptIndexError(path, 0, "the file ends before the number of its entries")
    count_position, count_line = lines[1]
    count = _integer(path, count_position, count_line, bits=32)
    if count != len(lines) - 2:
        raise CorruptIndexError(path, count_position, f"{count} entries are announced, {len(lines) - 2} follow")
    entries = [CheckpointEntry(path, position, tuple(line.split())) for position, line in lines[2:]]
    for entry in entries:
        if len(entry.fields) != fields:
            raise CorruptIndexError(path, entry.position, f"an entry has {len(entry.fields)} fields, not {fields}")
    return entries


def write_checkpoint(path: Path, entries: Iterable[str]) -> None:
    """Replace the checkpoint file `path`, durably and all or nothing, by one with these entry lines."""
    replace_file(path, encode_checkpoint(entries))


def encode_checkpoint(entries: Iterable[str]) -> bytes:
    """Return the content of a checkpoint file with these entry lines."""
    lines = list(entries)
    return "".join(f"{line}\n" for line in (VERSION, len(lines), *lines)).encode()


def _lines(path: Path | str, content: bytes) -> list[tuple[int, str]]:
    if content.count(b"\n") + content.count(b"\r") > 2 * MAX_ENTRIES:
        raise CorruptIndexError(path, 0, f"more lines than the {MAX_ENTRIES} entries that are read at most")
    lines = []
    position = 0
    for line in content.splitlines(keepends=True):
        if not line.isascii():
            raise CorruptIndexError(path, position, "a line has bytes that are not ASCII text")
        lines.append((position, line.decode("ascii").strip()))
        position += len(line)
    return lines


def _integer(path: Path | str, position: int, text: str, bits: int) -> int:
    largest = (1 << (bits - 1)) - 1
    if _DIGITS.fullmatch(text) is None or int(text) > largest:
        raise CorruptIndexError(path, position, f"this is not a number from 0 to {largest}")
    return int(text)
