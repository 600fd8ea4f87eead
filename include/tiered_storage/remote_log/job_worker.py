"""What a worker of a job in groups begins with: the job and its store, opened by the job's place alone.

The secrets of a store come from the worker's environment (AWS_*), as every tool of that store takes them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Generic

from tiered_storage.remote_log.job_groups import Description, JobDescription, JobFolder
from tiered_storage.remote_log.storage import RemoteStorageManager
from tiered_storage.remote_log.storage.object_client import ObjectStoreOptions
from tiered_storage.remote_log.storage.opening import load_remote_storage_manager, open_object_client
from tiered_storage.remote_log.work_area import WorkArea


@dataclass(frozen=True, slots=True)
class OpenedJob(Generic[Description]):
    """A job with all that a worker needs for it."""

    folder: JobFolder
    description: Description
    storage: RemoteStorageManager


@contextmanager
def opened_job(
    work_url: str, folder: str, kind: type[Description], environ: Mapping[str, str] = os.environ
) -> Iterator[OpenedJob[Description]]:
    """Open the job in `folder` below `work_url`, described by a `kind`, and its store, for a `with`.

    Raises RemoteObjectNotFoundError where there is no such job, and ConfigurationError where it is of another kind.
    """
    options = options_of(environ)
    with closing(WorkArea(work_url, open_object_client(work_url, options))) as work:
        job = JobFolder(work, folder)
        description = job.description(kind)
        reached = description.reached_with(options)
        storage = load_remote_storage_manager(description.storage_class, description.storage_url, reached)
        with closing(storage):
            yield OpenedJob(job, description, storage)


def group_count(work_url: str, folder: str, environ: Mapping[str, str] = os.environ) -> int:
    """Return how many groups the job in `folder` below `work_url` has, of whatever kind it is."""
    with closing(WorkArea(work_url, open_object_client(work_url, options_of(environ)))) as work:
        return JobFolder(work, folder).description(JobDescription).groups


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
