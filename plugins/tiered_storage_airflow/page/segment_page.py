"""The page of one remote segment: its content, its objects, its indexes, and the run that copied it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from tiered_storage.errors import TieredStorageError
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage.remote_log.model import RemoteLogSegmentMetadata
from tiered_storage.remote_log.storage.documents.object_names import segment_object_names
from tiered_storage_airflow.links import report_url
from tiered_storage_airflow.page.base import STATES, of_partition, page, trail_to
from tiered_storage_airflow.read_service.problem import ProblemError
from tiered_storage_airflow.read_service.routes.index_content import IndexName
from tiered_storage_airflow.read_service.service import OpenService
from tiered_storage_airflow.rendering import moment, number, size


@dataclass(frozen=True, slots=True)
class CopyingRun:
    """A run that copied a segment: the ids of its DAG and of itself, and the path of its report."""

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
    return page(
        "segment.html",
        root,
        f"Segment {own_id}",
        trail_to(partition),
        figures=_figures(segment),
        objects=(names.data, names.indexes, names.commit_marker),
        data=address("data") if may_read else None,
        indexes=[(name.value, address(f"indexes/{name.value}")) for name in IndexName],
        epochs=[(number(entry.epoch), number(entry.start_offset)) for entry in segment.leader_epochs],
        run=run,
    )


def _figures(segment: RemoteLogSegmentMetadata) -> Sequence[tuple[str, str]]:
    return (
        ("offsets", f"{segment.start_offset:,} to {segment.end_offset:,}"),
        ("size", size(segment.known_size)),
        ("state", STATES[segment.state]),
        ("last time of a record", moment(segment.max_timestamp)),
        ("in this state since", moment(segment.event_timestamp)),
        ("fencing number", number(segment.fencing_number)),
    )


SECONDS = 5.0
MOST_NAMES = 20_000
MOST_FILES = 300
MOST_FILE_BYTES = 8 << 20


async def find_run(service: OpenService, segment_id: str, cluster: str | None) -> CopyingRun | None:
    """Return the run if the work area still has it and the search takes less than SECONDS."""
    try:
        async with asyncio.timeout(SECONDS):
            return await service.threads.searching.run(lambda: _search(service.log, segment_id, cluster))
    except (TimeoutError, ProblemError, TieredStorageError):
        return None


def _search(log: RemoteLogManager, segment_id: str, cluster: str | None = None) -> CopyingRun | None:
    wanted = segment_id.encode()
    names = [name for name in islice(log.context.work.names("runs"), MOST_NAMES) if "/tasks" in name]
    # Copies come first, however many exports there are: exports are deeper, in folders of their own.
    latest_first = sorted(sorted(names, reverse=True), key=lambda name: name.count("/"))
    for name in islice(latest_first, MOST_FILES):
        for line in log.context.work.content(f"runs/{name}", MOST_FILE_BYTES).splitlines():
            # Audits and exports name the segment too, without a lease.
            if wanted in line and (found := _run_of(line, cluster)) is not None:
                return found
    return None


def _run_of(line: bytes, cluster: str | None) -> CopyingRun | None:
    """Return the run that a line with its lease names: the owner's name has both ids."""
    try:
        owner = str(json.loads(line)["lease"]["owner"])
    except (ValueError, KeyError, TypeError):
        return None
    dag_id, separator, run_id = owner.partition("/")
    return CopyingRun(dag_id, run_id, report_url(dag_id, run_id, cluster)) if separator and run_id else None
