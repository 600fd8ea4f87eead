"""What a log that is open for writing reports of a file that it repaired."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

MISSING = "it is missing"
REBUILT = "rebuilt from the log"
CUT_OFF = "cut off"
REMOVED = "removed"


@dataclass(frozen=True, slots=True)
class RecoveryEvent:
    """The file `path` was missing, corrupt or incomplete: `fault` says how, `remedy` what was done."""

    path: Path
    fault: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.path}: {self.fault}: {self.remedy}"


Report = Callable[[RecoveryEvent], None]
