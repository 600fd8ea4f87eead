"""The page of one remote segment: what it holds, its objects, its indexes, and the run that copied it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import islice

from tiered_storage.errors import TieredStorageError
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata
from tiered_storage.remote_log.storage.object_names import segment_object_names
from tiered_storage_airflow.links import report_url
from tiered_storage_airflow.page import html
from tiered_storage_airflow.page.html import of_partition, trail_to
from tiered_storage_airflow.read_service.problem import ProblemError
from tiered_storage_airflow.read_service.routes.index_content import IndexName
from tiered_storage_airflow.read_service.service import OpenService


@dataclass(frozen=True, slots=True)
class CopyingRun:
    """A run that copied a segment: its DAG's id and its own, and where its report is."""

    dag_id: str
    run_id: str
    report: str


def segment_page(
    root: str, api: str, segment: RemoteLogSegmentMetadata, run: CopyingRun | None, *, may_read: bool
) -> str:
    """Return the page; `api` is the root of the read service."""
    partition, own_id = segment.topic_id_partition, segment.segment_id.id

    def address(below: str) -> str:
        return of_partition(api, partition, f"/segments/{own_id}/{below}")

    names = segment_object_names(segment.segment_id, segment.start_offset)
    objects = "".join(
        f"<li><code>{escape(name)}</code></li>" for name in (names.data, names.indexes, names.commit_marker)
    )
    indexes = "".join(f"<li>{html.link(address(f'indexes/{name.value}'), name.value)}</li>" for name in IndexName)
    content = (
        html.figures(_figures(segment))
        + f"<h2>Objects</h2><p>Below the root of the store:</p><ul>{objects}</ul>"
        + (f"<p>{html.link(address('data'), 'All bytes of the segment')}</p>" if may_read else "")
        + f"<h2>Indexes</h2><ul>{indexes}</ul><h2>Leader epochs</h2>{_epochs(segment)}<h2>Copied by</h2>{_run(run)}"
    )
    return html.page(root, f"Segment {own_id}", trail_to(partition), content)


def _figures(segment: RemoteLogSegmentMetadata) -> Sequence[tuple[str, str]]:
    return (
        ("offsets", f"{segment.start_offset:,} to {segment.end_offset:,}"),
        ("size", html.size(segment.size)),
        ("state", html.state(segment.state)),
        ("last time of a record", html.moment(segment.max_timestamp)),
        ("in this state since", html.moment(segment.event_timestamp)),
        ("fencing number", html.number(segment.fencing_number)),
    )


def _epochs(segment: RemoteLogSegmentMetadata) -> str:
    rows = [(html.number(entry.epoch), html.number(entry.start_offset)) for entry in segment.leader_epochs]
    return html.table("Leader epochs", ("epoch", "from offset"), rows, frozenset({0, 1}))


def _run(run: CopyingRun | None) -> str:
    if run is None:
        return "<p>No run was found in the work area: it may be cleaned up by now, or no DAG copied the segment.</p>"
    return f"<p>{escape(run.dag_id)}, {html.link(run.report, run.run_id)}</p>"


SECONDS = 5.0
MOST_NAMES = 20_000
MOST_FILES = 300
MOST_FILE_BYTES = 8 << 20


async def find_run(service: OpenService, segment_id: str) -> CopyingRun | None:
    """Return the run, if the work area still tells of it and that is found within SECONDS."""
    try:
        async with asyncio.timeout(SECONDS):
            return await service.searching.run(lambda: _search(service.log, segment_id))
    except (TimeoutError, ProblemError, TieredStorageError):
        return None


def _search(log: RemoteLogManager, segment_id: str) -> CopyingRun | None:
    wanted = segment_id.encode()
    names = [name for name in islice(log.work.names("runs"), MOST_NAMES) if "/tasks" in name]
    # Exports lie deeper, in folders of their tasks: however many there are, copies come before them.
    latest_first = sorted(sorted(names, reverse=True), key=lambda name: name.count("/"))
    for name in islice(latest_first, MOST_FILES):
        for line in log.work.content(f"runs/{name}", MOST_FILE_BYTES).splitlines():
            # Audits and exports name the segment too, without a lease.
            if wanted in line and (found := _told_by(line)) is not None:
                return found
    return None


def _told_by(line: bytes) -> CopyingRun | None:
    """Return what a line says of the run that holds its lease: the owner's name is both ids."""
    try:
        owner = str(json.loads(line)["lease"]["owner"])
    except (ValueError, KeyError, TypeError):
        return None
    dag_id, separator, run_id = owner.partition("/")
    return CopyingRun(dag_id, run_id, report_url(dag_id, run_id)) if separator and run_id else None
