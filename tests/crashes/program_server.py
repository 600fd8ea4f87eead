"""A server of processes that die: it imports the library once and forks for every program that it is asked for.

So a program costs some milliseconds and not the seconds of its imports. Requests come as lines of JSON on standard
input. Each program is the child of a process that does nothing but wait for it, and writes down how it is.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from crashes.crash_points import Crash, CrashPoint, install
from crashes.shared_clock import SharedClock
from support.clocks import put_at
from tiered_storage.remote_log.storage.clients.local_directory import LocalDirectory

PROCEED = "proceed"
"""The file in a program's folder that lets a stopped program continue."""

COMMAND_LINE = "tiered_storage.cli.main:main"
PRELOADED = (
    *("tiered_storage.cli.main", "tiered_storage.cli.copy", "tiered_storage.cli.delete", "tiered_storage.cli.repair"),
    *("tiered_storage.cli.restore", "tiered_storage.cli.topics", "tiered_storage.remote_log.copy.job"),
    *("tiered_storage.remote_log.retention.deletions", "tiered_storage.remote_log.read.log_reader"),
)


@dataclass(frozen=True, slots=True)
class Request:
    """A program: a function without parameters, as module:name, that finds `arguments` in sys.argv.

    `folder` gets its outputs (out, err), its process (pid) and how it is (state: stopped, running, ended CODE);
    `clock` is the file of its SharedClock, empty: it has the machine's; `crash` is where it dies, as the fields of a
    Crash.
    """

    program: str
    arguments: list[str]
    folder: str
    clock: str
    crash: tuple[str, int, int] | None

    def to_json(self) -> str:
        """Return it as a line."""
        return json.dumps(asdict(self))


def main() -> None:
    """Serve requests until standard input ends."""
    for module in PRELOADED:
        import_module(module)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        request = Request(**json.loads(line))
        if os.fork() == 0:
            _watch(request)


def _watch(request: Request) -> NoReturn:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    folder = Path(request.folder)
    pid = os.fork()
    if pid == 0:
        _run(request)
    _publish(folder / "pid", str(pid))
    while True:
        _, status = os.waitpid(pid, os.WUNTRACED | os.WCONTINUED)
        if os.WIFSTOPPED(status):
            _publish(folder / "state", "stopped")
        elif os.WIFCONTINUED(status):
            _publish(folder / "state", "running")
        else:
            _publish(folder / "state", f"ended {os.waitstatus_to_exitcode(status)}")
            os._exit(0)


def _run(request: Request) -> NoReturn:
    code = 1
    try:
        for descriptor, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(Path(request.folder, name), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), descriptor)
        sys.argv = ["tiered-storage", *request.arguments]
        if request.clock:
            clock: Any = import_module("tiered_storage.clock")
            shared = SharedClock(Path(request.clock))
            clock.time = shared.time_module()
            LocalDirectory.put = put_at(shared)  # type: ignore[method-assign]
        os.fsync = _sync_nothing  # type: ignore[assignment]
        if request.crash is not None:
            point, nth, number = request.crash
            install(Crash(CrashPoint(point), nth, number, str(Path(request.folder, PROCEED))))
        code = _call(request.program)
    except BaseException:  # noqa: BLE001 - this process must not continue as another server, whatever happens
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _call(program: str) -> int:
    module, _, name = program.partition(":")
    try:
        getattr(import_module(module), name)()
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    return 0


def _sync_nothing(_descriptor: object) -> None:
    """Skip fsync: a killed process loses no write, only a crashed machine does."""


def _publish(path: Path, said: str) -> None:
    written = path.with_suffix(".new")
    written.write_text(said)
    written.replace(path)


if __name__ == "__main__":
    main()
