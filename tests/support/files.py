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
