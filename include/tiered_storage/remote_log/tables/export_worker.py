"""What a worker does with one group of an export: opens both stores, reads, writes files, leaves results, closes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import closing

from tiered_storage.remote_log.job_worker import opened_job, options_of
from tiered_storage.remote_log.storage.opening import open_object_client
from tiered_storage.remote_log.tables.export_job import ExportJob, ExportJobDescription


def run_export_group(work_url: str, folder: str, number: int, environ: Mapping[str, str] = os.environ) -> int:
    """Export the blocks of group `number` of the job in `folder` below `work_url`; return how many were written."""
    with opened_job(work_url, folder, ExportJobDescription, environ) as opened:
        description = opened.description
        reached = description.reached_with(options_of(environ))
        with closing(open_object_client(description.export_url, reached)) as target:
            job = ExportJob(opened.folder, description.groups, description.attempt)
            return job.run_group(number, opened.storage, target, description)
