"""The open parts of a remote log: what every operation on it works with."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self
from urllib.parse import unquote, urlsplit

from tiered_storage.clock import BootClock, Clock, machine_boot_time
from tiered_storage.errors import ConfigurationError, MetadataMissingError
from tiered_storage.private_files import narrow
from tiered_storage.redaction import SecretUrl, refuse_credentials_in_endpoint
from tiered_storage.remote_log.jobs.groups import JobFolder
from tiered_storage.remote_log.jobs.work_area import WorkArea
from tiered_storage.remote_log.jobs.worker import JobAccess, JobSecrets, StoreAccess
from tiered_storage.remote_log.metadata.generation import GenerationGuard, GuardedSafety, GuardedTopics
from tiered_storage.remote_log.metadata.metadata_store import MetadataStore, MetadataStoreFactory
from tiered_storage.remote_log.metadata.remote_log_metadata_manager import (
    Leases,
    RemoteLogMetadataManager,
    Topic,
    Topics,
)
from tiered_storage.remote_log.metadata.safety import Safety, Stop
from tiered_storage.remote_log.model import TopicIdPartition
from tiered_storage.remote_log.selection import Selection
from tiered_storage.remote_log.source.opening import client_properties_of, open_source, why_hidden
from tiered_storage.remote_log.source.partition_log import PartitionLog, name_of
from tiered_storage.remote_log.source.segment_source import SegmentSource
from tiered_storage.remote_log.storage.clients.opening import open_object_client
from tiered_storage.remote_log.storage.clients.options import ObjectStoreOptions, options_of
from tiered_storage.remote_log.storage.listable_storage import as_listable
from tiered_storage.remote_log.storage.remote_storage_manager import RemoteStorageManager, load_remote_storage_manager
from tiered_storage.remote_log.storage.transforms.encoding import Encoding
from tiered_storage.remote_log.storage.transforms.key_ring import KeyRing
from tiered_storage.remote_log.tiering_policy import decided_topic, effective
from tiered_storage.settings.own_managers import (
    COMMON_CLIENT_PREFIX,
    METADATA_CACHE_OPTION,
    METADATA_MANAGER,
    METADATA_WRITE_OPTION,
)
from tiered_storage.settings.settings import Settings


def store_options(settings: Settings, environ: Mapping[str, str] = os.environ) -> ObjectStoreOptions:
    """Return how to reach the object store: from the settings, and from `environ` (AWS_*) for secrets and defaults.

    Raises as configured_options.
    """
    return configured_options(settings, options_of(environ))


def configured_options(settings: Settings, given: ObjectStoreOptions) -> ObjectStoreOptions:
    """Return how to reach the object store: from the settings, and from `given` for secrets and what they leave out.

    Raises ConfigurationError for an endpoint with credentials: endpoints travel in programs' arguments and in logs.
    """
    try:
        refuse_credentials_in_endpoint(given.endpoint or "")
    except ValueError as error:
        raise ConfigurationError(f"AWS_ENDPOINT_URL, or the endpoint of the Airflow connection: {error}") from None
    # An Azure endpoint from the environment or from a connection is among the properties.
    is_azure = settings.rsm_config_url.startswith("az:")
    external_id = settings.rsm_config_role_external_id
    return replace(
        given,
        endpoint=settings.rsm_config_endpoint or (None if is_azure else given.endpoint),
        region=settings.rsm_config_region or given.region,
        allow_http=settings.rsm_config_allow_http,
        key_ring=key_ring(settings),
        roles=settings.rsm_config_role_arn or given.roles,
        role_arguments={"ExternalId": external_id} if external_id else given.role_arguments,
        sts_endpoint=settings.rsm_config_sts_endpoint or given.sts_endpoint,
        ca_bundle=str(settings.rsm_config_ca_bundle) if settings.rsm_config_ca_bundle else given.ca_bundle,
        path_style=settings.rsm_config_path_style_access and given.path_style,
        requester_pays=settings.rsm_config_requester_pays,
        server_side_encryption=settings.rsm_config_server_side_encryption,
        kms_key_id=settings.rsm_config_kms_key_id,
        conditional_writes=settings.rsm_config_conditional_writes,
        configs=settings.rsm_config,
    )


def key_ring(settings: Settings) -> KeyRing:
    """Return the key ring that the settings name. An invalid one raises later, for a segment that needs it."""
    return KeyRing.load(settings.rsm_config_encryption_key_ring_file, settings.rsm_config_encryption_key_pair_id)


def misplaced(settings: Settings) -> list[str]:
    """Return the conflicts between places: a log directory and one of our folders, one inside the other."""
    named = [(log_dir, "log.dirs") for log_dir in settings.log_dirs]
    named += [(log_dir, "broker.log.dirs") for of_broker in settings.broker_log_dirs.values() for log_dir in of_broker]
    places = dict.fromkeys(named)
    return [why for log_dir, name in places for why in overlaps(settings, log_dir, f"{log_dir} of {name}")]


def overlaps(settings: Settings, log_dir: Path, shown: str) -> list[str]:
    """Return which of our places lie inside the log directory `log_dir`, or hold it; messages name it `shown`.

    A broker does not start on folders that are not partitions, and an audit of the store takes a log's files for
    orphans. Only places on this machine are checked.
    """
    urls = {"rsm.config.url": settings.rsm_config_url, "work.url": settings.work_url, "export.url": settings.export_url}
    folders = {name: Path(unquote(urlsplit(url).path)) for name, url in urls.items() if url.startswith("file://")}
    places = {**folders, "state.directory": settings.state_directory}
    # An invalid URL is refused when it is opened.
    with suppress(ConfigurationError):
        if (file := metadata_file(settings)) is not None:
            places["rlmm.config.url"] = file
    found, logs = [], log_dir.resolve()
    for name, place in places.items():
        resolved = place.resolve()
        if resolved.is_relative_to(logs):
            found.append(f"{name} is {resolved}, inside {shown}: name a folder outside of it")
        elif logs.is_relative_to(resolved) and name in folders:
            found.append(f"{shown} lies inside {resolved}, which is {name}: name another folder")
    return found


def open_storage(settings: Settings, options: ObjectStoreOptions) -> RemoteStorageManager:
    """Open the RemoteStorageManager that the settings name; the caller closes it."""
    return load_remote_storage_manager(
        settings.remote_log_storage_manager_class_name,
        settings.rsm_config_url,
        options,
        settings.remote_log_storage_manager_class_path,
    )


def open_work_area(settings: Settings, options: ObjectStoreOptions) -> WorkArea:
    """Open the work area for reports only; the caller closes it."""
    return WorkArea(settings.work_url, open_object_client(settings.work_url, options))


def open_metadata(
    settings: Settings,
    clock: Clock,
    *,
    create: bool = False,
    client_properties: Mapping[str, str] | None = None,
) -> MetadataStore:
    """Open the metadata store that the settings name; the caller closes it. Raises MetadataMissingError.

    `client_properties`, as open_source, are how a metadata topic's cluster is reached unless its own settings say so.
    """
    return _metadata_factory(settings).open(
        settings.rlmm_config_url.get_secret_value(),
        clock,
        busy_timeout_ms=settings.metadata_busy_timeout_ms,
        create=create,
        configs=metadata_configs(settings, client_properties),
    )


def metadata_configs(settings: Settings, client_properties: Mapping[str, str] | None = None) -> Mapping[str, str]:
    """Return the options of the metadata's class; those of a metadata topic have the cluster's own client properties.

    If the options name brokers themselves, they get none of these, so that no login is sent to another cluster. Raises
    ConfigurationError for an invalid file of client properties.
    """
    if not settings.has_metadata_topic:
        return settings.rlmm_config
    ours = {
        METADATA_CACHE_OPTION: str(settings.state_directory / "metadata-topic"),
        # A heartbeat leaves more than half of a lease, in which what its holder writes arrives or is dropped.
        METADATA_WRITE_OPTION: str(settings.lease_duration_ms // 2),
    }
    if any(name.endswith(".bootstrap.servers") for name in settings.rlmm_config):
        return {**ours, **settings.rlmm_config}
    found = client_properties_of(settings) if client_properties is None else client_properties
    servers = {"bootstrap.servers": settings.bootstrap_servers} if settings.bootstrap_servers else {}
    common = {COMMON_CLIENT_PREFIX + name: value for name, value in {**found, **servers}.items()}
    return {**ours, **common, **settings.rlmm_config}


def _metadata_factory(settings: Settings) -> MetadataStoreFactory:
    return MetadataStoreFactory.load(
        settings.remote_log_metadata_manager_class_name, settings.remote_log_metadata_manager_class_path
    )


def _are_metadata_there(settings: Settings) -> bool:
    return _metadata_factory(settings).is_there(settings.rlmm_config_url.get_secret_value(), settings.rlmm_config)


def metadata_file(settings: Settings) -> Path | None:
    """Return the file on this machine that the metadata are in; None if there is none. Raises ConfigurationError."""
    return _metadata_factory(settings).local_file(settings.rlmm_config_url.get_secret_value(), settings.rlmm_config)


def _metadata_location(settings: Settings) -> str:
    return _metadata_factory(settings).location(settings.rlmm_config_url.get_secret_value(), settings.rlmm_config)


def ensure_sql_metadata(settings: Settings) -> None:
    """Raise ConfigurationError if the user's own class has the metadata: only a SQL database is written as a whole.

    That beside a metadata topic is one too.
    """
    if settings.has_own_metadata_manager and not settings.has_metadata_topic:
        raise ConfigurationError(
            f"remote.log.metadata.manager.class.name is {settings.remote_log_metadata_manager_class_name}: only "
            "metadata in SQLite or PostgreSQL can be moved, restored or rebuilt: use the means of your own store, or "
            "take the setting out; rebuild-metadata --into FILE can still write a SQLite file"
        )


def stop_by_metadata_alone(settings: Settings, reason: str, stopped_by: str, clock: Clock) -> Stop | None:
    """Stop all deletions even if only the metadata store can be opened; return the recorded stop.

    Only those of `settings` that locate the metadata are used: load them with WHERE_METADATA_ARE, so that no other
    setting needs to be valid. Raises what the metadata store raises.
    """
    with open_metadata(settings, clock) as store:
        store.safety.stop(reason, stopped_by)
        return store.safety.stopped()


def _ensure_unowned(storage: RemoteStorageManager, settings: Settings) -> None:
    """Raise MetadataMissingError if the object store belongs to metadata, which are missing."""
    listable = as_listable(storage)
    identity = None if listable is None else listable.find_identity()
    if identity is not None:
        raise MetadataMissingError(
            f"{_metadata_location(settings)}: there are no metadata, and the store "
            f"{settings.rsm_config_url} belongs to the metadata {identity.metadata_uuid}: correct rlmm.config.url, "
            "put their backup back with 'tiered-storage metadata restore', or rebuild them with 'tiered-storage "
            "rebuild-metadata'"
        )


@dataclass(frozen=True, slots=True)
class RemoteLogContext:
    """The open parts of a remote log, until the end of a `with`, or `close`."""

    settings: Settings
    clock: Clock
    options: ObjectStoreOptions
    store: MetadataStore
    storage: RemoteStorageManager
    work: WorkArea
    source: SegmentSource
    boot_clock: BootClock
    scratch: TemporaryDirectory[str] | None = None
    """The folder of temporary metadata, created for a command that only looks."""

    @classmethod
    def open(
        cls,
        settings: Settings,
        clock: Clock,
        options: ObjectStoreOptions,
        *,
        create: bool = False,
        only_looks: bool = False,
        outdated: bool = False,
        boot_clock: BootClock = machine_boot_time,
        client_properties: Mapping[str, str] | None = None,
    ) -> Self:
        """Open all parts; what was opened is closed again if a later one fails.

        `boot_clock` belongs to the same machine as `clock`; `client_properties` as open_source.
        With `create`, missing metadata are created, but only beside an object store that belongs to none yet; if the
        caller `only_looks`, they are created in a temporary folder, which `close` removes.
        Raises MetadataMissingError otherwise, StoreMismatchError for a store of other metadata, and, unless `outdated`
        is set, OutdatedMetadataError for metadata older than the store (see GenerationGuard.ensure_readable).
        Raises ConfigurationError if a log directory and one of our places are one inside the other (see misplaced).
        """
        if found := misplaced(settings):
            raise ConfigurationError("; ".join(found))
        narrow(settings.state_directory)
        with ExitStack() as opened:
            storage = opened.enter_context(closing(open_storage(settings, options)))
            described, scratch = settings, None
            is_new = not _are_metadata_there(settings)
            if is_new:
                _ensure_unowned(storage, settings)
            # Before the metadata: if it cannot be opened, no new metadata may be left.
            messages = opened.enter_context(closing(open_object_client(settings.work_url, options)))
            if is_new and only_looks:
                scratch = TemporaryDirectory(prefix="remote-log-")
                opened.callback(scratch.cleanup)
                scratch_url = SecretUrl(f"sqlite:///{scratch.name}/metadata.db")
                ours = {"remote_log_metadata_manager_class_name": METADATA_MANAGER.our_class}
                described = settings.model_copy(update={"rlmm_config_url": scratch_url, **ours})
            store = opened.enter_context(
                open_metadata(
                    described,
                    clock,
                    create=create or described is not settings,
                    client_properties=client_properties,
                )
            )
            if not is_new:
                GenerationGuard(store, lambda: storage, clock).ensure_readable(outdated=outdated)
            work = WorkArea(settings.work_url, messages, cache(store.work_area_key))
            source = open_source(settings, client_properties)
            opened.pop_all()
        return cls(settings, clock, options, store, storage, work, source, boot_clock, scratch)

    @property
    def segments(self) -> RemoteLogMetadataManager:
        """The metadata of remote segments."""
        return self.store.segments

    @property
    def leases(self) -> Leases:
        """Who may change which partition."""
        return self.store.leases

    @property
    def topics(self) -> Topics:
        """The decisions on topics; each new one renews the generation."""
        return GuardedTopics(self.store.topics, self.guard)

    @property
    def safety(self) -> Safety:
        """The stop of deletions, audit results and failed deletions; each decision renews the generation."""
        return GuardedSafety(self.store.safety, self.guard)

    @property
    def notices(self) -> Sequence[str]:
        """What the metadata store reports of its content, such as records of a topic that it refused."""
        found: Sequence[str] = getattr(self.store, "notices", ())
        return found

    @property
    def guard(self) -> GenerationGuard:
        """Compares and renews the generation that metadata and store share."""
        return GenerationGuard(self.store, lambda: self.storage, self.clock)

    def bind_store(self) -> None:
        """Make sure that store and metadata carry each other's UUID and one generation; mark a new store as ours.

        Raises StoreMismatchError and OutdatedMetadataError. A store that cannot be listed checks this itself.
        """
        self.guard.ensure_current()

    def decided_topic(self, partition: TopicIdPartition) -> Topic:
        """Return the decision on the partition's topic, or the seed in the settings file for its name."""
        return decided_topic(partition.cluster_id, partition.topic_id, partition.topic, self.topics, self.settings)

    def encoding_of(self, topic: Topic) -> Encoding:
        """Return how new segments of a topic are encoded. Raises ConfigurationError if its settings contradict."""
        resolved = effective(topic, self.settings)
        return Encoding(
            resolved.remote_compression_enabled,
            resolved.remote_encryption_enabled,
            self.settings.rsm_config_compression_heuristic_enabled,
        )

    def access(self, job: JobFolder) -> JobAccess:
        """Return what a worker needs to do a group of `job`, secrets and all."""
        secrets = JobSecrets.of(job.work.key, self.options, self.source.access)
        return JobAccess(job.work.url, job.folder, StoreAccess.of(self.settings, self.options), secrets)

    def local_log(self, partition: TopicIdPartition) -> PartitionLog | None:
        """Return the partition's local log; None if the source does not have it. Raises what the source raises."""
        return self.source.partition(partition)

    def why_nothing_matches(self, selection: Selection) -> str | None:
        """Return a message if the selection matches no known partition; None if it matches one."""
        if not selection.is_narrowed:
            return None
        remote = self.segments.list_partitions()
        if any(selection.matches(known.topic, known.partition) for known in remote):
            return None
        local = [name_of(found) for found in self.source.names()]
        if any(selection.matches(*name) for name in local):
            return None
        near = selection.near_hint({*(known.topic for known in remote), *(topic for topic, _ in local)})
        hint = near or f"{why_hidden(self.settings)}'tiered-storage topics list' shows the known topics"
        return f"no partition of the local logs or of the remote log matches the selected topics and partitions; {hint}"

    def spend_reserves(self) -> None:
        """Let this process use the room reserved on full disks, for writes that free space."""
        self.store.spend_reserve()
        if (storage := as_listable(self.storage)) is not None:
            storage.spend_reserve()

    def close(self) -> None:
        """Close all parts."""
        self.source.close()
        self.work.close()
        self.storage.close()
        self.store.close()
        if self.scratch is not None:
            self.scratch.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
