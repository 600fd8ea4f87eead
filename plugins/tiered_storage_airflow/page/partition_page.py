"""The page of one partition: what lies where, how far copying is behind, what is stuck, and its remote segments."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from tiered_storage.remote_log.metadata.safety import DeletionFailure
from tiered_storage.remote_log.model import RemoteLogSegmentId, RemoteLogSegmentMetadata, TopicIdPartition
from tiered_storage.remote_log.read.partition_view import PartitionView
from tiered_storage_airflow.page import html
from tiered_storage_airflow.page.html import of_partition, trail_to
from tiered_storage_airflow.page.partition_content import PartitionContent
from tiered_storage_airflow.page.picture import Bar, Part, bars, strip
from tiered_storage_airflow.page.regions import Place, regions_of

MOST_ALARMS = 10
TIME_BUCKETS = 40


def offsets_strip(root: str, view: PartitionView) -> str:
    """Return what lies where by offset; each part leads to the segments that begin with it."""
    parts = [
        Part(
            region.place.value,
            region.start,
            region.end,
            f"{html.LEGEND[region.place]}: offsets {region.start:,} to {region.end - 1:,}",
            _segments_from(root, view, region.start),
        )
        for region in regions_of(view)
    ]
    ends = (f"offset {parts[0].start:,}", f"{parts[-1].end:,}") if parts else ("", "")
    return strip("By offset", parts, ends)


def partition_page(root: str, content: PartitionContent) -> str:
    """Return the page."""
    partition = content.view.partition
    pieces = [
        _alarms(content),
        html.figures(_figures(content)),
        html.legend(),
        offsets_strip(root, content.view),
        _times_strip(root, content),
        _bytes_over_time(content.view),
        _peek(root, content),
        _under_way(root, content),
        _failures(root, content.listed.failures),
        _segments(root, content),
    ]
    return html.page(root, str(partition), trail_to(partition)[:1], "".join(pieces))


def records_form(root: str, partition: TopicIdPartition, offset: int) -> str:
    """Return the form that asks for records."""
    action = of_partition(root, partition, "/records").partition("?")[0]
    return (
        f'<form action="{escape(action)}"><input type="hidden" name="topic_id" value="{escape(partition.topic_id)}">'
        f'<label>offset<input name="offset" type="number" min="0" value="{offset}"></label><button>Look</button></form>'
    )


def _segments_from(root: str, view: PartitionView, offset: int) -> str:
    return of_partition(root, view.partition, start=offset) + "#segments"


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
        told.append(html.local_tier_is_hidden(answer.local_problem))
    if answer.delete_state is not None:
        told.append(f"The partition is being deleted: {answer.delete_state}.")
    missing = [region for region in regions_of(content.view) if region.place is Place.MISSING]
    told += [
        f"Offsets {region.start:,} to {region.end - 1:,} are in neither tier: 'tiered-storage audit' tells of it."
        for region in missing[:MOST_ALARMS]
    ]
    if len(missing) > MOST_ALARMS:
        told.append(f"{len(missing) - MOST_ALARMS:,} more ranges of offsets are in neither tier.")
    return html.alarms(told)


def _times_strip(root: str, content: PartitionContent) -> str:
    """Return what lies where by time: of remote segments by their largest timestamps, and what is local behind them."""
    view, times = content.view, content.times
    parts: list[Part] = []
    reached = times.first

    def add(place: Place, end: int | None, offset: int) -> None:
        """Let `place` reach up to `end`, or not at all where another one has reached that far."""
        nonlocal reached
        if end is None or end < 0 or (reached is not None and (end < reached or (end == reached and parts))):
            return
        begin, link = end if reached is None else reached, _segments_from(root, view, offset)
        if parts and parts[-1].kind == place.value:
            last = parts.pop()
            begin, link = int(last.start), last.link or link
        title = f"{html.LEGEND[place]}: {html.moment(begin)} to {html.moment(end)}"
        parts.append(Part(place.value, begin, max(end, begin + 1), title, link))
        reached = end

    for covered in view.coverage.ranges:
        is_local = view.local is not None and covered.start_offset >= view.local_start
        add(Place.BOTH if is_local else Place.REMOTE, covered.segment.max_timestamp, covered.start_offset)
    local = {region.place: region.start for region in regions_of(view)}
    if Place.LOCAL in local:
        until = times.active if Place.ACTIVE in local and times.active is not None else times.last
        add(Place.LOCAL, until, local[Place.LOCAL])
    if Place.ACTIVE in local:
        add(Place.ACTIVE, times.last, local[Place.ACTIVE])
    ends = (html.moment(int(parts[0].start)), html.moment(int(parts[-1].end))) if parts else ("", "")
    return strip("By time", parts, ends)


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


def _peek(root: str, content: PartitionContent) -> str:
    if not content.may_read:
        return "<p>You may see this topic, and not read its records.</p>"
    return "<h2>Records</h2>" + records_form(root, content.view.partition, content.answer.log_start_offset)


def _under_way(root: str, content: PartitionContent) -> str:
    rows = []
    for segment in content.listed.under_way:
        age = content.now - segment.event_timestamp
        state = "stands still" if age > content.stuck_after else "under way"
        rows.append((_named(root, segment), html.size(segment.size), f"for {html.span(age)}: {state}"))
    return "<h2>Copies that have not ended</h2>" + html.table(
        "Copies", ("offsets", "size", "since"), rows, frozenset({1})
    )


def _failures(root: str, failures: Sequence[DeletionFailure]) -> str:
    rows = [
        (
            html.link(_address_of(root, each.segment_id), each.segment_id.id),
            html.number(each.attempts),
            html.moment(each.last_failed_at),
            escape(each.error),
        )
        for each in failures
    ]
    return "<h2>Deletions that failed</h2>" + html.table(
        "Deletions", ("segment", "attempts", "last", "why"), rows, frozenset({1})
    )


def _segments(root: str, content: PartitionContent) -> str:
    listed = content.listed
    rows = [
        (
            _named(root, segment),
            html.size(segment.size),
            escape(html.moment(segment.max_timestamp)),
            escape(html.state(segment.state)),
        )
        for segment in listed.segments
    ]
    more = ""
    if listed.next_offset is not None:
        more = f"<p>{html.link(_segments_from(root, content.view, listed.next_offset), 'The next ones')}</p>"
    shown = html.table("Segments", ("offsets", "size", "last time", "state"), rows, frozenset({1}))
    return f'<h2 id="segments">Remote segments from offset {content.start:,} on</h2>{shown}{more}'


def _named(root: str, segment: RemoteLogSegmentMetadata) -> str:
    return html.link(_address_of(root, segment.segment_id), f"{segment.start_offset:,} to {segment.end_offset:,}")


def _address_of(root: str, segment_id: RemoteLogSegmentId) -> str:
    return of_partition(root, segment_id.topic_id_partition, f"/segments/{segment_id.id}")
