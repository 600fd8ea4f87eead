"""What a worker does with one group of an export: opens both stores, reads, writes files, leaves results, closes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import closing

from tiered_storage.remote_log.jobs.worker import JobAccess, opened_job
from tiered_storage.remote_log.storage.opening import open_object_client
from tiered_storage.remote_log.tables.export_job import ExportJob, ExportJobDescription


def run_export_group(access: JobAccess, number: int, environ: Mapping[str, str] = os.environ) -> int:
    """Export the blocks of group `number` of a job; return how many were written."""
    with opened_job(access, ExportJobDescription, environ) as opened:
        description = opened.description
        with closing(open_object_client(description.export_url, access.store.options(environ))) as target:
            job = ExportJob(opened.folder, description.groups, description.attempt)
            return job.run_group(number, opened.storage, target, description)
