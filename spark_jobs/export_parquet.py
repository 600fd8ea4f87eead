"""Export an interval of a topic to Parquet, a group of blocks of offsets in each task; job_stub.py says how."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from job_stub import run_groups

if TYPE_CHECKING:
    from tiered_storage.remote_log.jobs.worker import JobAccess


def export(access: JobAccess, groups: Sequence[int]) -> int:
    from tiered_storage.remote_log.tables.export_job import run_export_groups

    return run_export_groups(access, groups)


if __name__ == "__main__":
    blocks, groups = run_groups(__doc__, export)
    print(f"exported {blocks} blocks in {groups} groups")  # noqa: T201 - the driver's log is what Airflow shows
