"""The page of one partition: where its data are, how far copying lags, what is stuck, and its remote segments."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from markupsafe import Markup

from tiered_storage.remote_log.metadata.safety import DeletionFailure
from tiered_storage.remote_log.model import RemoteLogSegmentId, RemoteLogSegmentMetadata
from tiered_storage.remote_log.read.partition_snapshot import PartitionSnapshot
from tiered_storage_airflow.page.base import (
    LEGEND,
    STATES,
    link,
    local_tier_is_hidden,
    of_partition,
    page,
    records_form,
    trail_to,
)
from tiered_storage_airflow.page.partition_content import PartitionContent
from tiered_storage_airflow.page.picture import Bar, Bars, Part, Strip, bars, strip
from tiered_storage_airflow.page.regions import Place, regions_of
from tiered_storage_airflow.rendering import moment, number, size, span

MOST_ALARMS = 10
TIME_BUCKETS = 40


def offsets_strip(root: str, snapshot: PartitionSnapshot) -> Strip:
    """Return the places by offset; each part links to the segments that begin with it."""
    parts = [
        Part(
            region.place.value,
            region.start,
            region.end,
            f"{LEGEND[region.place]}: offsets {region.start:,} to {region.end - 1:,}",
            _segments_from(root, snapshot, region.start),
        )
        for region in regions_of(snapshot)
    ]
    ends = (f"offset {parts[0].start:,}", f"{parts[-1].end:,}") if parts else ("", "")
    return strip("By offset", parts, ends)


def partition_page(root: str, content: PartitionContent) -> str:
    """Return the page."""
    partition, following = content.snapshot.partition, content.listed.next_offset
    return page(
        "partition.html",
        root,
        str(partition),
        trail_to(partition)[:1],
        alarms=_alarms(content),
        figures=_figures(content),
        legend=LEGEND,
        by_offset=offsets_strip(root, content.snapshot),
        by_time=_times_strip(root, content),
        bytes_over_time=_bytes_over_time(content.snapshot),
        may_read=content.may_read,
        records_form=records_form(root, partition, content.answer.log_start_offset),
        under_way=_under_way(root, content),
        failures=_failures(root, content.listed.failures),
        start=content.start,
        segments=_segments(root, content),
        more=None if following is None else _segments_from(root, content.snapshot, following),
    )


def _segments_from(root: str, snapshot: PartitionSnapshot, offset: int) -> str:
    return of_partition(root, snapshot.partition, start=offset) + "#segments"


def _figures(content: PartitionContent) -> Iterable[tuple[str, str]]:
    answer = content.answer
    yield "log start", number(answer.log_start_offset)
    yield "first local offset", number(answer.earliest_local_offset)
    yield "last remote offset", number(answer.latest_tiered_offset)
    yield "log end", number(answer.log_end_offset)
    yield "not copied yet", f"{answer.lag_offsets:,} offsets"
    yield "closed and not copied", _closed_lag(content.snapshot)
    yield "remote", f"{size(answer.remote_bytes)}, {answer.remote_segments:,} segments"
    yield "local", f"{size(answer.local_bytes)}, {answer.local_segments:,} segments"


def _closed_lag(snapshot: PartitionSnapshot) -> str:
    closed = [] if snapshot.local is None else snapshot.local.closed_segments
    due = [each for each in closed if each.end_offset is not None and each.end_offset >= snapshot.remote_end]
    return f"{size(sum(each.size for each in due))}, {len(due):,} segments"


def _alarms(content: PartitionContent) -> list[str]:
    answer, alarms = content.answer, []
    if answer.local_problem is not None:
        alarms.append(local_tier_is_hidden(answer.local_problem))
    if answer.delete_state is not None:
        alarms.append(f"The partition is being deleted: {answer.delete_state}.")
    missing = [region for region in regions_of(content.snapshot) if region.place is Place.MISSING]
    alarms += [
        f"Offsets {region.start:,} to {region.end - 1:,} are in neither tier; 'tiered-storage audit' reports details."
        for region in missing[:MOST_ALARMS]
    ]
    if len(missing) > MOST_ALARMS:
        alarms.append(f"{len(missing) - MOST_ALARMS:,} more ranges of offsets are in neither tier.")
    return alarms


def _times_strip(root: str, content: PartitionContent) -> Strip:
    """Return the places by time: remote segments by their largest timestamps, and local ones after them."""
    snapshot, times = content.snapshot, content.times
    parts: list[Part] = []
    reached = times.first

    def add(place: Place, end: int | None, offset: int) -> None:
        """Extend `place` to `end`, unless another place reaches that far already."""
        nonlocal reached
        if end is None or end < 0 or (reached is not None and (end < reached or (end == reached and parts))):
            return
        begin, address = end if reached is None else reached, _segments_from(root, snapshot, offset)
        if parts and parts[-1].kind == place.value:
            last = parts.pop()
            begin, address = int(last.start), last.link or address
        title = f"{LEGEND[place]}: {moment(begin)} to {moment(end)}"
        parts.append(Part(place.value, begin, max(end, begin + 1), title, address))
        reached = end

    for covered in snapshot.coverage.ranges:
        is_local = snapshot.local is not None and covered.start_offset >= snapshot.local_start
        add(Place.BOTH if is_local else Place.REMOTE, covered.segment.max_timestamp, covered.start_offset)
    local = {region.place: region.start for region in regions_of(snapshot)}
    if Place.LOCAL in local:
        until = times.active if Place.ACTIVE in local and times.active is not None else times.last
        add(Place.LOCAL, until, local[Place.LOCAL])
    if Place.ACTIVE in local:
        add(Place.ACTIVE, times.last, local[Place.ACTIVE])
    ends = (moment(int(parts[0].start)), moment(int(parts[-1].end))) if parts else ("", "")
    return strip("By time", parts, ends)


def _bytes_over_time(snapshot: PartitionSnapshot) -> Bars | None:
    timed = [each for each in snapshot.coverage.ranges if each.segment.max_timestamp >= 0]
    if not timed:
        return None
    first = min(each.segment.max_timestamp for each in timed)
    last = max(each.segment.max_timestamp for each in timed)
    width = max(1, -(-(last - first + 1) // TIME_BUCKETS))
    buckets = [0] * min(TIME_BUCKETS, (last - first) // width + 1)
    for each in timed:
        buckets[(each.segment.max_timestamp - first) // width] += each.size
    drawn = [
        Bar(held, f"{size(held)} with times from {moment(first + at * width)} on") for at, held in enumerate(buckets)
    ]
    return bars("Remote bytes over time", drawn, (moment(first), moment(last)))


def _under_way(root: str, content: PartitionContent) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for segment in content.listed.under_way:
        age = content.now - segment.event_timestamp
        state = "stuck" if age > content.stuck_after else "in progress"
        rows.append((_named(root, segment), size(segment.known_size), f"for {span(age)}: {state}"))
    return rows


def _failures(root: str, failures: Sequence[DeletionFailure]) -> list[tuple[str, ...]]:
    return [
        (
            link(_address_of(root, each.segment_id), each.segment_id.id),
            number(each.attempts),
            moment(each.last_failed_at),
            each.error,
        )
        for each in failures
    ]


def _segments(root: str, content: PartitionContent) -> list[tuple[str, ...]]:
    return [
        (_named(root, segment), size(segment.known_size), moment(segment.max_timestamp), STATES[segment.state])
        for segment in content.listed.segments
    ]


def _named(root: str, segment: RemoteLogSegmentMetadata) -> Markup:
    return link(_address_of(root, segment.segment_id), f"{segment.start_offset:,} to {segment.end_offset:,}")


def _address_of(root: str, segment_id: RemoteLogSegmentId) -> str:
    return of_partition(root, segment_id.topic_id_partition, f"/segments/{segment_id.id}")
