"""Read the segments of one deep audit back and check every byte, a group of partitions in each task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from job_stub import run_groups

if TYPE_CHECKING:
    from tiered_storage.remote_log.jobs.worker import JobAccess


def audit(access: JobAccess, groups: Sequence[int]) -> int:
    from tiered_storage.remote_log.audit.job import run_audit_groups

    return run_audit_groups(access, groups)


if __name__ == "__main__":
    segments, groups = run_groups(__doc__, audit)
    print(f"read {segments} segments in {groups} groups")  # noqa: T201 - the driver's log is what Airflow shows
