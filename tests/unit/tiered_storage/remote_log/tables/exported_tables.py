"""Exports for tests: one interval of a topic, and what a reader of its files finds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from support.remote_logs import NOW, RemoteLogFiles, unsynced
from tiered_storage.remote_log.tables.export_job import ExportRequest, run_export_groups
from tiered_storage.remote_log.tables.exports import BegunExport, ExportReport
from tiered_storage.remote_log.tables.layout import Interval
from tiered_storage.remote_log.tables.query import TableQuery

INTERVAL = Interval(NOW + 3_000, NOW + 24_000)
"""Record n has the timestamp NOW + n seconds: offsets 3 to 23."""
FOLDER = "interval=2023-11-14T22-13-23Z_2023-11-14T22-13-44Z"


def request(files: RemoteLogFiles, **changes: Any) -> ExportRequest:
    """The export of INTERVAL of orders, in blocks of 8 offsets."""
    usual = ExportRequest(TableQuery("orders"), INTERVAL, target(files).as_uri(), block_offsets=8)
    return replace(usual, **changes)


def target(files: RemoteLogFiles) -> Path:
    return files.root / "exports"


def interval_folder(files: RemoteLogFiles) -> Path:
    return target(files) / "orders" / FOLDER


def work(export: BegunExport, folder: str = "runs/export/1") -> ExportReport:
    """Do all of a begun export in this thread."""
    job = export.write_job(folder)
    for number in range(job.groups):
        run_export_groups(export.context.access(job.files), [number])
    return export.commit(list(job.outcomes()))


def export(files: RemoteLogFiles, owner: str = "run", **changes: Any) -> ExportReport:
    with unsynced(), files.open() as remote_log, remote_log.tables.export(request(files, **changes), owner) as begun:
        return work(begun)


def offsets(files: RemoteLogFiles, partition: int = 0) -> list[int]:
    """The offsets of one partition in all files that a reader of *.parquet finds, in the order of their names."""
    found: list[int] = []
    for path in sorted(interval_folder(files).glob(f"{partition:05d}-*.parquet")):
        table = pq.read_table(path)
        assert table.column("partition").unique().to_pylist() == [partition]
        found += table.column("offset").to_pylist()
    return found
