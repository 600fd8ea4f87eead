"""What a worker of a job in groups begins with: the job and its store, opened as whoever submitted the job says.

Which store it is, and the class that reaches it, come from the submitter alone (JobAccess), never from a file of the
work area: a worker hands that class the store's secrets. Those come from the worker's environment (AWS_*), as every
tool of that store takes them. The secret of the job signs what passes through the work area; work_area.py says how.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from typing import Generic, Self

from pydantic import TypeAdapter

from tiered_storage.errors import ConfigurationError
from tiered_storage.remote_log.jobs.groups import Description, JobDescription, JobFolder
from tiered_storage.remote_log.jobs.work_area import WorkArea
from tiered_storage.remote_log.storage.object_client import ObjectStoreOptions
from tiered_storage.remote_log.storage.opening import load_remote_storage_manager, open_object_client
from tiered_storage.remote_log.storage.remote_storage_manager import RemoteStorageManager
from tiered_storage.settings.settings import Settings

JOB_SECRET = "REMOTE_LOG_JOB_SECRET"  # noqa: S105 - the variable's name
"""The variable that has the job's secret in the environment of whoever hands the groups out."""


@dataclass(frozen=True, slots=True)
class StoreAccess:
    """Which store it is and where; no secrets."""

    storage_class: str
    storage_url: str
    endpoint: str | None
    region: str | None
    allow_http: bool

    @classmethod
    def of(cls, settings: Settings, options: ObjectStoreOptions) -> Self:
        """Describe the store of `settings`, reached as `options` say."""
        return cls(
            settings.remote_log_storage_manager_class_name,
            settings.rsm_config_url,
            options.endpoint,
            options.region,
            options.allow_http,
        )

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read what `to_text` wrote."""
        return TypeAdapter(cls).validate_json(text)

    def to_text(self) -> str:
        """Return it as JSON, for an argument of a program."""
        return TypeAdapter(type(self)).dump_json(self).decode()

    def options(self, environ: Mapping[str, str] = os.environ) -> ObjectStoreOptions:
        """Return how the store is reached with the secrets that `environ` has (AWS_*)."""
        return replace(options_of(environ), endpoint=self.endpoint, region=self.region, allow_http=self.allow_http)

    def open(self, environ: Mapping[str, str] = os.environ) -> RemoteStorageManager:
        """Open the store with the secrets that `environ` has; the caller closes it."""
        return load_remote_storage_manager(self.storage_class, self.storage_url, self.options(environ))


@dataclass(frozen=True, slots=True)
class JobAccess:
    """Where a job's messages are, its secret (hexadecimal), and the store it works on."""

    work_url: str
    folder: str
    store: StoreAccess
    secret: str = field(repr=False)

    @contextmanager
    def files(self, environ: Mapping[str, str]) -> Iterator[JobFolder]:
        """Open the job's messages for a `with`. Raises ConfigurationError if there is no secret."""
        if not self.secret:
            raise ConfigurationError(
                f"{self.work_url}/{self.folder}: {JOB_SECRET} is not in the environment of Spark's driver, which needs "
                "it to read and sign the job's messages: submit with deploy mode client, where the driver has the "
                "environment of the Airflow task"
            )
        key = bytes.fromhex(self.secret)
        client = open_object_client(self.work_url, self.store.options(environ))
        with closing(WorkArea(self.work_url, client, lambda: key)) as work:
            yield JobFolder(work, self.folder)


@dataclass(frozen=True, slots=True)
class OpenedJob(Generic[Description]):
    """A job with all that a worker needs for it."""

    folder: JobFolder
    description: Description
    storage: RemoteStorageManager


@contextmanager
def opened_job(
    access: JobAccess, kind: type[Description], environ: Mapping[str, str] = os.environ
) -> Iterator[OpenedJob[Description]]:
    """Open a job described by a `kind`, and its store, for a `with`.

    Raises RemoteObjectNotFoundError if there is no such job, UntrustedMessageError, and ConfigurationError if it
    is of another kind.
    """
    with access.files(environ) as job:
        description = job.description(kind)
        with closing(access.store.open(environ)) as storage:
            yield OpenedJob(job, description, storage)


def group_count(access: JobAccess, environ: Mapping[str, str] = os.environ) -> int:
    """Return how many groups the job has, of whatever kind it is."""
    with access.files(environ) as job:
        return job.description(JobDescription).groups


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
