"""Opens what a rebuild of the metadata needs: the store as it is, and a metadata store that is not there yet."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from tiered_storage.clock import Clock
from tiered_storage.errors import ConfigurationError
from tiered_storage.remote_log.metadata import Topic
from tiered_storage.remote_log.metadata.sql_store import open_metadata_store, sqlite_path
from tiered_storage.remote_log.metadata_rebuild import MetadataRebuild, RebuildReport
from tiered_storage.remote_log.model import TopicIdPartition
from tiered_storage.remote_log.remote_log_checks import listing_storage
from tiered_storage.remote_log.remote_log_parts import open_storage
from tiered_storage.remote_log.storage.object_client import ObjectStoreOptions
from tiered_storage.remote_log.storage.object_names import parse_partition_folder
from tiered_storage.remote_log.storage.segment_objects import ObjectRemoteStorageManager
from tiered_storage.settings import Settings
from tiered_storage.topic_settings import seed


def rebuild_metadata(
    settings: Settings, options: ObjectStoreOptions, clock: Clock, into: Path | None = None, *, dry_run: bool = False
) -> RebuildReport:
    """Make the metadata anew from the store, into the file `into`, or else where the settings have them.

    What was made of it is removed again where the store cannot be read. A dry run only reads the store. Raises
    ConfigurationError where that file is there, where the store holds no partition, and for a user's own
    RemoteStorageManager.
    """
    path = new_metadata_path(settings, into)

    def seeded(partition: TopicIdPartition) -> Topic:
        return seed(partition.cluster_id, partition.topic_id, partition.topic, settings)

    with closing(open_storage(settings, options)) as opened:
        storage = listing_storage(opened)
        _ensure_something_is_there(storage, settings.rsm_config_url)
        if dry_run:
            return MetadataRebuild(storage, None, clock, seeded).read()
        url = f"sqlite:///{path}"
        with open_metadata_store(url, clock, busy_timeout_ms=settings.metadata_busy_timeout_ms) as store:
            rebuild = MetadataRebuild(storage, store, clock, seeded)
            try:
                report = rebuild.read()
            except BaseException:
                _remove(path)
                raise
            rebuild.take_over(store)
            return report


def _remove(path: Path) -> None:
    """Remove a metadata file that belongs to nothing; its name was nobody's before."""
    for suffix in ("", "-wal", "-shm", "-journal"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def new_metadata_path(settings: Settings, into: Path | None = None) -> Path:
    """Return the file that a rebuild would make. Raises ConfigurationError where it is there."""
    path = into.expanduser().absolute() if into else sqlite_path(settings.rlmm_config_url.get_secret_value())
    if path.exists():
        raise ConfigurationError(
            f"{path} is there: a rebuild makes a new file, never changes one; move this one away, with the files "
            "beside it that begin alike, or name another with --into"
        )
    return path


def _ensure_something_is_there(storage: ObjectRemoteStorageManager, url: str) -> None:
    if all(parse_partition_folder(found.name) is None for found in storage.list_objects()):
        raise ConfigurationError(f"{url} holds no partition of a remote log: is the URL right, and the disk mounted?")
