"""A remote log whose programs die."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from support.crash_points import Crash
from support.programs import Programs
from support.remote_logs import Partitions, RemoteLogFiles, a_copied_remote_log, a_remote_log
from support.shared_clock import SharedClock


def cells(crashes: Iterable[Crash], *, daily: int = 2) -> list[Any]:
    """Return the parameters of a test: nightly is what is deeper in a run than the `daily` time at a point."""
    return [
        pytest.param(crash, id=str(crash), marks=[pytest.mark.nightly] if crash.nth > daily else [])
        for crash in crashes
    ]


@dataclass(frozen=True, slots=True)
class CrashSite:
    """What it takes to lay a remote log out below `root`, to let programs die on it, and to let time pass."""

    root: Path
    clock: SharedClock
    programs: Programs

    def new(self, partitions: Partitions, name: str = "site", **settings: Any) -> RemoteLogFiles:
        """Return a remote log with nothing copied; see a_remote_log. Each of several needs a name."""
        return self._with_our_clock(a_remote_log(self.root / name, partitions, **settings))

    def copied(self, partitions: Partitions, name: str = "site", **settings: Any) -> RemoteLogFiles:
        """Return one with every closed segment copied; see a_copied_remote_log."""
        files = self._with_our_clock(a_copied_remote_log(self.root / name, partitions, **settings))
        with files.open() as remote_log:
            # It was copied years ago by our clock.
            remote_log.deletions.clocks.trust()
        return files

    def _with_our_clock(self, files: RemoteLogFiles) -> RemoteLogFiles:
        files.clock = self.clock
        return files
