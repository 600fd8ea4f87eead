"""The start of a worker in a job of groups: the job and its store, opened as the submitter of the job specified.

The store, its class and its secrets come only from the submitter (JobAccess), never from a file of the work area: a
worker passes the secrets to that class. The submitter gives the secrets to the driver in one environment variable, and
everything else by arguments; workers get both with each group. work_area.py defines what the job's key signs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Generic, Self

from tiered_storage.errors import ConfigurationError
from tiered_storage.remote_log.jobs.groups import Description, JobDescription, JobFolder
from tiered_storage.remote_log.jobs.work_area import WorkArea
from tiered_storage.remote_log.storage.clients.opening import open_object_client
from tiered_storage.remote_log.storage.clients.options import ObjectStoreOptions
from tiered_storage.remote_log.storage.documents.json_document import adapter_of
from tiered_storage.remote_log.storage.remote_storage_manager import RemoteStorageManager, load_remote_storage_manager
from tiered_storage.remote_log.storage.transforms.key_ring import KeyRing
from tiered_storage.settings.settings import Settings

JOB_SECRETS = "REMOTE_LOG_JOB_SECRETS"
"""The environment variable with the job's secrets, for the process that hands the groups out."""


@dataclass(frozen=True, slots=True)
class StoreAccess:
    """The store and its location, without secrets.

    `class_path` is where the class may be. `key_ring_file` is read by workers that get no keys.
    """

    storage_class: str
    storage_url: str
    reached: ObjectStoreOptions
    key_ring_file: str | None = None
    class_path: tuple[Path, ...] = ()

    @classmethod
    def of(cls, settings: Settings, options: ObjectStoreOptions) -> Self:
        """Return the store of `settings`, reached by `options`."""
        key_ring = settings.rsm_config_encryption_key_ring_file
        return cls(
            settings.remote_log_storage_manager_class_name,
            settings.rsm_config_url,
            options.without_secrets(),
            None if key_ring is None else str(key_ring),
            settings.remote_log_storage_manager_class_path,
        )

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read what `to_text` wrote."""
        return adapter_of(cls).validate_json(text)

    def to_text(self) -> str:
        """Return it as JSON, for an argument of a program."""
        return adapter_of(type(self)).dump_json(self).decode()

    def options(self, secrets: ObjectStoreOptions) -> ObjectStoreOptions:
        """Return how to reach the store with the keys of `secrets`."""
        if not secrets.key_ring.keys and self.key_ring_file is not None:
            secrets = replace(secrets, key_ring=KeyRing.load(Path(self.key_ring_file), None))
        return self.reached.with_secrets_of(secrets)

    def open(self, secrets: ObjectStoreOptions) -> RemoteStorageManager:
        """Open the store with the keys of `secrets`; the caller closes it."""
        return load_remote_storage_manager(self.storage_class, self.storage_url, self.options(secrets), self.class_path)


@dataclass(frozen=True, slots=True)
class JobSecrets:
    """The key that signs a job's messages (hexadecimal), the credentials of its store, and its key ring as text.

    Missing ones stand for the usual sources of the worker's machine; see ObjectStoreOptions. `source_access` is the way
    to the source of local logs, see SegmentSource.access.
    """

    signing_key: str = field(repr=False)
    store: ObjectStoreOptions
    key_ring: str | None = field(default=None, repr=False)
    source_access: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def of(
        cls, signing_key: bytes, options: ObjectStoreOptions, source_access: Mapping[str, str] | None = None
    ) -> Self:
        """Return the key and the secrets in `options`, and nothing else of them."""
        secrets = ObjectStoreOptions().with_secrets_of(replace(options, key_ring=KeyRing()))
        key_ring = options.key_ring.to_text() if options.key_ring.keys else None
        return cls(signing_key.hex(), secrets, key_ring, source_access or {})

    @property
    def options(self) -> ObjectStoreOptions:
        """The credentials of the store and its keys, and nothing else."""
        return replace(self.store, key_ring=KeyRing() if self.key_ring is None else KeyRing.parse(self.key_ring))


@dataclass(frozen=True, slots=True)
class JobAccess:
    """Where a job's messages are, the store it works on, and the secrets of both."""

    work_url: str
    folder: str
    store: StoreAccess
    secrets: JobSecrets

    @classmethod
    def parse(cls, work_url: str, folder: str, store: str, secrets: str) -> Self:
        """Read what `arguments` and `environment` gave. Raises ConfigurationError if there are no secrets."""
        if not secrets:
            raise ConfigurationError(
                f"{work_url}/{folder}: {JOB_SECRETS} is not in the environment of Spark's driver, which needs it to "
                "read and sign the job's messages: submit with deploy mode client, where the driver has the "
                "environment of the Airflow task"
            )
        return cls(work_url, folder, StoreAccess.parse(store), adapter_of(JobSecrets).validate_json(secrets))

    @property
    def arguments(self) -> list[str]:
        """The arguments of the job's program, without secrets: all users of a machine can read them."""
        return ["--work-url", self.work_url, "--job", self.folder, "--store", self.store.to_text()]

    @property
    def environment(self) -> dict[str, str]:
        """The variable with the secrets, for the environment of the job's program."""
        return {JOB_SECRETS: adapter_of(JobSecrets).dump_json(self.secrets).decode()}

    @property
    def options(self) -> ObjectStoreOptions:
        """How to reach the job's store, and everything else at the same endpoint."""
        return self.store.options(self.secrets.options)

    @contextmanager
    def files(self) -> Iterator[JobFolder]:
        """Open the job's messages for a `with`."""
        key = bytes.fromhex(self.secrets.signing_key)
        client = open_object_client(self.work_url, self.options)
        with closing(WorkArea(self.work_url, client, lambda: key)) as work:
            yield JobFolder(work, self.folder)


@dataclass(frozen=True, slots=True)
class OpenedJob(Generic[Description]):
    """A job with everything that a worker needs for it."""

    folder: JobFolder
    description: Description
    storage: RemoteStorageManager


@contextmanager
def opened_job(access: JobAccess, kind: type[Description]) -> Iterator[OpenedJob[Description]]:
    """Open a job described by a `kind`, and its store, for a `with`.

    Raises RemoteObjectNotFoundError if there is no such job, UntrustedMessageError, and ConfigurationError if it is of
    another kind.
    """
    with access.files() as job:
        description = job.description(kind)
        with closing(access.store.open(access.secrets.options)) as storage:
            yield OpenedJob(job, description, storage)


def described_job(access: JobAccess) -> JobDescription:
    """Return what all kinds of jobs describe."""
    with access.files() as job:
        return job.description(JobDescription)
