"""Small JSON objects in the store, validated on reading: anybody may have changed them.

Each has `format_version`; a later one is refused, since its fields could have another meaning. Unknown keys are
ignored: a later release may add some without a new version.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from tiered_storage.errors import LaterVersionError, RemoteObjectCorruptError

MAX_DOCUMENT_BYTES = 8 << 20
_VERSION = "format_version"
_MAX_INTEGER = 2**63 - 1
_HALF_OF_A_CHARACTER = re.compile("[\ud800-\udfff]")
"""JSON can escape one; UTF-8 cannot hold it, neither in a name nor in a message."""


def encode_document(version: int, fields: Mapping[str, object]) -> bytes:
    """Return the bytes of a document: one line, its version first."""
    return (json.dumps({_VERSION: version, **fields}, separators=(",", ":"), ensure_ascii=True) + "\n").encode()


class JsonDocument:
    """A parsed document whose fields are read by their required type.

    All methods raise RemoteObjectCorruptError, naming `source` and the field; the constructor also LaterVersionError.
    """

    def __init__(self, raw: bytes, source: str, version: int) -> None:
        """Parse `raw`; `version` is the latest supported version."""
        self._source = source
        if len(raw) > MAX_DOCUMENT_BYTES:
            raise RemoteObjectCorruptError(f"{source}: {len(raw)} bytes are more than such a document has")
        try:
            content = json.loads(raw)
        except (ValueError, RecursionError) as error:
            raise RemoteObjectCorruptError(f"{source}: no JSON ({error})") from error
        if not isinstance(content, dict):
            raise RemoteObjectCorruptError(f"{source}: a JSON object is expected, not {type(content).__name__}")
        self._fields: dict[str, Any] = content
        found = self.integer(_VERSION, minimum=1)
        if found > version:
            raise LaterVersionError(source, found, version)

    def integer(self, name: str, minimum: int = 0, maximum: int = _MAX_INTEGER) -> int:
        """Return the field `name`, an integer from `minimum` to `maximum`."""
        value = self._fields.get(name)
        if type(value) is not int or not minimum <= value <= maximum:
            raise self.wrong(name, f"an integer from {minimum} to {maximum}")
        return value

    def optional_integer(self, name: str, minimum: int = 0) -> int | None:
        """Return the field `name`, an integer, or None if it is null or absent."""
        return None if self._fields.get(name) is None else self.integer(name, minimum)

    def text(self, name: str) -> str:
        """Return the field `name`, a string of whole characters that is not empty."""
        value = self._fields.get(name)
        if not isinstance(value, str) or not value or _HALF_OF_A_CHARACTER.search(value):
            raise self.wrong(name, "a string")
        return value

    def optional_text(self, name: str) -> str | None:
        """Return the field `name`, a string, or None if it is null or absent."""
        return None if self._fields.get(name) is None else self.text(name)

    def texts(self, name: str, pattern: re.Pattern[str]) -> tuple[str, ...]:
        """Return the field `name`, a list of strings that match `pattern`; empty if it is absent."""
        value = self._fields.get(name, [])
        if not isinstance(value, list) or not all(isinstance(each, str) and pattern.fullmatch(each) for each in value):
            raise self.wrong(name, f"a list of strings like {pattern.pattern}")
        return tuple(value)

    def checksum(self, name: str) -> int:
        """Return the field `name`, a CRC-32C as 8 hex digits."""
        value = self.text(name)
        if len(value) != 8 or not set(value) <= set("0123456789abcdef"):
            raise self.wrong(name, "a CRC-32C of 8 hex digits")
        return int(value, 16)

    def optional_checksum(self, name: str) -> int | None:
        """Return the field `name`, a CRC-32C, or None if it is null or absent."""
        return None if self._fields.get(name) is None else self.checksum(name)

    def pairs(self, name: str) -> list[tuple[int, int]]:
        """Return the field `name`, a list of pairs of integers, none of them negative."""
        value = self._fields.get(name)
        expected = "a list of pairs of integers"
        if not isinstance(value, list):
            raise self.wrong(name, expected)
        pairs = []
        for item in value:
            if not isinstance(item, list) or len(item) != 2:
                raise self.wrong(name, expected)
            first, second = item
            if not _is_offset(first) or not _is_offset(second):
                raise self.wrong(name, expected)
            pairs.append((first, second))
        return pairs

    def triples(self, name: str) -> list[tuple[int, int, int]]:
        """Return the field `name`, a list of triples of integers, none of them negative."""
        value = self._fields.get(name)
        if not isinstance(value, list):
            raise self.wrong(name, "a list of triples of integers")
        found = [
            tuple(item) for item in value if isinstance(item, list) and len(item) == 3 and all(map(_is_offset, item))
        ]
        if len(found) != len(value):
            raise self.wrong(name, "a list of triples of integers")
        return [(first, second, third) for first, second, third in found]

    def optional_pairs(self, name: str) -> list[tuple[int, int]]:
        """Return the field `name`, a list of pairs of integers; empty if it is null or absent."""
        return [] if self._fields.get(name) is None else self.pairs(name)

    def wrong(self, name: str, expected: str) -> RemoteObjectCorruptError:
        """Return the error for the field `name`, which should be `expected`. Only a number's value is shown."""
        value = self._fields.get(name)
        shown = repr(value) if value is None or isinstance(value, int) else f"of type {type(value).__name__}"
        return RemoteObjectCorruptError(f"{self._source}: {name} is {shown:.80}, not {expected}")


def _is_offset(value: object) -> bool:
    return type(value) is int and 0 <= value <= _MAX_INTEGER
