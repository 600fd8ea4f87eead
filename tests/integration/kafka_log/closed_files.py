"""The files of a log directory that nobody changes any more."""

from __future__ import annotations

from pathlib import Path


def closed_files(log_directory: Path) -> list[Path]:
    """Return the files of closed segments, which nobody changes any more, in all partitions of `log_directory`."""
    closed = []
    for directory in log_directory.glob("*-*"):
        bases = sorted(path.stem for path in directory.glob("*.log"))
        closed += [path for path in directory.glob("*.*") if path.stem in bases[:-1]]
    return closed
