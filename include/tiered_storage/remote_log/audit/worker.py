"""What a worker does with one group of a deep audit: opens the store, reads, leaves results, closes."""

from __future__ import annotations

import os
from collections.abc import Mapping

from tiered_storage.remote_log.audit.job import AuditJob, AuditJobDescription
from tiered_storage.remote_log.jobs.throttle import RateLimit
from tiered_storage.remote_log.jobs.worker import JobAccess, opened_job


def run_audit_group(access: JobAccess, number: int, environ: Mapping[str, str] = os.environ) -> int:
    """Audit the segments of group `number` of a job; return how many were read."""
    with opened_job(access, AuditJobDescription, environ) as opened:
        job = AuditJob(opened.folder, opened.description.groups)
        return job.run_group(number, opened.storage, RateLimit(opened.description.bytes_per_second))
