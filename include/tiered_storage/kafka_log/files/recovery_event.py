"""What a log that is open for writing says of the files that it had to repair, so that nobody has to guess it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

MISSING = "it is missing"
BUILT_ANEW = "built anew from the log"
CUT_OFF = "cut off"
REMOVED = "removed"


@dataclass(frozen=True, slots=True)
class RecoveryEvent:
    """The file `path` was found missing, broken or half done: `fault` says how, `remedy` what became of it."""

    path: Path
    fault: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.path}: {self.fault}: {self.remedy}"


Report = Callable[[RecoveryEvent], None]
