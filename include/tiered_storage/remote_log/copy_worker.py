"""What a worker does with one group of a copy job: opens the stores, copies, leaves results, closes.

The secrets of a store come from the worker's environment (AWS_*), as every tool of that store takes them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace

from tiered_storage.clock import Clock, wall_clock
from tiered_storage.remote_log.copy_job import CopyJob
from tiered_storage.remote_log.storage.object_client import ObjectStoreOptions
from tiered_storage.remote_log.storage.opening import load_remote_storage_manager, open_object_client
from tiered_storage.remote_log.work_area import WorkArea


def run_copy_group(
    work_url: str, folder: str, number: int, clock: Clock = wall_clock, environ: Mapping[str, str] = os.environ
) -> int:
    """Copy the segments of group `number` of the job in `folder` below `work_url`; return how many succeeded."""
    options = options_of(environ)
    with closing(WorkArea(work_url, open_object_client(work_url, options))) as work:
        job, description = CopyJob.read(work, folder)
        reached = replace(
            options, endpoint=description.endpoint, region=description.region, allow_http=description.allow_http
        )
        storage = load_remote_storage_manager(description.storage_class, description.storage_url, reached)
        with closing(storage):
            return job.run_group(number, storage, description.sizes, clock)


def group_count(work_url: str, folder: str, environ: Mapping[str, str] = os.environ) -> int:
    """Return how many groups the job in `folder` below `work_url` has."""
    with closing(WorkArea(work_url, open_object_client(work_url, options_of(environ)))) as work:
        return CopyJob.read(work, folder)[0].groups


def options_of(environ: Mapping[str, str]) -> ObjectStoreOptions:
    """Return how `environ` says that a store is reached; plain http only where the endpoint says so itself."""
    endpoint = environ.get("AWS_ENDPOINT_URL")
    return ObjectStoreOptions(
        endpoint=endpoint,
        region=environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION"),
        access_key_id=environ.get("AWS_ACCESS_KEY_ID"),
        secret_access_key=environ.get("AWS_SECRET_ACCESS_KEY"),
        session_token=environ.get("AWS_SESSION_TOKEN"),
        allow_http=endpoint is not None and endpoint.startswith("http://"),
    )
