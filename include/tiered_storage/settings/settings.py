"""All settings of Remote Log in one model, and how they are loaded; each group is declared in its own module.

The environment (TIERED_STORAGE_LOG_DIRS sets log.dirs) overrides the file (TIERED_STORAGE_CONFIG, or
include/tiered_storage.yaml), and the parameters of a DAG run override both. A relative path begins in the file's
folder, or in the folder above it (the project's root) if that folder is called include. Credentials are not settings.

Each other cluster has a file of its own (cluster_files), whose settings no environment variable overrides.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar
from urllib.parse import unquote, urlsplit

from pydantic import PrivateAttr, ValidationInfo, field_validator

from tiered_storage.errors import ConfigurationError
from tiered_storage.redaction import has_password
from tiered_storage.settings.airflow import AirflowSettings
from tiered_storage.settings.copying import CopyingSettings
from tiered_storage.settings.local_log import ClusterSettings, FollowerSettings, LocalLogSettings
from tiered_storage.settings.own_managers import METADATA_MANAGER, place_options
from tiered_storage.settings.properties import sources
from tiered_storage.settings.properties.cluster_files import (
    configured_path,
    first_cluster_file,
    other_clusters,
    project_root,
)
from tiered_storage.settings.properties.model import Contradiction, OlderName, Source, contradiction, setting
from tiered_storage.settings.properties.reading import Properties, read_properties
from tiered_storage.settings.properties.types import TopicName
from tiered_storage.settings.reading import GatewaySettings, ReadingSettings
from tiered_storage.settings.retention import RetentionSettings
from tiered_storage.settings.service import ServiceSettings
from tiered_storage.settings.storage import CostSettings, StorageSettings
from tiered_storage.settings.topics import TopicSettings

TOPICS = "Topics"
_DEFAULTS_OF_TOPICS = (
    "retention_ms",
    "retention_bytes",
    "local_retention_ms",
    "local_retention_bytes",
    "remote_copy_lag_ms",
    "remote_copy_lag_bytes",
)
"""The settings of a topic that have a default for all topics, by a field whose name begins with log_."""

_POOLS = "the pools of copies, expirations and followers have sizes of their own"
_NO_TOPIC = "no Kafka topic has the metadata, unless remote.log.metadata.manager.class.name names one"
_RLMM = "rlmm.config.remote.log.metadata"

_UNUSED_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "remote.log.index.file.cache.ttl.ms": "remote.log.index.file.cache.total.size.bytes alone decides",
        "remote.log.manager.thread.pool.size": _POOLS,
        "remote.log.metadata.manager.listener.name": "bootstrap.servers of the metadata topic's clients decides",
        f"{_RLMM}.topic.replication.factor": _NO_TOPIC,
        f"{_RLMM}.topic.num.partitions": _NO_TOPIC,
        f"{_RLMM}.topic.retention.ms": _NO_TOPIC,
        f"{_RLMM}.topic.min.isr": _NO_TOPIC,
        f"{_RLMM}.consume.wait.ms": _NO_TOPIC,
        f"{_RLMM}.initialization.retry.max.timeout.ms": _NO_TOPIC,
        f"{_RLMM}.initialization.retry.interval.ms": _NO_TOPIC,
        f"{_RLMM}.common.client.": _NO_TOPIC,
        f"{_RLMM}.producer.": _NO_TOPIC,
        f"{_RLMM}.consumer.": _NO_TOPIC,
        f"{_RLMM}.admin.": _NO_TOPIC,
    }
)
"""Names of Kafka's tiered storage that have no effect here, and why: a broker's settings can be taken over as they are.

Remote Log has no topic of metadata. A name that ends in a dot is a prefix.
"""


class Settings(
    CostSettings,
    AirflowSettings,
    GatewaySettings,
    ServiceSettings,
    ReadingSettings,
    RetentionSettings,
    CopyingSettings,
    StorageSettings,
    FollowerSettings,
    ClusterSettings,
    LocalLogSettings,
):
    """All settings, frozen and typed; a property's attribute is its name with underscores for dots.

    Pydantic takes the fields of the last base first: docs/configuration.md has that order, and a field's default or
    validator sees only the fields before it.
    """

    older_names: ClassVar[tuple[OlderName, ...]] = (
        OlderName("log.retention.minutes", "log.retention.ms", "minutes", 60_000),
        OlderName("log.retention.hours", "log.retention.ms", "hours", 3_600_000),
        OlderName("remote.log.retention.minutes", "log.retention.ms", "minutes", 60_000, Source.KIP_405_DRAFT),
        OlderName("remote.log.retention.bytes", "log.retention.bytes", "bytes", source=Source.KIP_405_DRAFT),
        OlderName("rlm_process_interval_ms", "remote.log.manager.task.interval.ms", "ms", source=Source.KIP_405_DRAFT),
        # The document's retry interval is always the same.
        OlderName(
            "rlm_retry_interval_ms", "remote.log.manager.task.retry.backoff.ms", "ms", source=Source.KIP_405_DRAFT
        ),
        OlderName(
            "rlm_retry_interval_ms", "remote.log.manager.task.retry.backoff.max.ms", "ms", source=Source.KIP_405_DRAFT
        ),
        OlderName("remote.log.storage.enable", "remote.log.storage.system.enable", source=Source.KIP_405_DRAFT),
    )

    unused_names: ClassVar[Mapping[str, str]] = _UNUSED_NAMES

    topics: Mapping[TopicName, TopicSettings] = setting(
        "topics", {}, TOPICS, Source.OURS, allowed="a mapping from topic names to their properties"
    )
    """After the first decision on a topic, the metadata store has its properties: change them with `tiered-storage
    topics`."""

    _config_path: Path | None = PrivateAttr(default=None)
    _base: Path = PrivateAttr(default_factory=project_root)

    @property
    def base(self) -> Path:
        """The folder in which relative paths begin."""
        return self._base

    @property
    def work_folder(self) -> Path:
        """A folder for temporary files: that of work.url, or state.directory if work.url is not a folder."""
        url = urlsplit(self.work_url)
        return Path(unquote(url.path)) if url.scheme == "file" else self.state_directory

    @property
    def config_path(self) -> Path | None:
        """The file that was read; None if there was none."""
        return self._config_path

    @field_validator("topics")
    @classmethod
    def _agree_with_defaults(
        cls, topics: Mapping[str, TopicSettings], info: ValidationInfo
    ) -> Mapping[str, TopicSettings]:
        if all(f"log_{limit}" in info.data for limit in _DEFAULTS_OF_TOPICS):
            defaults = _topic_defaults({limit: info.data[f"log_{limit}"] for limit in _DEFAULTS_OF_TOPICS})
            found = [_disagreement(name, topic, defaults) for name, topic in topics.items()]
            if any(found):
                raise contradiction(*(each for each in found if each))
        return topics

    def topic_defaults(self) -> TopicSettings:
        """Return the settings of a topic that sets nothing, with -2 (as the total) not yet resolved."""
        limits = _topic_defaults({limit: getattr(self, f"log_{limit}") for limit in _DEFAULTS_OF_TOPICS})
        return limits.model_copy(
            update={
                "copy_over_gaps": self.copy_over_gaps,
                "remote_compression_enabled": self.rsm_config_compression_enabled,
                "remote_encryption_enabled": self.rsm_config_encryption_enabled,
            }
        )

    def dump(self) -> dict[str, Any]:
        """Return every setting by its name as JSON and YAML values, without secrets.

        Paths are absolute. A file with this content loads to the same settings, except for the password of
        rlmm.config.url and the options of a class of the user's own, any of which may be a secret; pass `load_settings`
        an empty `environ` then, since the environment is already included.
        """
        apart = {"topics", "rlmm_config_url", "rsm_config", "rlmm_config"}
        plain = self.model_dump(mode="json", by_alias=True, exclude_none=True, exclude=apart)
        topics = {
            name: topic.model_dump(mode="json", by_alias=True, exclude_unset=True)
            for name, topic in self.topics.items()
        }
        return {**plain, "rlmm.config.url": self.rlmm_config_url.without_secrets(), "topics": topics}


WHERE_METADATA_ARE = frozenset(
    {
        "state.directory",
        "rlmm.config.url",
        METADATA_MANAGER.prefix,
        *(f"{METADATA_MANAGER.name}.{part}" for part in ("class.name", "class.path", "impl.prefix")),
    }
)
"""The settings that locate the metadata store, for commands that must reach it even if other settings are wrong."""


SEPARATE_PLACES = ("state.directory", "rlmm.config.url", "rsm.config.url")
"""The settings that must differ between clusters: each cluster has its own metadata and its own store."""


def load_settings(
    path: Path | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    overrides: Mapping[str, object] | None = None,
    only: Collection[str] | None = None,
) -> Settings:
    """Return the settings of `path`, overridden by `environ` (default: this process's), then by `overrides`.

    With `only`, read just these properties and ignore problems with others, which keep their defaults.

    Without `path`, the file is TIERED_STORAGE_CONFIG, or else include/tiered_storage.yaml of the project, which may be
    absent. `overrides` are properties by name, as a DAG run's parameters give them; None means not set.

    If `path` is the file of a cluster other than the first, no setting in `environ` counts: it would count for all.

    Raises ConfigurationError with every problem; for the file of another cluster, also if one of its SEPARATE_PLACES is
    not its own.
    """
    environ = os.environ if environ is None else environ
    cluster = _name_of_other_cluster(path, environ)
    settings = _loaded(path, {} if cluster else environ, overrides or {}, only)
    if cluster and only is None:
        _refuse_shared_places(cluster, settings, environ)
    return settings


def _loaded(
    path: Path | None, environ: Mapping[str, str], overrides: Mapping[str, object], only: Collection[str] | None
) -> Settings:
    named = path.absolute() if path else configured_path(environ)
    file = named or first_cluster_file(environ)
    is_read = named is not None or file.is_file()
    gathered = [
        *([_without_password(sources.read_file(file))] if is_read else []),
        sources.read_environment(environ, _variables()),
        _without_password(sources.read_overrides(overrides)),
    ]
    gathered = place_options(gathered, Settings.known_names())
    if only is not None:
        gathered = [Properties([one for one in each.properties if one.path[0] in only]) for each in gathered]
    base = file.parent.parent if file.parent.name == "include" else file.parent
    settings = read_properties(Settings, gathered, place=str(file), base=base, models={("topics",): TopicSettings})
    settings._config_path = file if is_read else None
    settings._base = base
    notices = list(_untested_stores(settings))
    return settings.noted(notices) if notices else settings


def _untested_stores(settings: Settings) -> Iterator[str]:
    for name in ("rsm_config_url", "work_url", "export_url"):
        if str(url := getattr(settings, name)).startswith("gs://"):
            yield f"{url} is untested: s3:// reaches the same bucket of Google's, with HMAC keys (docs/stores.md)"


def load_cluster_settings(
    cluster: str | None,
    *,
    environ: Mapping[str, str] | None = None,
    overrides: Mapping[str, object] | None = None,
    only: Collection[str] | None = None,
) -> Settings:
    """Return the settings of the named cluster; None names the first one. All else as load_settings.

    Raises ConfigurationError as well if the cluster has no settings file.
    """
    environ = os.environ if environ is None else environ
    path = None if cluster is None else cluster_file(cluster, environ)
    return load_settings(path, environ=environ, overrides=overrides, only=only)


def cluster_file(cluster: str, environ: Mapping[str, str]) -> Path:
    """Return the settings file of a cluster other than the first. Raises ConfigurationError if there is none."""
    others = other_clusters(environ)
    if cluster not in others:
        first = first_cluster_file(environ)
        known = f"the others are {', '.join(others)}" if others else "there is no other cluster yet"
        raise ConfigurationError(
            f"there is no cluster {cluster!r}: its settings file would be "
            f"{first.with_name(f'{first.stem}.{cluster}{first.suffix}')}; {known}"
        )
    return others[cluster]


def _name_of_other_cluster(path: Path | None, environ: Mapping[str, str]) -> str | None:
    if path is None or path.absolute() == first_cluster_file(environ):
        return None
    found = (name for name, file in other_clusters(environ).items() if file == path.absolute())
    return next(found, None)


def _refuse_shared_places(cluster: str, settings: Settings, environ: Mapping[str, str]) -> None:
    files: dict[str, Path | None] = {"the first": None, **other_clusters(environ)}
    del files[cluster]
    shared = [(name, place) for name, file in files.items() for place in _shared_places(settings, file, environ)]
    if shared:
        name, place = shared[0]
        raise ConfigurationError(
            f"{settings.config_path}: {place} has the same value as in cluster {name}. Two clusters that share it "
            "treat each other's segments as orphans: give each cluster its own"
        )


def _shared_places(settings: Settings, file: Path | None, environ: Mapping[str, str]) -> list[str]:
    """Return the SEPARATE_PLACES with the same value in another cluster, whose file is `file` (None: the first)."""
    try:
        other = _loaded(file, {} if file else environ, {}, SEPARATE_PLACES)
    except ConfigurationError:
        # A cluster whose settings are wrong does nothing, and must not stop this one.
        return []
    return [place for place in SEPARATE_PLACES if _value(settings, place) == _value(other, place)]


def _value(settings: Settings, name: str) -> object:
    return getattr(settings, name.replace(".", "_"))


def _variables() -> Iterator[str]:
    # An own option in a variable cannot be distinguished from a setting: variable names have no dots.
    return (name for name in (*Settings.known_names(), *Settings.unused_names) if not name.endswith("."))


def _without_password(given: Properties) -> Properties:
    """Return what a file or a run's parameters gave, with a problem if that has the metadata store's password."""
    found = [
        f"{one.where}: {one.given_name} contains a password: give it as PGPASSWORD in the environment, in ~/.pgpass, "
        "or in the Airflow connection remote_log_metadata_default"
        for one in given.properties
        if one.path == ("rlmm.config.url",) and has_password(str(one.value))
    ]
    return replace(given, problems=[*given.problems, *found])


def _topic_defaults(limits: Mapping[str, int]) -> TopicSettings:
    return TopicSettings.model_validate({name.replace("_", "."): value for name, value in limits.items()})


def _disagreement(name: str, topic: TopicSettings, defaults: TopicSettings) -> Contradiction | None:
    try:
        topic.over(defaults, name)
    except ConfigurationError as error:
        return Contradiction(str(error), (("topics", name),))
    return None
