"""What a folder holds."""

from __future__ import annotations

from pathlib import Path


def everything_in(folder: Path) -> dict[str, bytes | None]:
    """Return the files below `folder` with their contents, and its folders."""
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}
