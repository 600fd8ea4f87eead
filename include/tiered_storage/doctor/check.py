"""What a doctor says of one thing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from tiered_storage.errors import TieredStorageError


class Verdict(StrEnum):
    """How a thing is."""

    OK = "ok"
    NOTE = "note"
    """Worth knowing; nothing fails because of it."""
    WRONG = "wrong"
    """Something fails because of it, or will."""


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at: how it is, and what to do where that is not said in the message itself."""

    name: str
    verdict: Verdict
    message: str
    advice: str = ""


def ok(name: str, message: str) -> Check:
    """Return that all is well."""
    return Check(name, Verdict.OK, message)


def note(name: str, message: str, advice: str = "") -> Check:
    """Return something worth knowing."""
    return Check(name, Verdict.NOTE, message, advice)


def wrong(name: str, message: str, advice: str = "") -> Check:
    """Return something that has to be mended."""
    return Check(name, Verdict.WRONG, message, advice)


def alone(name: str, look: Callable[[], Iterable[Check]]) -> Iterator[Check]:
    """Yield what `look` finds; where it cannot go on, the reason is one more thing that is wrong."""
    try:
        yield from look()
    except (TieredStorageError, OSError) as error:
        yield wrong(name, str(error))
