"""Strips and bars of SVG: where a partition's records are, by offset or by time, and bytes over time.

A picture has a limited number of parts, however many segments it shows. Each part has a title in words; colours come
from style.css, by the part's class. parts.html draws them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

WIDTH = 1000
_STRIP, _BARS = 44, 120
_LEAST_WIDTH = 2.0
MOST_PARTS = 500


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a strip from `start` to `end` (exclusive) of its scale; `link` leads to what it shows."""

    kind: str
    start: float
    end: float
    title: str
    link: str | None = None


@dataclass(frozen=True, slots=True)
class DrawnPart:
    """A part at its position in a strip, in units of the picture."""

    kind: str
    x: float
    width: float
    title: str
    link: str | None


@dataclass(frozen=True, slots=True)
class Strip:
    """Parts side by side; `label` is the strip's title, `ends` are the labels of its two ends."""

    label: str
    parts: Sequence[DrawnPart]
    ends: tuple[str, str]
    width: int = WIDTH
    height: int = _STRIP


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar of a height; one whose height is unknown is drawn over the whole height, in another colour."""

    height: float
    title: str
    is_known: bool = True


@dataclass(frozen=True, slots=True)
class DrawnBar:
    """A bar at its position, in units of the picture."""

    x: float
    y: float
    width: float
    height: float
    title: str
    is_known: bool = True


@dataclass(frozen=True, slots=True)
class Bars:
    """Bars of equal width side by side."""

    label: str
    bars: Sequence[DrawnBar]
    ends: tuple[str, str]
    width: int = WIDTH
    height: int = _BARS


def strip(label: str, parts: Sequence[Part], ends: tuple[str, str]) -> Strip:
    """Return a strip of `parts`, which are in order."""
    if not parts:
        return Strip(label, (), ends)
    if len(parts) > MOST_PARTS:
        label = f"{label}: the first {MOST_PARTS} of {len(parts):,} parts"
        parts, ends = parts[:MOST_PARTS], (ends[0], "")
    first, last = parts[0].start, max(part.end for part in parts)
    scale = WIDTH / max(last - first, 1e-9)
    drawn = [
        DrawnPart(
            part.kind,
            (part.start - first) * scale,
            max((part.end - part.start) * scale, _LEAST_WIDTH),
            part.title,
            part.link,
        )
        for part in parts
    ]
    return Strip(label, drawn, ends)


def bars(label: str, of: Sequence[Bar], ends: tuple[str, str]) -> Bars:
    """Return bars whose heights keep their proportions; none where all are 0 and known."""
    highest = max((bar.height for bar in of), default=0)
    if not highest and all(bar.is_known for bar in of):
        return Bars(label, (), ends)
    width, drawn = WIDTH / len(of), []
    for number, bar in enumerate(of):
        height = max(_BARS * bar.height / highest, 1.0) if bar.height else 0.0
        if not bar.is_known:
            height = float(_BARS)
        drawn.append(DrawnBar(number * width, _BARS - height, width * 0.9, height, bar.title, bar.is_known))
    return Bars(label, drawn, ends)
