"""The page of one partition: what lies where, how far copying is behind, what is stuck, and its remote segments."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from urllib.parse import quote

from tiered_storage.remote_log.metadata.safety import DeletionFailure
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata, SegmentState, TopicIdPartition
from tiered_storage.remote_log.reading.partition_view import PartitionView
from tiered_storage_airflow.page import html
from tiered_storage_airflow.page.picture import Bar, Part, bars, strip
from tiered_storage_airflow.page.regions import Place, regions_of
from tiered_storage_airflow.read_service.answers import PartitionAnswer

MOST_ROWS = 50
TIME_BUCKETS = 40


@dataclass(frozen=True, slots=True)
class PartitionContent:
    """All that the page tells. `segments` are those of the partition in every state, `latest` is its last time (ms)."""

    answer: PartitionAnswer
    view: PartitionView
    segments: Sequence[RemoteLogSegmentMetadata]
    failures: Sequence[DeletionFailure]
    latest: int | None
    now: int
    stuck_after: int
    may_read: bool
    start: int


def path_of(partition: TopicIdPartition) -> str:
    """Return the address of a partition's page, below the root of all pages."""
    return f"/topics/{quote(partition.topic, safe='')}/partitions/{partition.partition}"


def offsets_strip(view: PartitionView, path: str) -> str:
    """Return what lies where by offset; each part leads to the segments that begin with it."""
    parts = [
        Part(
            region.place.value,
            region.start,
            region.end,
            f"{html.LEGEND[region.place]}: offsets {region.start:,} to {region.end - 1:,}",
            f"{path}?start={region.start}#segments",
        )
        for region in regions_of(view)
    ]
    ends = (f"offset {parts[0].start:,}", f"{parts[-1].end:,}") if parts else ("", "")
    return strip("By offset", parts, ends)


def partition_page(root: str, content: PartitionContent) -> str:
    """Return the page."""
    partition = content.view.partition
    path = root + path_of(partition)
    pieces = [
        _alarms(content),
        html.figures(_figures(content)),
        html.legend(),
        offsets_strip(content.view, path),
        _times_strip(content, path),
        _bytes_over_time(content.view),
        _peek(content, path),
        _unfinished(content, path),
        _failures(content.failures, path),
        _segments(content, path),
    ]
    trail = [(partition.topic, f"/topics/{quote(partition.topic, safe='')}")]
    return html.page(root, str(partition), trail, "".join(pieces))


def _figures(content: PartitionContent) -> Iterable[tuple[str, str]]:
    answer = content.answer
    yield "log start", html.number(answer.log_start_offset)
    yield "first local offset", html.number(answer.earliest_local_offset)
    yield "last remote offset", html.number(answer.latest_tiered_offset)
    yield "log end", html.number(answer.log_end_offset)
    yield "not copied yet", f"{answer.lag_offsets:,} offsets"
    yield "closed and not copied", _closed_lag(content.view)
    yield "remote", f"{html.size(answer.remote_bytes)}, {answer.remote_segments:,} segments"
    yield "local", f"{html.size(answer.local_bytes)}, {answer.local_segments:,} segments"


def _closed_lag(view: PartitionView) -> str:
    closed = [] if view.local is None else view.local.closed_segments
    due = [each for each in closed if each.end_offset is not None and each.end_offset >= view.remote_end]
    return f"{html.size(sum(each.size for each in due))}, {len(due):,} segments"


def _alarms(content: PartitionContent) -> str:
    answer, told = content.answer, []
    if answer.local_problem is not None:
        told.append(f"The local tier cannot be read here ({answer.local_problem}): what is shown is the remote one.")
    if answer.delete_state is not None:
        told.append(f"The partition is being deleted: {answer.delete_state}.")
    told += [
        f"Offsets {region.start:,} to {region.end - 1:,} are in neither tier: 'tiered-storage audit' tells of it."
        for region in regions_of(content.view)
        if region.place is Place.MISSING
    ]
    return "".join(f'<p class="alarm" role="alert">{escape(each)}</p>' for each in told)


def _times_strip(content: PartitionContent, path: str) -> str:
    """Return what lies where by time: of remote segments by their largest timestamps, and what is local behind them."""
    view = content.view
    parts: list[Part] = []
    reached: int | None = None
    for covered in view.coverage.ranges:
        latest = covered.segment.max_timestamp
        if latest < 0 or (reached is not None and latest <= reached):
            continue
        place = Place.BOTH if view.local is not None and covered.start_offset >= view.local_start else Place.REMOTE
        _append(parts, place, latest if reached is None else reached, latest, covered.start_offset, path)
        reached = latest
    if content.latest is not None and view.local is not None and (reached is None or content.latest > reached):
        first = content.latest if reached is None else reached
        _append(parts, Place.LOCAL, first, content.latest, view.remote_end, path)
    ends = (html.moment(int(parts[0].start)), html.moment(int(parts[-1].end))) if parts else ("", "")
    return strip("By time", parts, ends)


def _append(parts: list[Part], place: Place, start: int, end: int, offset: int, path: str) -> None:
    """Add a part, or make the last one longer where that is of the same kind."""
    link = f"{path}?start={offset}#segments"
    if parts and parts[-1].kind == place.value:
        start, link = int(parts[-1].start), parts[-1].link or link
        parts.pop()
    title = f"{html.LEGEND[place]}: {html.moment(start)} to {html.moment(end)}"
    parts.append(Part(place.value, start, max(end, start + 1), title, link))


def _bytes_over_time(view: PartitionView) -> str:
    timed = [each for each in view.coverage.ranges if each.segment.max_timestamp >= 0]
    if not timed:
        return ""
    first = min(each.segment.max_timestamp for each in timed)
    last = max(each.segment.max_timestamp for each in timed)
    width = max(1, -(-(last - first + 1) // TIME_BUCKETS))
    buckets = [0] * min(TIME_BUCKETS, (last - first) // width + 1)
    for each in timed:
        buckets[(each.segment.max_timestamp - first) // width] += each.size
    drawn = [
        Bar(held, f"{html.size(held)} with times from {html.moment(first + number * width)} on")
        for number, held in enumerate(buckets)
    ]
    return bars("Remote bytes over time", drawn, (html.moment(first), html.moment(last)))


def _peek(content: PartitionContent, path: str) -> str:
    if not content.may_read:
        return "<p>You may see this topic, and not read its records.</p>"
    return (
        f'<h2>Records</h2><form action="{escape(path)}/records"><label>offset<input name="offset" type="number" '
        f'min="0" value="{content.answer.log_start_offset}"></label><button>Look</button></form>'
    )


def _unfinished(content: PartitionContent, path: str) -> str:
    under_way = [each for each in content.segments if each.state is SegmentState.COPY_SEGMENT_STARTED]
    rows = []
    for segment in under_way[:MOST_ROWS]:
        age = content.now - segment.event_timestamp
        state = "stands still" if age > content.stuck_after else "under way"
        rows.append((_named(segment, path), html.size(segment.size), f"for {html.span(age)}: {state}"))
    return "<h2>Copies that have not ended</h2>" + html.table(
        "Copies", ("offsets", "size", "since"), rows, frozenset({1})
    )


def _failures(failures: Sequence[DeletionFailure], path: str) -> str:
    rows = [
        (
            html.link(f"{path}/segments/{each.segment_id.id}", each.segment_id.id),
            html.number(each.attempts),
            html.moment(each.last_failed_at),
            escape(each.error),
        )
        for each in failures[:MOST_ROWS]
    ]
    return "<h2>Deletions that failed</h2>" + html.table(
        "Deletions", ("segment", "attempts", "last", "why"), rows, frozenset({1})
    )


def _segments(content: PartitionContent, path: str) -> str:
    due = [each for each in content.segments if each.end_offset >= content.start]
    rows = [
        (
            _named(segment, path),
            html.size(segment.size),
            escape(html.moment(segment.max_timestamp)),
            escape(segment.state.name),
        )
        for segment in due[:MOST_ROWS]
    ]
    more = ""
    if len(due) > MOST_ROWS:
        more = f"<p>{html.link(f'{path}?start={due[MOST_ROWS].start_offset}#segments', 'The next ones')}</p>"
    shown = html.table("Segments", ("offsets", "size", "last time", "state"), rows, frozenset({1}))
    return f'<h2 id="segments">Remote segments from offset {content.start:,} on</h2>{shown}{more}'


def _named(segment: RemoteLogSegmentMetadata, path: str) -> str:
    text = f"{segment.start_offset:,} to {segment.end_offset:,}"
    return html.link(f"{path}/segments/{segment.segment_id.id}", text)
