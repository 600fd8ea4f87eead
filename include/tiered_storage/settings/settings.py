"""Every setting of Remote Log, by Kafka's names, and how they are loaded.

The file (TIERED_STORAGE_CONFIG, or include/tiered_storage.yaml) is overridden by the environment
(TIERED_STORAGE_LOG_DIRS sets log.dirs), and that by a DAG run's parameters. A relative path belongs to the folder of
the file; where that folder is called include, to the one above it: the project's root. Credentials are no settings.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import unquote, urlsplit

from pydantic import PrivateAttr, ValidationInfo, field_validator

from tiered_storage.errors import ConfigurationError
from tiered_storage.settings.properties import sources
from tiered_storage.settings.properties.model import (
    Contradiction,
    OlderName,
    PropertyModel,
    Source,
    contradiction,
    setting,
)
from tiered_storage.settings.properties.reading import Properties, read_properties
from tiered_storage.settings.properties.types import (
    AS_THE_TOTAL,
    UNLIMITED,
    Connections,
    Folder,
    Folders,
    MetadataUrl,
    OptionalEndpoint,
    OptionalFile,
    OptionalFolder,
    OptionalText,
    StorageUrl,
    TopicName,
    TotalRetention,
    Whole,
    project_root,
)
from tiered_storage.settings.topics import LOCAL_MEANINGS, WITHOUT_LIMIT, TopicSettings, refuse_more_than_total

LOCAL_LOG = "The local log"
STATE = "Our own state"
REMOTE_STORAGE = "The remote tier"
METADATA = "The metadata of the remote log"
COPYING = "Copying"
RETENTION = "Retention"
READING = "Reading"
AUDIT = "The audit"
RESTORE = "Restores by Airflow's form"
READ_SERVICE = "The read service"
TOPICS = "Topics"

_CLASS_NAME = r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)+$"
_DOTTED_NAME = "a class by its dotted name: package.module.Class"
_MIB = 1 << 20


def _inside_state(name: str) -> Callable[[dict[str, Any]], str]:
    return lambda given: (given["state_directory"] / name).as_uri()


class Settings(PropertyModel):
    """All settings, frozen and typed; a property's attribute is its name with underscores for dots."""

    older_names: ClassVar[tuple[OlderName, ...]] = (
        OlderName("log.retention.minutes", "log.retention.ms", "minutes", 60_000),
        OlderName("log.retention.hours", "log.retention.ms", "hours", 3_600_000),
        OlderName("remote.log.retention.minutes", "log.retention.ms", "minutes", 60_000, Source.KIP_405_DRAFT),
        OlderName("remote.log.retention.bytes", "log.retention.bytes", "bytes", source=Source.KIP_405_DRAFT),
        OlderName("remote.log.storage.enable", "remote.log.storage.system.enable", source=Source.KIP_405_DRAFT),
    )

    log_dirs: Folders = setting(
        "log.dirs",
        (),
        LOCAL_LOG,
        Source.KAFKA,
        allowed="folders, each once: a list, or one text with commas between them",
    )
    """Kafka's log directories: those of a stopped broker, copies of them, or one written by this library. One that a
    broker holds is refused."""

    cluster_id: OptionalText = setting(
        "cluster.id",
        None,
        LOCAL_LOG,
        Source.KAFKA,
        allowed="up to 128 letters, digits, dots, underscores and hyphens, not beginning with a dot",
        pattern=r"^[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}$",
        default_text="from meta.properties, or else derived from the directory's path",
    )
    """The cluster that the directories belong to; every key in the store begins with it. Only needed where
    meta.properties is absent and the path may change."""

    log_end_is_stable: bool = setting("log.end.is.stable", False, LOCAL_LOG, Source.OURS)
    """The explicit word that a directory which stands alone and has no replication-offset-checkpoint (the high
    watermarks) may be copied up to its log end. Never set it for a running broker."""

    state_directory: Folder = setting("state.directory", ".state", STATE, Source.OURS, allowed="a folder")
    """Where everything that is ours lives in the embedded default; removing it removes all of that. Only this user may
    use it: one that is open to others is closed when a command or a run opens it, unless other things lie in it too."""

    work_url: StorageUrl = setting(
        "work.url",
        _inside_state("work"),
        STATE,
        Source.OURS,
        allowed="a folder, or a URL such as file:///folder or s3://bucket/prefix",
        default_text="{state.directory}/work",
    )
    """Where plans and results pass between Airflow and Spark: both must reach it, nobody else should write there."""

    export_url: StorageUrl = setting(
        "export.url",
        _inside_state("exports"),
        STATE,
        Source.OURS,
        allowed="a folder, or a URL such as file:///folder or s3://bucket/prefix",
        default_text="{state.directory}/exports",
    )
    """Where topics are exported to as tables, each in a folder of its name; Airflow and Spark must reach it. As with
    the store, make a folder that others read yourself."""

    remote_log_storage_system_enable: bool = setting(
        "remote.log.storage.system.enable", True, REMOTE_STORAGE, Source.KAFKA
    )
    """Whether anything is copied at all. Kafka's default is false; here it is true, since nothing is copied of a topic
    that is not enabled (remote.storage.enable)."""

    remote_log_storage_manager_class_name: str = setting(
        "remote.log.storage.manager.class.name",
        "tiered_storage.remote_log.storage.segment_objects.ObjectRemoteStorageManager",
        REMOTE_STORAGE,
        Source.KAFKA,
        allowed=_DOTTED_NAME,
        pattern=_CLASS_NAME,
    )
    """The RemoteStorageManager: which class stores and fetches the bytes. A class of your own may stand here."""

    rsm_config_url: StorageUrl = setting(
        "rsm.config.url",
        _inside_state("remote"),
        REMOTE_STORAGE,
        Source.OURS_BY_PREFIX,
        allowed="a folder, or a URL such as file:///folder or s3://bucket/prefix",
        default_text="{state.directory}/remote",
    )
    """The object store, and the prefix in it under which everything goes. A folder that is missing is made for this
    user alone; make one that others share yourself: what is written there gets no wider rights than it has."""

    rsm_config_allow_http: bool = setting("rsm.config.allow.http", False, REMOTE_STORAGE, Source.OURS_BY_PREFIX)
    """Whether the object store may be spoken to without encryption."""

    rsm_config_endpoint: OptionalEndpoint = setting(
        "rsm.config.endpoint",
        None,
        REMOTE_STORAGE,
        Source.OURS_BY_PREFIX,
        allowed="an https URL, or an http one with rsm.config.allow.http",
        default_text="the provider's own",
    )
    """The address of an S3 API that is not Amazon's."""

    rsm_config_region: OptionalText = setting(
        "rsm.config.region",
        None,
        REMOTE_STORAGE,
        Source.OURS_BY_PREFIX,
        allowed="a region's name, such as eu-central-1",
        pattern=r"^[A-Za-z0-9-]+$",
        default_text="AWS_REGION of the environment",
    )
    """The region of the bucket."""

    rlmm_config_url: MetadataUrl = setting(
        "rlmm.config.url",
        lambda given: f"sqlite:///{given['state_directory'] / 'remote_log_metadata.db'}",
        METADATA,
        Source.OURS_BY_PREFIX,
        allowed="the URL of an SQLite file, such as sqlite:///folder/file.db",
        default_text="sqlite:///{state.directory}/remote_log_metadata.db",
    )
    """The metadata store. A password in it is never shown, nor handed to Spark."""

    metadata_busy_timeout_ms: Whole = setting(
        "metadata.busy.timeout.ms", 10_000, METADATA, Source.OURS, unit="ms", at_least=0
    )
    """How long a call waits for a metadata store that is locked before it fails, to be tried again."""

    remote_log_index_chunk_bytes: Whole = setting(
        "remote.log.index.chunk.bytes", _MIB, COPYING, Source.OURS, unit="bytes", at_least=_MIB, at_most=4 * _MIB
    )
    """How much of a segment, in whole batches, one entry of its remoteLogIndex covers: what a remote read fetches."""

    index_interval_bytes: Whole = setting("index.interval.bytes", 4096, COPYING, Source.KAFKA, unit="bytes", at_least=1)
    """How many bytes of batches lie between two entries of an offset or time index that is built anew."""

    copy_window_bytes: Whole = setting(
        "copy.window.bytes", 8 * _MIB, COPYING, Source.OURS, unit="bytes", at_least=64 << 10, at_most=256 * _MIB
    )
    """How much of a segment a copier holds in memory at once."""

    copy_max_segments_per_run: Whole = setting(
        "copy.max.segments.per.run", 10_000, COPYING, Source.OURS, unit="segments", at_least=1
    )
    """How many segments one run copies; the following runs take what is left."""

    copy_stuck_after_ms: Whole = setting(
        "copy.stuck.after.ms", 600_000, COPYING, Source.OURS, unit="ms", at_least=10_000
    )
    """How long a copy may move no byte, also while it waits for Spark, before it is ended: what it has finished is
    committed, and the rest is left to the next run."""

    commit_batch_partitions: Whole = setting(
        "commit.batch.partitions", 50, COPYING, Source.OURS, unit="partitions", at_least=1
    )
    """How many partitions one mapped commit_metadata task commits. A run must not need more tasks than Airflow's
    max_map_length (1,024)."""

    lease_duration_ms: Whole = setting("lease.duration.ms", 600_000, COPYING, Source.OURS, unit="ms", at_least=1_000)
    """How long a partition stays reserved for a run that shows no sign of life."""

    log_retention_ms: TotalRetention = setting(
        "log.retention.ms", 604_800_000, RETENTION, Source.KAFKA, unit="ms", at_least=1, special=WITHOUT_LIMIT
    )
    """How long records live, in both tiers together, unless their topic says otherwise."""

    log_retention_bytes: TotalRetention = setting(
        "log.retention.bytes", UNLIMITED, RETENTION, Source.KAFKA, unit="bytes", at_least=1, special=WITHOUT_LIMIT
    )
    """How much a partition keeps, in both tiers together, unless its topic says otherwise."""

    log_local_retention_ms: Whole = setting(
        "log.local.retention.ms", AS_THE_TOTAL, RETENTION, Source.KAFKA, unit="ms", at_least=0, special=LOCAL_MEANINGS
    )
    """How long closed segments also stay local, once the remote tier has them; not more than log.retention.ms."""

    log_local_retention_bytes: Whole = setting(
        "log.local.retention.bytes",
        AS_THE_TOTAL,
        RETENTION,
        Source.KAFKA,
        unit="bytes",
        at_least=0,
        special=LOCAL_MEANINGS,
    )
    """How much of a partition also stays local, once the remote tier has it; not more than log.retention.bytes."""

    remote_log_deletion_grace_ms: Whole = setting(
        "remote.log.deletion.grace.ms", 3_600_000, RETENTION, Source.OURS, unit="ms", at_least=0
    )
    """How long the objects of a segment stay after it was marked for deletion: by expiry, delete-records, delete-topic
    or topics disable --delete-remote. Until then `tiered-storage undelete` brings it back. 0: nothing waits."""

    scheduled_deletion_enable: bool = setting("scheduled.deletion.enable", False, RETENTION, Source.OURS)
    """Whether runs that a schedule or an asset event started delete anything, in either tier. Without it such runs of
    enforce_local_retention and expire_remote_segments only plan; runs that a person triggers, and backfills, delete."""

    clock_max_skew_ms: Whole = setting("clock.max.skew.ms", 300_000, RETENTION, Source.OURS, unit="ms", at_least=1_000)
    """How far this machine's clock may be from the store's, from where the last run leaves it, and behind the times in
    the metadata. Where it is further, nothing is deleted, in either tier."""

    remote_log_orphan_grace_ms: Whole = setting(
        "remote.log.orphan.grace.ms", 3_600_000, RETENTION, Source.OURS, unit="ms", at_least=0
    )
    """How long a copy that never finished stays before its objects are deleted, and an object that nothing refers to
    before the audit names it; not less than lease.duration.ms, so that no copy under way is touched."""

    remote_log_unreferenced_max_percent: Whole = setting(
        "remote.log.unreferenced.max.percent",
        1,
        RETENTION,
        Source.OURS,
        unit="percent",
        at_least=0,
        at_most=100,
    )
    """The share of the store's objects that nothing may refer to. Where an audit finds a larger one, and more than ten
    such objects, nothing is deleted: the metadata may be of another store, or older than this one."""

    remote_log_verify_before_trim: bool = setting("remote.log.verify.before.trim", True, RETENTION, Source.OURS)
    """Whether every remote byte is read back, its checksum compared, before the local segment goes that it was copied
    from. Without it objects are looked for, with their sizes and manifests: faster, and blind to a byte that rotted."""

    deletion_batch_segments: Whole = setting(
        "deletion.batch.segments", 500, RETENTION, Source.OURS, unit="segments", at_least=1, at_most=1000
    )
    """How many remote segments are deleted between two looks at whether deletions were stopped or forbidden."""

    remote_log_reader_threads: Whole = setting(
        "remote.log.reader.threads", 10, READING, Source.KAFKA, unit="threads", at_least=1, at_most=1000
    )
    """How many reads of the remote tier one process carries out at once. Local reads have threads of their own, so
    that a slow store never holds them up."""

    remote_log_reader_max_pending_tasks: Whole = setting(
        "remote.log.reader.max.pending.tasks", 100, READING, Source.KAFKA, unit="reads", at_least=1
    )
    """How many reads of the remote tier may wait for a thread; further ones are refused, to be tried again."""

    remote_fetch_max_wait_ms: Whole = setting(
        "remote.fetch.max.wait.ms", 30_000, READING, Source.KAFKA, unit="ms", at_least=1
    )
    """How long a read waits for its next batches from the remote tier, every attempt and pause included, before it
    fails, to be tried again. Kafka's default is 500, since its consumers ask again by themselves."""

    remote_log_manager_fetch_max_bytes_per_second: Whole = setting(
        "remote.log.manager.fetch.max.bytes.per.second",
        UNLIMITED,
        READING,
        Source.KAFKA,
        unit="bytes",
        at_least=_MIB,
        special={UNLIMITED: "as fast as it goes"},
    )
    """How much one process reads from the remote tier in a second. Kafka's default is the largest number there is."""

    local_log_reader_threads: Whole = setting(
        "local.log.reader.threads", 2, READING, Source.OURS, unit="threads", at_least=1, at_most=1000
    )
    """How many reads of local logs one process carries out at once. Searches by time have as many threads of their
    own."""

    remote_log_reader_read_ahead_bytes: Whole = setting(
        "remote.log.reader.read.ahead.bytes", 16 * _MIB, READING, Source.OURS, unit="bytes", at_least=0
    )
    """How much of the remote tier a reader that goes on and on has on its way; it begins with one chunk. All readers of
    a process together have no more than remote.log.reader.cache.memory.bytes on their way ahead, if that is larger."""

    remote_log_reader_cache_memory_bytes: Whole = setting(
        "remote.log.reader.cache.memory.bytes", 64 * _MIB, READING, Source.OURS, unit="bytes", at_least=0
    )
    """How much of what was read from the remote tier one process keeps in memory, for the next who asks for it."""

    remote_log_reader_cache_disk_bytes: Whole = setting(
        "remote.log.reader.cache.disk.bytes", 0, READING, Source.OURS, unit="bytes", at_least=0
    )
    """How much of what no longer fits into that memory one process keeps on the disk, in {state.directory}. Only where
    the store is further away than the disk is that of use."""

    remote_log_reader_metadata_max_age_ms: Whole = setting(
        "remote.log.reader.metadata.max.age.ms", 1_000, READING, Source.OURS, unit="ms", at_least=0
    )
    """How old what a reader knows of a partition may be. Where looking takes long, as with 100,000 segments, it may be
    twenty times as old as that took."""

    audit_worker_bytes_per_second: Whole = setting(
        "audit.worker.bytes.per.second",
        UNLIMITED,
        AUDIT,
        Source.OURS,
        unit="bytes",
        at_least=_MIB,
        special={UNLIMITED: "as fast as it goes"},
    )
    """How much each worker of a deep audit reads in a second, so that what serves readers is left alone."""

    restore_directory: OptionalFolder = setting(
        "restore.directory",
        None,
        RESTORE,
        Source.OURS,
        allowed="a folder",
        default_text="none: the form restores into no directory",
    )
    """The log directory of a stopped broker, or a new folder, on the workers' machine: the only one that the form of
    restore_topic restores into."""

    restore_connections: Connections = setting(
        "restore.connections",
        (),
        RESTORE,
        Source.OURS,
        allowed="ids of Airflow connections of the type kafka: a list, or one text with commas between them",
        default_text="none: the form restores into no cluster",
    )
    """The clusters that the form of restore_topic may restore into. The extra of each connection holds the client's
    properties, bootstrap.servers among them."""

    read_service_rights_file: OptionalFile = setting(
        "read.service.rights.file",
        None,
        READ_SERVICE,
        Source.OURS,
        allowed="a file",
        default_text="none: nobody sees or reads any topic",
    )
    """Who may see which topics through the read service, and who may read their records. It is read again whenever it
    changes; where it is broken nobody may anything."""

    read_service_threads: Whole = setting(
        "read.service.threads", 4, READ_SERVICE, Source.OURS, unit="threads", at_least=1, at_most=64
    )
    """How many threads of each process of the API server read and decode records. As many again answer what is asked
    of metadata."""

    read_service_max_streams: Whole = setting(
        "read.service.max.streams", 256, READ_SERVICE, Source.OURS, unit="answers", at_least=1, at_most=4096
    )
    """How many answers with bytes or records a process gives at once, each with some MiB in memory. Who comes then is
    told to come again (429)."""

    read_service_stalled_after_ms: Whole = setting(
        "read.service.stalled.after.ms", 60_000, READ_SERVICE, Source.OURS, unit="ms", at_least=1000
    )
    """How long a client may take none of its answer before it is given up."""

    topics: Mapping[TopicName, TopicSettings] = setting(
        "topics", {}, TOPICS, Source.OURS, allowed="a mapping from topic names to their properties"
    )
    """Where topics start: the properties of each, by its name. Once a topic has been decided on, the metadata store
    knows better."""

    _config_path: Path | None = PrivateAttr(default=None)
    _base: Path = PrivateAttr(default_factory=project_root)

    @property
    def base(self) -> Path:
        """The folder that relative paths begin in."""
        return self._base

    @property
    def work_folder(self) -> Path:
        """A folder for what needs files: that of work.url, or state.directory where that is no folder."""
        url = urlsplit(self.work_url)
        return Path(unquote(url.path)) if url.scheme == "file" else self.state_directory

    @property
    def config_path(self) -> Path | None:
        """The file that was read; None where there was none."""
        return self._config_path

    @field_validator("rsm_config_endpoint")
    @classmethod
    def _encrypted_or_allowed(cls, endpoint: str | None, info: ValidationInfo) -> str | None:
        if endpoint and endpoint.startswith("http://") and info.data.get("rsm_config_allow_http") is False:
            why = f"rsm.config.endpoint is {endpoint}: http needs rsm.config.allow.http: true"
            raise contradiction(Contradiction(why))
        return endpoint

    @field_validator("log_local_retention_ms", "log_local_retention_bytes")
    @classmethod
    def _within_the_total(cls, local: int, info: ValidationInfo) -> int:
        total_field = str(info.field_name).replace("local_", "")
        if total_field in info.data:
            names = [str(name).replace("_", ".") for name in (info.field_name, total_field)]
            refuse_more_than_total(names[0], local, names[1], info.data[total_field])
        return local

    @field_validator("remote_log_orphan_grace_ms")
    @classmethod
    def _longer_than_a_lease(cls, grace: int, info: ValidationInfo) -> int:
        lease = info.data.get("lease_duration_ms", 0)
        if grace < lease:
            why = (
                f"remote.log.orphan.grace.ms is {grace}, less than lease.duration.ms, {lease}: "
                "objects of a copy that is under way would count as left behind"
            )
            raise contradiction(Contradiction(why, (("remote.log.orphan.grace.ms",), ("lease.duration.ms",))))
        return grace

    @field_validator("topics")
    @classmethod
    def _agree_with_defaults(
        cls, topics: Mapping[str, TopicSettings], info: ValidationInfo
    ) -> Mapping[str, TopicSettings]:
        limits = ("retention_ms", "retention_bytes", "local_retention_ms", "local_retention_bytes")
        if all(f"log_{limit}" in info.data for limit in limits):
            defaults = _topic_defaults({limit: info.data[f"log_{limit}"] for limit in limits})
            found = [_disagreement(name, topic, defaults) for name, topic in topics.items()]
            if any(found):
                raise contradiction(*(each for each in found if each))
        return topics

    def topic_defaults(self) -> TopicSettings:
        """Return what holds for a topic that sets nothing, with -2 (as the total) still in it."""
        return _topic_defaults(
            {
                "retention_ms": self.log_retention_ms,
                "retention_bytes": self.log_retention_bytes,
                "local_retention_ms": self.log_local_retention_ms,
                "local_retention_bytes": self.log_local_retention_bytes,
            }
        )

    def dump(self) -> dict[str, Any]:
        """Return every setting by its name, as JSON and YAML can hold it, without secrets.

        Paths are absolute. A file that holds it loads again to the same settings, but for the password of
        rlmm.config.url; give `load_settings` an empty `environ` then, for the environment is already in it.
        """
        plain = self.model_dump(mode="json", by_alias=True, exclude_none=True, exclude={"topics", "rlmm_config_url"})
        topics = {
            name: topic.model_dump(mode="json", by_alias=True, exclude_unset=True)
            for name, topic in self.topics.items()
        }
        return {**plain, "rlmm.config.url": self.rlmm_config_url.without_secrets(), "topics": topics}


WHERE_METADATA_ARE = frozenset({"state.directory", "rlmm.config.url"})
"""The settings that say where the metadata store is, for what has to reach it whatever is wrong with all others."""


def load_settings(
    path: Path | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    overrides: Mapping[str, object] | None = None,
    only: Collection[str] | None = None,
) -> Settings:
    """Return the settings of `path`, overridden by `environ` (default: this process's), then by `overrides`.

    Of what they give `only` these properties are read, whatever is wrong with others, which have their defaults then.

    Without `path` the file is TIERED_STORAGE_CONFIG, or else include/tiered_storage.yaml of the project, which may be
    absent. `overrides` are properties by name, as a DAG run's parameters give them; None means not set.
    Raises ConfigurationError with everything that is wrong.
    """
    environ = os.environ if environ is None else environ
    overrides = overrides or {}
    named = path.absolute() if path else sources.configured_path(environ)
    file = named or project_root() / "include" / "tiered_storage.yaml"
    is_read = named is not None or file.is_file()
    gathered = [
        *([sources.read_file(file)] if is_read else []),
        sources.read_environment(environ, Settings.known_names()),
        sources.read_overrides(overrides),
    ]
    if only is not None:
        gathered = [Properties([one for one in each.properties if one.path[0] in only]) for each in gathered]
    base = file.parent.parent if file.parent.name == "include" else file.parent
    settings = read_properties(Settings, gathered, place=str(file), base=base, models={("topics",): TopicSettings})
    settings._config_path = file if is_read else None
    settings._base = base
    return settings


def _topic_defaults(limits: Mapping[str, int]) -> TopicSettings:
    return TopicSettings.model_validate({name.replace("_", "."): value for name, value in limits.items()})


def _disagreement(name: str, topic: TopicSettings, defaults: TopicSettings) -> Contradiction | None:
    try:
        topic.over(defaults, name)
    except ConfigurationError as error:
        return Contradiction(str(error), (("topics", name),))
    return None
