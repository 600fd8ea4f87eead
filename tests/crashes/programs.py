"""Programs that a test starts, stops, continues and kills, each in a process of its own; see crashing_program.py."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from crashes.crash_points import Crash, CrashPoint
from crashes.program_server import COMMAND_LINE, PROCEED, Request
from tiered_storage.clock import wall_clock
from tiered_storage.remote_log.context import store_options
from tiered_storage.remote_log.copy.job import CopyJob
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.settings.settings import load_settings

PATIENCE_SECONDS = 120.0
POLL_SECONDS = 0.002
TESTS = Path(__file__).parents[1]


class ProgramServer:
    """The process that programs are forked from; it ends at the end of a `with`."""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "crashes.program_server"],
            stdin=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(TESTS)},
        )
        return self

    def ask(self, request: Request) -> None:
        """Let it start a program."""
        assert self._process.stdin is not None
        self._process.stdin.write(request.to_json() + "\n")
        self._process.stdin.flush()

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(PATIENCE_SECONDS)


@dataclass(frozen=True, slots=True)
class Program:
    """A program that was started; `folder` holds its outputs."""

    folder: Path

    @property
    def state(self) -> str:
        """`running`, `stopped`, or `ended` with its exit code, negative for the signal that killed it."""
        return self._read("state") or "running"

    @property
    def said(self) -> str:
        """What it wrote to its two outputs."""
        return self._read("out") + self._read("err")

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows of the JSON document that it wrote; one of an error has none."""
        rows: list[dict[str, Any]] = json.loads(self._read("out")).get("rows", [])
        return rows

    def wait(self) -> int:
        """Wait until it ended; return its exit code."""
        self._wait_for(self._has_ended)
        return int(self.state.split()[1])

    def wait_until_stopped(self) -> None:
        """Wait until the program halts. Fails if it ends instead."""
        self._wait_for(lambda: self.state != "running")
        assert self.state == "stopped", f"it {self.state} and never stood still: {self.said}"

    def let_proceed(self) -> None:
        """Let a halted program continue."""
        (self.folder / PROCEED).touch()
        self._has_ended()

    def proceed(self) -> int:
        """Let a halted program continue to its end; return its exit code."""
        self.let_proceed()
        return self.wait()

    def terminate(self) -> int:
        """Ask it to end (SIGTERM), and wait until it has; return its exit code."""
        self._signal(signal.SIGTERM)
        return self.wait()

    def kill(self) -> None:
        """Kill it, whatever it does; one that ended stays as it is."""
        if not self.state.startswith("ended"):
            self._signal(signal.SIGKILL)
            self.wait()

    def _has_ended(self) -> bool:
        state = self.state
        # Again, where it stopped once more because it looked a moment too early.
        if state == "stopped" and (self.folder / PROCEED).exists():
            self._signal(signal.SIGCONT)
        return state.startswith("ended")

    def _signal(self, number: int) -> None:
        self._wait_for(lambda: bool(self._read("pid")))
        with suppress(ProcessLookupError):  # it may have ended this very moment
            os.kill(int(self._read("pid")), number)

    def _read(self, name: str) -> str:
        path = self.folder / name
        return path.read_text() if path.exists() else ""

    def _wait_for(self, happened: Callable[[], bool]) -> None:
        # Not by a clock: the test, too, may stand still for a while.
        for _ in range(round(PATIENCE_SECONDS / POLL_SECONDS)):
            if happened():
                return
            time.sleep(POLL_SECONDS)
        raise AssertionError(f"it is {self.state}, and nothing happened: {self.said}")


@dataclass(slots=True)
class Programs:
    """The programs of one test, with outputs below `root` and the time of the SharedClock in `clock`.

    Without `clock` they have this machine's time, as brokers do.

    What still runs at the end of a `with` is killed.
    """

    server: ProgramServer
    root: Path
    clock: Path | None
    _started: list[Program] = field(default_factory=list)

    def start(self, *arguments: object, at: Crash | None = None, program: str = COMMAND_LINE) -> Program:
        """Start `program` with `arguments`, to die `at`."""
        started = Program(self.root / f"program-{len(self._started)}")
        started.folder.mkdir(parents=True)
        crash = None if at is None else (str(at.point), at.nth, int(at.signal))
        given = [str(argument) for argument in arguments]
        self.server.ask(Request(program, given, str(started.folder), str(self.clock or ""), crash))
        self._started.append(started)
        return started

    def kill(self, *arguments: object, at: Crash, program: str = COMMAND_LINE) -> Program:
        """Start it and wait until it was killed `at` its point. Fails where it never got there."""
        started = self.start(*arguments, at=at, program=program)
        code = started.wait()
        assert code == -at.signal, f"it never got to the point {at}; it ended with {code}: {started.said}"
        return started

    def stop(self, *arguments: object, at: CrashPoint, nth: int = 1, program: str = COMMAND_LINE) -> Program:
        """Start the program and wait until it halts at its point."""
        started = self.start(*arguments, at=Crash(at, nth, signal.SIGSTOP), program=program)
        started.wait_until_stopped()
        return started

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for program in self._started:
            program.kill()


BACKFILL = "crashes.programs:backfill"


def backfill() -> None:
    """Copy, window by window, what a backfill does: arguments are its owner's name and the ends of the windows (ms)."""
    _, config, owner, *window_ends = sys.argv
    settings = load_settings(Path(config), environ={})
    rows: list[dict[str, object]] = []
    with RemoteLogManager.open(settings, wall_clock, store_options(settings, {}), create=True) as remote_log:
        for number, window_end in enumerate(map(int, window_ends)):
            begun = remote_log.begin_copy(remote_log.plan_copy(window_end=window_end), owner)
            job = remote_log.write_copy_job(f"runs/{owner}/{number}", begun)
            _, description = CopyJob.read(remote_log.context.work, f"runs/{owner}/{number}")
            with remote_log.keep_leases(task.lease for task in begun.tasks):
                for group in range(job.groups):
                    job.run_group(group, remote_log.context.storage, description.sizes, remote_log.context.clock)
            report = remote_log.commit_copy(job.outcomes())
            rows += [
                {"partition": str(segment.topic_id_partition), "start_offset": segment.start_offset}
                for segment in report.committed
            ]
    sys.stdout.write(json.dumps({"rows": rows}))
