"""The report of every benchmark: the machine, the speed of ours and of the peer, and whether the goal was met.

A goal is a ratio to something that the same run measures, because absolute figures differ threefold between machines.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from tiered_storage.kafka_log.kernels.checksum import crc32c

STATE = Path(__file__).parents[1] / ".state" / "bench"
"""Where benchmarks work by default: the project's own disk."""
RESULTS = "REMOTE_LOG_BENCH_RESULTS"
"""The environment variable that names the file in which run_all.py collects all goals."""
_PIECE = 1 << 20


@dataclass(frozen=True, slots=True)
class Timings:
    """How long the rounds of one way took (seconds), each for `size` bytes."""

    name: str
    size: int
    seconds: Sequence[float]

    @property
    def best(self) -> float:
        """The throughput of the fastest round, GB/s (10^9 bytes)."""
        return self.size / min(self.seconds) / 1e9

    @property
    def median(self) -> float:
        """The throughput of the median round, GB/s."""
        return self.size / median(self.seconds) / 1e9


def print_machine(directory: Path) -> None:
    """Print the machine, the file system that holds `directory`, and whether others keep the machine busy."""
    device, file_system = _file_system_of(directory)
    cores = len(os.sched_getaffinity(0))
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / (1 << 30)
    load = os.getloadavg()[0]
    print(
        f"machine: {_processor()}, {cores} cores, {memory:.0f} GiB of memory, {file_system} on {device}, "
        f"Linux {platform.release()}, Python {platform.python_version()}; load {load:.1f}"
    )
    if load > cores / 2:
        print("         it is busy with other work: times are too long, and their ratios unreliable")


def print_comparison(ours: Sequence[Timings], peer: Timings) -> None:
    """Print one line for each of `ours`, with its ratio to the peer, which comes last."""
    print(f"  {'GB/s':44}    best  median   ratio of best, of median")
    for each in ours:
        ratios = f"{each.best / peer.best:13.2f} {each.median / peer.median:10.2f}"
        print(f"  {each.name:44} {each.best:7.2f} {each.median:7.2f} {ratios}")
    print(f"  {peer.name:44} {peer.best:7.2f} {peer.median:7.2f}")


@dataclass(frozen=True, slots=True)
class Goal:
    """The `ratio` of `ours` to `peer`, both as text for people. It must be at least `goal`, or at most if `is_most`."""

    what: str
    ours: str
    peer: str
    ratio: float
    goal: float
    is_most: bool = False

    @property
    def is_met(self) -> bool:
        """Whether the ratio meets the goal."""
        return self.ratio <= self.goal if self.is_most else self.ratio >= self.goal

    def __str__(self) -> str:
        """Return its row of the table."""
        bound = f"{'<=' if self.is_most else '>='} {self.goal:g}"
        missed = "" if self.is_met else "  *** MISSED ***"
        return f"{self.what:48} {self.ours:>14} {self.peer:>34} {self.ratio:7.2f} {bound:>8}{missed}"


HEADING = f"{'what':48} {'ours':>14} {'peer':>34} {'ratio':>7} {'goal':>8}"


def judge(goals: Sequence[Goal]) -> int:
    """Print the goals with the measured figures, and pass them to run_all.py; return the exit code."""
    print(HEADING)
    for goal in goals:
        print(goal)
    if results := os.environ.get(RESULTS):
        with Path(results).open("a") as file:
            file.writelines(json.dumps(asdict(goal)) + "\n" for goal in goals)
    return 0 if all(goal.is_met for goal in goals) else 1


def checked_read(paths: Sequence[Path], clock: Callable[[], float] = time.perf_counter) -> tuple[int, float]:
    """Read files from start to end in pieces, with CRC-32C; return the bytes, and how long that took (s) by `clock`."""
    size, begun = 0, clock()
    for path in paths:
        checksum = 0
        with path.open("rb", buffering=0) as file:
            while piece := file.read(_PIECE):
                size, checksum = size + len(piece), crc32c(piece, checksum)
    return size, clock() - begun


def walk_seconds(root: Path) -> float:
    """Return the seconds that it takes to list every file below `root` with its size."""
    begun = time.perf_counter()
    folders = [str(root)]
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.is_dir():
                    folders.append(entry.path)
                else:
                    entry.stat()
    return time.perf_counter() - begun


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown processor"
    )


def _file_system_of(directory: Path) -> tuple[str, str]:
    """Return the device and the kind of the file system that holds `directory`; the last one mounted there counts."""
    found = ("unknown", "unknown")
    longest = -1
    for line in Path("/proc/self/mounts").read_text().splitlines():
        device, mounted, kind = line.split()[:3]
        if directory.resolve().is_relative_to(mounted) and len(mounted) >= longest:
            found, longest = (device, kind), len(mounted)
    return found
