"""Examinations by `doctor`, run in this process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from support.clocks import ManualClock
from support.remote_logs import RemoteLogFiles
from tiered_storage import clock
from tiered_storage.clock import wall_clock
from tiered_storage.doctor.check import Check, Status
from tiered_storage.doctor.examination import examine

JAVA_IS_ELSEWHERE = {"PATH": ""}
"""Without a Java to start, examining is quick."""


@dataclass(frozen=True)
class Examination:
    """The checks of one run of `doctor`."""

    checks: list[Check]

    def found(self, status: Status, name: str | None = None) -> list[str]:
        """Return message and advice of the checks with this status, of one name or of all."""
        return [
            f"{check.message} | {check.advice}"
            for check in self.checks
            if check.status is status and name in (None, check.name)
        ]

    def wrong(self, name: str | None = None) -> list[str]:
        return self.found(Status.WRONG, name)

    def notes(self, name: str | None = None) -> list[str]:
        return self.found(Status.NOTE, name)

    def ok(self, name: str | None = None) -> list[str]:
        return self.found(Status.OK, name)


def examined(files: RemoteLogFiles | Path, environ: Mapping[str, str] = JAVA_IS_ELSEWHERE) -> Examination:
    """Run `doctor` on a remote log, or on the one of a settings file."""
    config = files if isinstance(files, Path) else files.config
    # The machine that copied: it has been running since.
    machine = ManualClock(wall_clock())
    with mock.patch.object(clock, "time", machine.time_module()):
        return Examination(list(examine(config, machine, environ)))
