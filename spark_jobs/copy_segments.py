"""Copy the segments of one job to the remote tier, a group of partitions in each task; job_stub.py says how."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from job_stub import run_groups

if TYPE_CHECKING:
    from tiered_storage.remote_log.jobs.worker import JobAccess


def copy(access: JobAccess, groups: Sequence[int]) -> int:
    from tiered_storage.remote_log.copy.job import run_copy_groups

    return run_copy_groups(access, groups)


if __name__ == "__main__":
    segments, groups = run_groups(__doc__, copy)
    print(f"copied {segments} segments in {groups} groups")  # noqa: T201 - the driver's log is what Airflow shows
