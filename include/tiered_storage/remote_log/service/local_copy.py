"""A copy run in this process: the steps of a run from Airflow, with threads in place of Spark."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from threading import Event
from typing import TypeAlias

from tiered_storage.remote_log.copy.job import CopyJob
from tiered_storage.remote_log.copy.start import BegunCopy
from tiered_storage.remote_log.copy.tasks import CommitReport
from tiered_storage.remote_log.jobs.groups import JobFolder, JobThreads
from tiered_storage.remote_log.jobs.progress import JobSize, JobWatch
from tiered_storage.remote_log.jobs.throttle import QuotaLimit
from tiered_storage.remote_log.manager import RemoteLogManager

Watching: TypeAlias = Callable[[JobFolder, JobSize, Callable[[], None]], AbstractContextManager[JobWatch]]
"""Watches a job while it runs; calls its last argument once if no byte moves any more."""


def copy_in_threads(
    remote_log: RemoteLogManager,
    begun: BegunCopy,
    folder: str,
    workers: int,
    watching: Watching,
    *,
    progress_seconds: float,
    limit: QuotaLimit | None = None,
) -> tuple[CommitReport, bool]:
    """Copy and commit in this process, and release the leases; also return whether copies hung.

    The job's files are in `folder` of the work area. `limit` is shared with other runs; None: the run has the quota of
    the settings for itself. The report's failures include what could not be begun. Threads of hung copies still run.
    """
    context, given_up = remote_log.context, Event()
    with remote_log.held(begun, lambda: not given_up.is_set()):
        job = remote_log.write_copy_job(folder, begun)
        _, description = CopyJob.read(context.work, job.files.folder)
        shared = QuotaLimit(description.quota) if limit is None else limit

        def run_group(number: int) -> None:
            storage, clock, access = context.storage, context.clock, context.source.access
            job.run_group(number, storage, description.sizes, clock, progress_seconds, shared, access)

        threads = JobThreads(job.groups, workers, run_group)

        def give_up() -> None:
            given_up.set()
            threads.give_up()

        with watching(job.files, job.size_of(begun.tasks), give_up) as watch:
            threads.run()
        report = remote_log.commit_copy(job.outcomes(watch.stuck))
    return replace(report, failures=(*begun.failed, *report.failures)), watch.stuck is not None
