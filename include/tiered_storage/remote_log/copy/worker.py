"""What a worker does with one group of a copy job: opens the stores, copies, leaves results, closes."""

from __future__ import annotations

import os
from collections.abc import Mapping

from tiered_storage.clock import Clock, wall_clock
from tiered_storage.remote_log.copy.job import CopyJob, CopyJobDescription
from tiered_storage.remote_log.jobs.worker import JobAccess, opened_job


def run_copy_group(
    access: JobAccess, number: int, clock: Clock = wall_clock, environ: Mapping[str, str] = os.environ
) -> int:
    """Copy the segments of group `number` of a job; return how many succeeded."""
    with opened_job(access, CopyJobDescription, environ) as opened:
        job = CopyJob(opened.folder, opened.description.groups)
        return job.run_group(number, opened.storage, opened.description.sizes, clock)
