"""What all pages have in common. Whatever comes from outside goes through `escape`, here or where a page is made."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape as _escape
from urllib.parse import quote, urlencode

from tiered_storage.remote_log.model import SegmentState, TopicIdPartition
from tiered_storage_airflow.page.regions import Place

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; form-action 'self'; frame-ancestors 'self'; "
        "base-uri 'none'"
    ),
    "Referrer-Policy": "same-origin",
}
"""Nothing is loaded from elsewhere, and nothing that stands in a page is run."""

escape = _escape

LEGEND = {
    Place.REMOTE: "remote only",
    Place.BOTH: "remote and local",
    Place.LOCAL: "local, not copied yet",
    Place.ACTIVE: "local, still written to",
    Place.MISSING: "missing",
}

_STATES = {
    SegmentState.COPY_SEGMENT_STARTED: "being copied",
    SegmentState.COPY_SEGMENT_FINISHED: "copied",
    SegmentState.DELETE_SEGMENT_STARTED: "being deleted",
    SegmentState.DELETE_SEGMENT_FINISHED: "deleted",
}

_PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="stylesheet" href="{root}/assets/style.css"><script src="{root}/assets/theme.js"></script></head>
<body><a class="skip" href="#content">To the content</a><nav aria-label="Where you are"><ol>{trail}</ol></nav>
<main id="content"><h1>{title}</h1>{content}</main></body></html>
"""


def page(root: str, title: str, trail: Sequence[tuple[str, str]], content: str) -> str:
    """Return a page; `trail` are the names and the paths (below `root`) of the pages above it, `content` is HTML."""
    above = [("Remote Log", "/"), *trail]
    links = "".join(f'<li><a href="{escape(root + path)}">{escape(name)}</a></li>' for name, path in above)
    return _PAGE.format(title=escape(title), root=escape(root), trail=links, content=content)


def table(caption: str, columns: Sequence[str], rows: Iterable[Sequence[str]], numbers: frozenset[int]) -> str:
    """Return a table of cells that are HTML already; the columns `numbers` (from 0 on) stand to the right."""

    def kind(at: int) -> str:
        return ' class="number"' if at in numbers else ""

    head = "".join(f'<th scope="col"{kind(at)}>{escape(name)}</th>' for at, name in enumerate(columns))
    body = "".join(
        "<tr>" + "".join(f"<td{kind(at)}>{cell}</td>" for at, cell in enumerate(row)) + "</tr>" for row in rows
    )
    if not body:
        return f"<p>{escape(caption)}: none.</p>"
    return (
        f'<div class="scroll" role="region" aria-label="{escape(caption)}" tabindex="0"><table>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def alarms(told: Iterable[str]) -> str:
    """Return sentences that say what is wrong."""
    return "".join(f'<p class="alarm" role="alert">{escape(each)}</p>' for each in told)


def local_tier_is_hidden(problem: str) -> str:
    """Return the sentence that says so."""
    return f"The local tier cannot be read here ({problem}): what is shown is the remote one."


def figures(values: Iterable[tuple[str, str]]) -> str:
    """Return names and values side by side."""
    shown = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in values)
    return f'<dl class="figures">{shown}</dl>'


def legend() -> str:
    """Return what the colours of strips mean."""
    items = "".join(f'<li><i class="{place.value}"></i>{escape(meaning)}</li>' for place, meaning in LEGEND.items())
    return f'<ul class="legend">{items}</ul>'


def link(address: str, text: str) -> str:
    """Return a link."""
    return f'<a href="{escape(address)}">{escape(text)}</a>'


def number(value: int | None) -> str:
    """Return a number as people read it."""
    return "none" if value is None else f"{value:,}"


def size(value: int) -> str:
    """Return bytes in the unit that fits them."""
    amount, units = float(value), ["bytes", "KiB", "MiB", "GiB", "TiB"]
    while amount >= 1024 and len(units) > 1:
        amount /= 1024
        units.pop(0)
    return f"{amount:,.0f} {units[0]}" if units[0] == "bytes" else f"{amount:,.1f} {units[0]}"


def moment(timestamp: int | None) -> str:
    """Return a timestamp (ms) as text."""
    if timestamp is None or timestamp < 0:
        return "no time"
    try:
        return f"{datetime.fromtimestamp(timestamp / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (OverflowError, ValueError, OSError):
        return f"{timestamp} ms"


def state(of: SegmentState) -> str:
    """Return how far a segment's life is, in words."""
    return _STATES[of]


def span(milliseconds: int) -> str:
    """Return a length of time as text."""
    minutes = milliseconds // 60_000
    if minutes < 120:
        return f"{minutes} min"
    return f"{minutes // 60} h" if minutes < 48 * 60 else f"{minutes // 1440} days"


def of_topic(root: str, topic: str) -> str:
    """Return the address of a topic's page, below the `root` of all pages."""
    return f"{root}/topics/{quote(topic, safe='')}"


def of_partition(root: str, partition: TopicIdPartition, below: str = "", **query: object) -> str:
    """Return the address of a partition's page, or of what is `below` it; the same below the root of the routes."""
    asked = urlencode({**query, "topic_id": partition.topic_id})
    return f"{of_topic(root, partition.topic)}/partitions/{partition.partition}{below}?{asked}"


def trail_to(partition: TopicIdPartition) -> Sequence[tuple[str, str]]:
    """Return the names and addresses (below the root) of the pages of a partition and of its topic."""
    return (partition.topic, of_topic("", partition.topic)), (str(partition), of_partition("", partition))
