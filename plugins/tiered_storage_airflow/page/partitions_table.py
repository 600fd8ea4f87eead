"""The table of all partitions: sorted, filtered and cut into pages here, however many partitions there are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any
from urllib.parse import urlencode

from markupsafe import Markup

from tiered_storage.remote_log.metrics.partition_metrics import CopyLag, PartitionMetrics, RemoteLogMetrics
from tiered_storage_airflow.page.base import link, of_partition, page
from tiered_storage_airflow.rendering import moment, number, size, span

ROWS = 50
"""The rows of a page."""
_NO_LAG = CopyLag(-1, -1, -1)


class SortedBy(StrEnum):
    """The columns that the table can be sorted by, by their names in URLs."""

    PARTITION = "partition"
    LAG = "lag"
    SEGMENTS = "segments"
    AGE = "age"
    TAIL = "tail"
    REMOTE = "remote"
    TROUBLE = "trouble"


_HEADINGS = {
    SortedBy.PARTITION: "partition",
    SortedBy.SEGMENTS: "closed, not copied",
    SortedBy.LAG: "its size",
    SortedBy.AGE: "its age",
    SortedBy.TAIL: "not copied at all",
    SortedBy.REMOTE: "remote",
    SortedBy.TROUBLE: "trouble",
}


_KEYS: dict[SortedBy, Callable[[PartitionMetrics], Any]] = {
    SortedBy.PARTITION: lambda each: (each.partition.topic, each.partition),
    SortedBy.LAG: lambda each: (each.lag or _NO_LAG).size,
    SortedBy.SEGMENTS: lambda each: (each.lag or _NO_LAG).segments,
    SortedBy.AGE: lambda each: -1 if each.lag is None or each.lag.ms is None else each.lag.ms,
    SortedBy.TAIL: lambda each: each.tail_size or 0,
    SortedBy.REMOTE: lambda each: each.segments.remote_size,
    SortedBy.TROUBLE: lambda each: len(list(each.troubles)),
}


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a visitor asks for: topics whose names contain `topic`, in which order, and from which row on."""

    topic: str = ""
    sort: SortedBy = SortedBy.LAG
    descending: bool = True
    only_trouble: bool = False
    start: int = 0

    @property
    def query(self) -> str:
        """The query that asks for it."""
        values = {
            "topic": self.topic,
            "sort": self.sort.value,
            "descending": str(self.descending).lower(),
            "only_trouble": str(self.only_trouble).lower(),
            "start": self.start,
        }
        return f"?{urlencode(values)}"


def chosen_partitions(
    metrics: RemoteLogMetrics, wanted: Wanted, may_see: Callable[[str], bool]
) -> list[PartitionMetrics]:
    """Return all partitions that are wanted and that the visitor may see, in the wanted order."""
    text = wanted.topic.lower()
    topics = {each.partition.topic for each in metrics.partitions}
    seen = {topic for topic in topics if text in topic.lower() and may_see(topic)}
    found = [each for each in metrics.partitions if each.partition.topic in seen]
    if wanted.only_trouble:
        found = [each for each in found if any(each.troubles)]
    # The metrics are by topic and number: equal rows stay in that order.
    return sorted(found, key=_KEYS[wanted.sort], reverse=wanted.descending)


def partitions_page(root: str, metrics: RemoteLogMetrics | None, wanted: Wanted, may_see: Callable[[str], bool]) -> str:
    """Return the page that begins at row `wanted.start`; without metrics, say how to get some."""
    found = [] if metrics is None else chosen_partitions(metrics, wanted, may_see)
    shown = found[wanted.start : wanted.start + ROWS]
    following = wanted.start + ROWS
    return page(
        "partitions.html",
        root,
        "Partitions",
        [],
        taken_at=None if metrics is None else moment(metrics.taken_at),
        problem=None if metrics is None else metrics.problem,
        wanted=wanted,
        columns=[_heading(sorted_by, wanted) for sorted_by in _HEADINGS],
        rows=[tuple(_row(root, each)) for each in shown],
        first=wanted.start + 1,
        last=wanted.start + len(shown),
        count=len(found),
        previous=replace(wanted, start=max(0, wanted.start - ROWS)).query if wanted.start else None,
        following=replace(wanted, start=following).query if following < len(found) else None,
    )


def _heading(sorted_by: SortedBy, wanted: Wanted) -> Markup:
    """Return a heading that sorts by its column; the present one turns the order around."""
    is_present = sorted_by is wanted.sort
    descending = not wanted.descending if is_present else sorted_by is not SortedBy.PARTITION
    asked = replace(wanted, sort=sorted_by, descending=descending, start=0)
    mark = "" if not is_present else " ▾" if wanted.descending else " ▴"
    return link(asked.query, _HEADINGS[sorted_by] + mark)


def _row(root: str, each: PartitionMetrics) -> Iterator[str]:
    lag, partition, unknown = each.lag, each.partition, "not known" if each.is_copied else ""
    yield link(of_partition(root, partition), str(partition)) if partition.topic_id else str(partition)
    yield unknown if lag is None else number(lag.segments)
    yield unknown if lag is None else size(lag.size)
    yield unknown if lag is None else "" if not lag.segments else "not known" if lag.ms is None else span(lag.ms)
    yield unknown if each.tail_size is None or not each.is_copied else size(each.tail_size)
    yield size(each.segments.remote_size)
    yield "; ".join(each.troubles)
