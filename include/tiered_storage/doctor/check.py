"""The result of one check."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from tiered_storage.errors import TieredStorageError


class Status(StrEnum):
    """The status of a check."""

    OK = "ok"
    NOTE = "note"
    """Worth knowing; nothing fails because of it."""
    WRONG = "wrong"
    """Something fails because of it, or will."""


@dataclass(frozen=True, slots=True)
class Check:
    """One checked item: its status, a message, and advice unless the message already contains it."""

    name: str
    status: Status
    message: str
    advice: str = ""


def ok(name: str, message: str) -> Check:
    """Return that the item is fine."""
    return Check(name, Status.OK, message)


def note(name: str, message: str, advice: str = "") -> Check:
    """Return a note: worth knowing, but nothing fails because of it."""
    return Check(name, Status.NOTE, message, advice)


def wrong(name: str, message: str, advice: str = "") -> Check:
    """Return a problem that must be solved."""
    return Check(name, Status.WRONG, message, advice)


def alone(name: str, look: Callable[[], Iterable[Check]]) -> Iterator[Check]:
    """Yield what `look` finds; if it raises, yield the reason as a problem."""
    try:
        yield from look()
    except (TieredStorageError, OSError) as error:
        yield wrong(name, str(error))
