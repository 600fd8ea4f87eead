"""Strips of SVG: a partition's places by offset or by time, and bars of bytes over time.

A picture has no more parts than can be told apart, whatever number of segments it shows. Each part says in words what
it is; colours come from style.css, by the part's class.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH = 1000
_STRIP, _BARS = 44, 120
_LEAST_WIDTH = 2.0
MOST_PARTS = 500


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a strip from `start` to `end` (exclusive) of its scale; `link` leads to what is behind it."""

    kind: str
    start: float
    end: float
    title: str
    link: str | None = None


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar of a height."""

    height: float
    title: str


def strip(label: str, parts: Sequence[Part], ends: tuple[str, str]) -> str:
    """Return a strip of `parts` in order, and under it what its two ends are called; `label` says what it shows."""
    if not parts:
        return f"<p>{escape(label)}: nothing yet.</p>"
    if len(parts) > MOST_PARTS:
        label = f"{label}: the first {MOST_PARTS} of {len(parts):,} parts"
        parts, ends = parts[:MOST_PARTS], (ends[0], "")
    first, last = parts[0].start, max(part.end for part in parts)
    scale = WIDTH / max(last - first, 1e-9)
    drawn = "".join(_part(part, (part.start - first) * scale, (part.end - part.start) * scale) for part in parts)
    return (
        f'<figure><figcaption>{escape(label)}</figcaption><svg viewBox="0 0 {WIDTH} {_STRIP}" '
        f'preserveAspectRatio="none" role="group" aria-label="{escape(label)}">{drawn}</svg>'
        f'<div class="ends"><span>{escape(ends[0])}</span><span>{escape(ends[1])}</span></div></figure>'
    )


def bars(label: str, of: Sequence[Bar], ends: tuple[str, str]) -> str:
    """Return bars of equal width side by side."""
    highest = max((bar.height for bar in of), default=0)
    if not highest:
        return f"<p>{escape(label)}: nothing yet.</p>"
    width = WIDTH / len(of)
    drawn = ""
    for number, bar in enumerate(of):
        height = max(_BARS * bar.height / highest, 1.0 if bar.height else 0.0)
        drawn += (
            f'<rect class="bar" x="{number * width:.1f}" y="{_BARS - height:.1f}" width="{width * 0.9:.1f}" '
            f'height="{height:.1f}"><title>{escape(bar.title)}</title></rect>'
        )
    return (
        f'<figure><figcaption>{escape(label)}</figcaption><svg class="bars" viewBox="0 0 {WIDTH} {_BARS}" '
        f'preserveAspectRatio="none" role="img" aria-label="{escape(label)}">{drawn}</svg>'
        f'<div class="ends"><span>{escape(ends[0])}</span><span>{escape(ends[1])}</span></div></figure>'
    )


def _part(part: Part, x: float, width: float) -> str:
    shape = (
        f'<rect class="{escape(part.kind)}" x="{x:.2f}" y="0" width="{max(width, _LEAST_WIDTH):.2f}" '
        f'height="{_STRIP}"><title>{escape(part.title)}</title></rect>'
    )
    if part.link is None:
        return shape
    return f'<a href="{escape(part.link)}" aria-label="{escape(part.title)}">{shape}</a>'
