"""Opens what a rebuild of the metadata needs: the store as it is, and a metadata store that is not there yet.

The new file comes into being whole: it is built aside, in a directory `.{name}.{random}` beside it, and linked to its
name when the store belongs to it. So nobody ever takes a part of the metadata for all of them, and a rebuild that was
killed is begun anew; only the directory is left of it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from tiered_storage.clock import Clock, as_date
from tiered_storage.errors import ConfigurationError, RemoteObjectCorruptError
from tiered_storage.kafka_log.files.small_files import sync_directory
from tiered_storage.private_files import make_private_folder
from tiered_storage.remote_log.audit.checks import listing_storage
from tiered_storage.remote_log.context import open_storage
from tiered_storage.remote_log.metadata.remote_log_metadata_manager import Topic
from tiered_storage.remote_log.metadata.sql_store import open_metadata_store, sqlite_path
from tiered_storage.remote_log.model import TopicIdPartition
from tiered_storage.remote_log.rebuild.metadata_rebuild import MetadataRebuild, RebuildReport
from tiered_storage.remote_log.storage.object_client import ObjectStoreOptions
from tiered_storage.remote_log.storage.object_names import STORE_IDENTITY, parse_partition_folder
from tiered_storage.remote_log.storage.segment_objects import ObjectRemoteStorageManager
from tiered_storage.remote_log.tiering_policy import seed, withhold_seeded_rights
from tiered_storage.settings.settings import Settings


def rebuild_metadata(
    settings: Settings, options: ObjectStoreOptions, clock: Clock, into: Path | None = None, *, dry_run: bool = False
) -> RebuildReport:
    """Make the metadata anew from the store, into the file `into`, or else where the settings have them.

    Where it ends early there is no such file, and it may be done again. A dry run only reads the store. Raises
    ConfigurationError where that file is there, also when all is read; where the store holds nothing of ours; and for a
    user's own RemoteStorageManager.
    """
    path = new_metadata_path(settings, into)

    def seeded(partition: TopicIdPartition) -> Topic:
        return seed(partition.cluster_id, partition.topic_id, partition.topic, settings)

    with closing(open_storage(settings, options)) as opened:
        storage = listing_storage(opened)
        _ensure_something_is_there(storage, settings.rsm_config_url)
        if dry_run:
            return MetadataRebuild(storage, None, clock, seeded).read()
        with _built_aside(path) as built:
            url = f"sqlite:///{built}"
            with open_metadata_store(url, clock, busy_timeout_ms=settings.metadata_busy_timeout_ms) as store:
                rebuild = MetadataRebuild(storage, store, clock, seeded)
                report = rebuild.read()
                withhold_seeded_rights(store.topics, settings)
                new_metadata_path(settings, into)
                rebuild.take_over(store)
        return report


@contextmanager
def _built_aside(path: Path) -> Iterator[Path]:
    """Yield where to build the file, whose name `path` it gets at the end of the block, if that ends well.

    Raises ConfigurationError where nothing can be written there, or a file of that name came meanwhile.
    """
    with ExitStack() as ending:
        try:
            make_private_folder(path.parent)
            directory = ending.enter_context(tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent))
        except OSError as error:
            raise ConfigurationError(
                f"{path}: the metadata cannot be made there ({error.strerror}): name another file with --into"
            ) from error
        built = Path(directory, path.name)
        yield built
        try:
            path.hardlink_to(built)
        except FileExistsError:
            raise _is_there(path) from None
        sync_directory(path.parent)


def new_metadata_path(settings: Settings, into: Path | None = None) -> Path:
    """Return the file that a rebuild would make.

    Raises ConfigurationError where it is there, or a log of it, and for one inside a log directory.
    """
    path = into.expanduser().absolute() if into else sqlite_path(settings.rlmm_config_url.get_secret_value())
    for log_dir in settings.log_dirs:
        if path.resolve().is_relative_to(log_dir.resolve()):
            raise ConfigurationError(f"{path} is inside {log_dir} of log.dirs: name a file outside of it")
    # SQLite would put what an old log holds into the new file.
    for suffix in ("", "-wal", "-journal"):
        found = path.with_name(path.name + suffix)
        if found.exists():
            raise _is_there(found)
    return path


def _is_there(path: Path) -> ConfigurationError:
    return ConfigurationError(
        f"{path} is there: a rebuild makes a new file, never changes one; move this one away, with the files "
        "beside it that begin alike, or name another with --into"
    )


def store_holder(settings: Settings, options: ObjectStoreOptions) -> str | None:
    """Return a sentence for people: whose the store is, and who used it last, when and for what; None: nobody's.

    Raises what the store raises.
    """
    with closing(open_storage(settings, options)) as opened:
        storage = listing_storage(opened)
        try:
            identity, newest = storage.read_identity(), storage.generations.newest()
        except RemoteObjectCorruptError as error:
            return f"{settings.rsm_config_url} belongs to metadata that cannot be named ({error})."
    if identity is None and newest is None:
        return None
    which = "other metadata" if identity is None else f"the metadata {identity.metadata_uuid}"
    held = f"{settings.rsm_config_url} belongs to {which}"
    if newest is None:
        return f"{held}, which never used it since they were bound to it."
    return f"{held}; {newest.holder} last used it at {as_date(newest.renewed_at)} ({newest.reason})."


def _ensure_something_is_there(storage: ObjectRemoteStorageManager, url: str) -> None:
    # A store.json alone, even a damaged one, is what a first copy left whose metadata are lost.
    if all(
        found.name != STORE_IDENTITY and parse_partition_folder(found.name) is None for found in storage.list_objects()
    ):
        raise ConfigurationError(f"{url} holds no partition of a remote log: is the URL right, and the disk mounted?")
