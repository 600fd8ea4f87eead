"""`tiered-storage service` in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.live_sites import LiveSite

_PROGRAM = Path(sys.executable).with_name("tiered-storage")
END_SECONDS = 120


@dataclass(frozen=True, slots=True)
class RunningService:
    """A service that runs; `log` is the file of what it reports."""

    process: subprocess.Popen[bytes]
    log: Path

    @property
    def said(self) -> str:
        """What it reported so far."""
        return self.log.read_text("utf-8")

    def end(self) -> None:
        """Ask it to end (SIGTERM); it must end without complaint."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(END_SECONDS) == 0, self.said
        assert "Traceback" not in self.said, self.said


@contextmanager
def running_service(site: LiveSite[Any], *options: object, name: str = "service") -> Iterator[RunningService]:
    """Run one with the settings file of `site` during the block, and end it; a failed block kills it."""
    log = site.root / f"{name}.log"
    with log.open("wb") as out:
        command = [str(_PROGRAM), "service", *map(str, options), "--config", str(site.config)]
        process = subprocess.Popen(
            command, env={**os.environ, **site.environment}, stdin=subprocess.DEVNULL, stdout=out, stderr=out
        )
    service = RunningService(process, log)
    try:
        yield service
        service.end()
    finally:
        process.kill()
        process.wait()
