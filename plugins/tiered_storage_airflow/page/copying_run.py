"""Which run copied a segment: the work area has what each run's workers were told to do."""

from __future__ import annotations

import asyncio
import json
from itertools import islice

from tiered_storage.errors import TieredStorageError
from tiered_storage.remote_log.manager import RemoteLogManager
from tiered_storage_airflow.links import report_url
from tiered_storage_airflow.page.segment_page import CopyingRun
from tiered_storage_airflow.read_service.problem import ProblemError
from tiered_storage_airflow.read_service.service import OpenService

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
