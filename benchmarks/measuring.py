"""What every benchmark says: on which machine, how fast ours and the peer were, and whether the goal was met."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

STATE = Path(__file__).parents[1] / ".state" / "bench"
"""Where benchmarks work unless told otherwise: the project's own disk."""


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
        print("         it is busy with other work: times are longer than they could be, and their ratios shaky")


def print_comparison(ours: Sequence[Timings], peer: Timings) -> None:
    """Print one line for each of `ours`, with its ratio to the peer, which comes last."""
    print(f"  {'GB/s':44}    best  median   ratio of best, of median")
    for each in ours:
        ratios = f"{each.best / peer.best:13.2f} {each.median / peer.median:10.2f}"
        print(f"  {each.name:44} {each.best:7.2f} {each.median:7.2f} {ratios}")
    print(f"  {peer.name:44} {peer.best:7.2f} {peer.median:7.2f}")


def print_goal(what: str, *, met: bool) -> int:
    """Print whether the goal `what` was met, so that a miss is not overlooked; return the exit code."""
    print(f"goal met: {what}" if met else f"*** GOAL MISSED *** {what}")
    return 0 if met else 1


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
