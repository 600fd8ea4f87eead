"""A clock of a test and of all its processes: it stands in a file until it is moved."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

from support.metadata_stores import ManualClock
from tiered_storage.clock import wall_clock


class SharedClock(ManualClock):
    """The time (ms) that the file at `path` holds.

    Where there is none yet, it begins with the time of this machine, which the files of a store have.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.exists():
            self.move_to(wall_clock())

    def __call__(self) -> int:
        return int(self.path.read_text())

    def move_to(self, now: int) -> None:
        """Let it be `now` (ms) for everybody."""
        written = self.path.with_suffix(".new")
        written.write_text(str(now))
        written.replace(self.path)

    def move_by(self, duration_ms: int) -> None:
        """Let `duration_ms` pass."""
        self.move_to(self() + duration_ms)

    def time_module(self) -> SimpleNamespace:
        """Return what may stand in the place of `time` in tiered_storage.clock."""
        return SimpleNamespace(time_ns=lambda: self() * 1_000_000)
