"""Files of a test: what a directory holds."""

from __future__ import annotations

from pathlib import Path


def files_in(directory: Path, *left_out: str) -> dict[str, bytes]:
    """Return the content of the files below `directory` by their names relative to it, without those `left_out`."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.name not in left_out
    }


def closed_files(log_directory: Path) -> list[Path]:
    """Return the files of closed segments, which nobody changes any more, in all partitions of `log_directory`."""
    closed = []
    for directory in log_directory.glob("*-*"):
        bases = sorted(path.stem for path in directory.glob("*.log"))
        closed += [path for path in directory.glob("*.*") if path.stem in bases[:-1]]
    return closed
