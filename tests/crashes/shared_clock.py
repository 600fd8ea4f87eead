"""One clock for all processes of a test."""

from __future__ import annotations

from pathlib import Path

from support.clocks import ManualClock
from tiered_storage.clock import machine_boot_time, wall_clock


class SharedClock(ManualClock):
    """The time (ms) that the file at `path` holds.

    Where there is none yet, it begins with the time of this machine, which the files of a store have.
    """

    started = wall_clock() - machine_boot_time().ms
    """The machine's own start: other processes of a test have its clocks."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.exists():
            self.move_to(wall_clock())

    def __call__(self) -> int:
        return int(self.path.read_text())

    def move_to(self, now: int) -> None:
        """Set the time of all processes to `now` (ms)."""
        written = self.path.with_suffix(".new")
        written.write_text(str(now))
        written.replace(self.path)

    def move_by(self, duration_ms: int) -> None:
        """Let `duration_ms` pass."""
        self.move_to(self() + duration_ms)
