"""What all pages share: headers, names of places and states, addresses, and the trail to a page."""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import quote, urlencode

from markupsafe import Markup

from tiered_storage.remote_log.model import SegmentState, TopicIdPartition
from tiered_storage_airflow.page.regions import Place
from tiered_storage_airflow.rendering import render

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; form-action 'self'; frame-ancestors 'self'; "
        "base-uri 'none'"
    ),
    "Referrer-Policy": "same-origin",
}
"""Nothing is loaded from elsewhere, and no inline script runs."""

LEGEND = {
    Place.REMOTE: "remote only",
    Place.BOTH: "remote and local",
    Place.LOCAL: "local, not copied yet",
    Place.ACTIVE: "local, active segment",
    Place.MISSING: "missing",
}

STATES = {
    SegmentState.COPY_SEGMENT_STARTED: "being copied",
    SegmentState.COPY_SEGMENT_FINISHED: "copied",
    SegmentState.DELETE_SEGMENT_STARTED: "being deleted",
    SegmentState.DELETE_SEGMENT_FINISHED: "deleted",
}


_CLUSTER = re.compile(r"/clusters/([^/]+)/page$")
"""What follows the path of our application in the root of another cluster's pages; see below_reports."""


def page(template: str, root: str, title: str, trail: Sequence[tuple[str, str]], **values: object) -> str:
    """Return a page; `trail` are the names and the paths (below `root`) of the pages above it."""
    cluster = _CLUSTER.search(root)
    home = f"Remote Log: {cluster[1]}" if cluster else "Remote Log"
    return render(template, root=root, home=home, title=title, trail=trail, **values)


def link(address: str, text: str) -> Markup:
    """Return a link, for a cell of a table."""
    return Markup('<a href="{}">{}</a>').format(address, text)


def local_tier_is_hidden(problem: str) -> str:
    """Return the alarm for an unreadable local tier."""
    return f"The local tier cannot be read here ({problem}). This page shows only the remote tier."


def of_topic(root: str, topic: str) -> str:
    """Return the address of a topic's page, below the `root` of all pages."""
    return f"{root}/topics/{quote(topic, safe='')}"


def of_partition(root: str, partition: TopicIdPartition, below: str = "", **query: object) -> str:
    """Return the address of a partition's page, or of the path `below` it; the read service has the same paths."""
    asked = urlencode({**query, "topic_id": partition.topic_id})
    return f"{of_topic(root, partition.topic)}/partitions/{partition.partition}{below}?{asked}"


def trail_to(partition: TopicIdPartition) -> Sequence[tuple[str, str]]:
    """Return the names and addresses (below the root) of the pages of a partition and of its topic."""
    return (partition.topic, of_topic("", partition.topic)), (str(partition), of_partition("", partition))


def records_form(root: str, partition: TopicIdPartition, offset: int) -> dict[str, object]:
    """Return the values for the form that requests records."""
    action = of_partition(root, partition, "/records").partition("?")[0]
    return {"action": action, "topic_id": partition.topic_id, "offset": offset}
