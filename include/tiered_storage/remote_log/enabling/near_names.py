"""Topic names that are taken for one another: they differ only in case, or in dot and underscore."""

from __future__ import annotations

from collections.abc import Iterable


def near_names(name: str, known: Iterable[str]) -> list[str]:
    """Return the names of `known` that differ from `name` only in case, or in dots and underscores, sorted."""
    return sorted({each for each in known if each != name and _plain(each) == _plain(name)})


def described_near(near: list[str]) -> str:
    """Return what a message says of near names."""
    verb = "differs" if len(near) == 1 else "differ"
    return f"{', '.join(near)} {verb} only in case, or in dot and underscore"


def _plain(name: str) -> str:
    return name.lower().replace("_", ".")
