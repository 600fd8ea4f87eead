"""The Range header of HTTP (RFC 9110, section 14) for bytes, as far as this service answers it: one range.

Several ranges, other units and what is no range at all are ignored, as the RFC allows: the answer is the whole.
"""

from __future__ import annotations

import re

_ONE_RANGE = re.compile(r"bytes[ \t]*=[ \t]*([0-9]*)[ \t]*-[ \t]*([0-9]*)[ \t]*", re.IGNORECASE)
_MOST_DIGITS = 20


class RangeNotSatisfiableError(Exception):
    """A range that begins behind the end, or has no bytes."""


def parse_range(header: str | None, size: int) -> tuple[int, int] | None:
    """Return first and last byte (inclusive) that `header` asks for of `size` bytes; None: all of them.

    A range that ends behind the end is cut there. Raises RangeNotSatisfiableError.
    """
    found = _ONE_RANGE.fullmatch(header.strip()) if header is not None else None
    if found is None:
        return None
    first, last = found.groups()
    if max(len(first), len(last)) > _MOST_DIGITS or not (first or last):
        return None
    if not first:
        return _suffix(int(last), size)
    if last and int(last) < int(first):
        return None
    if int(first) >= size:
        raise RangeNotSatisfiableError
    return int(first), min(int(last), size - 1) if last else size - 1


def _suffix(length: int, size: int) -> tuple[int, int]:
    if length == 0 or size == 0:
        raise RangeNotSatisfiableError
    return max(0, size - length), size - 1
