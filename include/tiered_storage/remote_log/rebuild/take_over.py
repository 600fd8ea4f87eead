"""Backups of the metadata: write one, put one back, and let metadata take over a store.

A backup has the generation of its moment. Put back, it is another file than the generation records, and usually older
than the store; so it changes nothing until `rebuild-metadata` rebuilds newer metadata from the store, or a person lets
it take over.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from tiered_storage.clock import Clock
from tiered_storage.errors import (
    ConfigurationError,
    OutdatedMetadataError,
    RemoteObjectCorruptError,
    StoreMismatchError,
    TieredStorageError,
)
from tiered_storage.kafka_log.files.small_files import sync_directory
from tiered_storage.private_files import PRIVATE_FILE, make_private_folder
from tiered_storage.remote_log.context import RemoteLogContext, ensure_sql_metadata
from tiered_storage.remote_log.coverage import finished
from tiered_storage.remote_log.metadata.generation import GenerationGuard
from tiered_storage.remote_log.metadata.metadata_store import MetadataStore
from tiered_storage.remote_log.metadata.outdated_metadata import is_carried
from tiered_storage.remote_log.metadata.sql.database.database_kinds import local_file
from tiered_storage.remote_log.metadata.sql.database.engine import Database
from tiered_storage.remote_log.metadata.sql.database.moving import ensure_no_metadata, fill_database, move_metadata
from tiered_storage.remote_log.metadata.sql.database.schema import SCHEMA_VERSION
from tiered_storage.remote_log.metadata.sql.database.schema_migrations import (
    bring_up_to_date,
    later_version,
    schema_version,
)
from tiered_storage.remote_log.metadata.sql.database.sqlite_database import open_existing
from tiered_storage.remote_log.metadata.sql.store import SqlMetadataStore
from tiered_storage.remote_log.model import TopicIdPartition
from tiered_storage.remote_log.rebuild.metadata_rebuild import above_all
from tiered_storage.remote_log.storage.documents.object_names import partition_folder
from tiered_storage.remote_log.storage.listable_storage import ListableStorage, listing_storage
from tiered_storage.remote_log.storage.remote_storage_manager import RemoteStorageManager
from tiered_storage.remote_log.tiering_policy import withhold_seeded_rights
from tiered_storage.settings.settings import Settings

_BESIDE = ("", "-wal", "-shm", "-journal")


@dataclass(frozen=True, slots=True)
class TakeOver:
    """A completed take-over; if the metadata were older than the store, it revoked every right to delete."""

    was_outdated: bool
    generation: int


def back_up_metadata(
    store: MetadataStore, target: Path, clock: Clock, open_storage: Callable[[], RemoteStorageManager]
) -> str | None:
    """Write the committed content to the new file `target`, durably, while other processes continue.

    Returns why it is not a backup of the store's metadata, or why that is unknown; None if all is well. Metadata that
    are bound to a store are backed up in any case. Raises ConfigurationError if the file exists, RemoteMetadataError if
    it cannot be written, and StoreMismatchError if the metadata are not bound but the store that `open_storage` opens
    belongs to others: such a backup would lack everything that was copied.
    """
    is_bound = _ensure_nobody_elses(store, clock, open_storage)
    store.copy_to(target)
    store.generation.record_backup(clock())
    return _why_no_backup(store, clock, open_storage) if is_bound else None


def _why_no_backup(store: MetadataStore, clock: Clock, open_storage: Callable[[], RemoteStorageManager]) -> str | None:
    try:
        with closing(open_storage()) as storage:
            GenerationGuard(store, lambda: storage, clock).ensure_same()
    except (OutdatedMetadataError, StoreMismatchError) as error:
        return f"the metadata that were backed up are not the store's: keep your earlier backups. {error}"
    except TieredStorageError as error:
        return f"it is unknown whether the metadata that were backed up are the store's: {error}"
    return None


def move_store(
    settings: Settings, target_url: str, clock: Clock, open_storage: Callable[[], RemoteStorageManager]
) -> tuple[str, str]:
    """Move the metadata to the database at `target_url`; return the names of both; see move_metadata.

    Raises StoreMismatchError if the metadata are not bound but the store that `open_storage` opens belongs to others.
    """

    ensure_sql_metadata(settings)

    def check(source: Database) -> None:
        _ensure_nobody_elses(SqlMetadataStore(source, clock), clock, open_storage)

    url = settings.rlmm_config_url.get_secret_value()
    return move_metadata(url, target_url, clock, settings.metadata_busy_timeout_ms, check)


def _ensure_nobody_elses(store: MetadataStore, clock: Clock, open_storage: Callable[[], RemoteStorageManager]) -> bool:
    """Return whether the metadata are bound. Raises StoreMismatchError if not, and the store belongs to others."""
    if store.identity.bound_store_uuid() is not None:
        return True
    with closing(open_storage()) as storage:
        GenerationGuard(store, lambda: storage, clock).ensure_readable(outdated=True)
    return False


def restore_metadata(settings: Settings, source: Path) -> str:
    """Put the backup `source` where the settings have the metadata; return that file or database, for messages.

    Raises ConfigurationError if a metadata store, or a remainder of one, is there; MetadataCorruptError for a damaged
    backup and one of a later release.
    """
    ensure_sql_metadata(settings)
    url = settings.rlmm_config_url.get_secret_value()
    path = local_file(url)
    if path is None:
        where = ensure_no_metadata(url)
        _ensure_backup(source)
        _restore_into(url, source, settings.metadata_busy_timeout_ms)
        return where
    for suffix in _BESIDE:
        if (found := path.with_name(path.name + suffix)).exists():
            raise ConfigurationError(
                f"{found}: exists, and would corrupt a restored database: end every process of Remote Log "
                f"('make down'), move away {path.name} and every file that begins with {path.name}-, and restore again"
            )
    _ensure_backup(source)
    make_private_folder(path.parent)
    with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as directory:
        copied = _checked_copy(source, Path(directory, path.name), settings.metadata_busy_timeout_ms)
        with copied.open("rb+") as file:
            os.fsync(file.fileno())
        try:
            path.hardlink_to(copied)
        except FileExistsError:
            raise ConfigurationError(
                f"{path}: another process just created it: check which, then restore again"
            ) from None
    sync_directory(path.parent)
    return str(path)


def _restore_into(url: str, source: Path, busy_timeout_ms: int) -> None:
    with tempfile.TemporaryDirectory(prefix="remote-log-") as directory:
        copied = _checked_copy(source, Path(directory, source.name), busy_timeout_ms)
        with open_existing(copied, busy_timeout_ms) as database:
            bring_up_to_date(database)
            fill_database(url, database, busy_timeout_ms, is_own_place=False)


def _ensure_backup(source: Path) -> None:
    if not source.is_file():
        raise ConfigurationError(
            f"{source}: is not a file: name the backup that 'tiered-storage metadata backup' wrote"
        )
    log = source.with_name(f"{source.name}-wal")
    if log.exists() and log.stat().st_size:
        raise ConfigurationError(
            f"{source}: {log.name} lies beside it, so it is the database of a running process and not a backup: make "
            "one with 'tiered-storage metadata backup'"
        )


def _checked_copy(source: Path, target: Path, busy_timeout_ms: int) -> Path:
    target.touch(mode=PRIVATE_FILE)
    shutil.copyfile(source, target)
    _check(target, busy_timeout_ms)
    return target


def _check(path: Path, busy_timeout_ms: int) -> None:
    with open_existing(path, busy_timeout_ms) as database:
        database.check_integrity()
        with database.reading() as connection:
            found = schema_version(connection)
        if found is None:
            raise ConfigurationError(f"{path.name}: is not a metadata store of Remote Log")
        if found > SCHEMA_VERSION:
            raise later_version(path.name, found, SCHEMA_VERSION)


def take_over(context: RemoteLogContext) -> TakeOver:
    """Bind the store to the metadata of `context`, at the user's request.

    Other copies of them are refused from then on. Metadata older than the store lose every right to delete, since later
    decisions are unknown, and grant leases above all that the store has seen. Raises StoreMismatchError if the store
    belongs to other metadata, these belong to another store, or the store holds none of their segments.
    """
    storage, identity = listing_storage(context.storage), context.store.identity
    bound = identity.bound_store_uuid()
    try:
        stored = storage.read_identity()
    except RemoteObjectCorruptError:
        stored = None
    own = identity.metadata_uuid
    # A store that a rebuild elsewhere took over is still ours by its own UUID.
    if stored is not None and bound != stored.store_uuid:
        stored.ensure_of(context.settings.rsm_config_url, own, bound)
    if stored is None and bound is None:
        raise StoreMismatchError(
            f"{context.settings.rsm_config_url}: nothing proves that this store belongs to these metadata, which were "
            "never bound to one: use the store's own metadata, or run 'tiered-storage rebuild-metadata'"
        )
    _ensure_holds_what_is_known(context, storage)
    is_current = _is_current(context.store, storage)
    if not is_current:
        for topic in context.store.topics.list():
            context.store.topics.put(replace(topic, local_deletion_allowed=False, remote_deletion_allowed=False))
        withhold_seeded_rights(context.store.topics, context.settings)
        context.store.leases.begin_above(_above_all_leases(context, storage))
    storage.rebind(own, identity.bind_store, bound)
    context.guard.claim("a person let these metadata take over")
    return TakeOver(not is_current, context.store.generation.read().number)


def _ensure_holds_what_is_known(context: RemoteLogContext, storage: ListableStorage) -> None:
    known = [each for each in context.segments.list_partitions() if _has_finished(context, each)]
    if not known or any(_is_any_stored(storage, each) for each in known):
        return
    raise StoreMismatchError(
        f"{context.settings.rsm_config_url}: none of the segments in these metadata is there: is the URL right, and "
        "the disk mounted? If they are lost for good, set rlmm.config.url to new metadata: these copy again what is "
        "local"
    )


def _has_finished(context: RemoteLogContext, partition: TopicIdPartition) -> bool:
    return bool(finished(context.segments.list_remote_log_segments(partition)))


def _is_any_stored(storage: ListableStorage, partition: TopicIdPartition) -> bool:
    return any(found.segment is not None for found in storage.list_objects(partition_folder(partition)))


def _is_current(store: MetadataStore, storage: ListableStorage) -> bool:
    try:
        stored = storage.generations.newest()
    except RemoteObjectCorruptError:
        return False
    known = store.generation.read()
    return known.has_own_decisions and is_carried(known, stored)


def _above_all_leases(context: RemoteLogContext, storage: ListableStorage) -> dict[TopicIdPartition, int]:
    given = {each: context.leases.fencing_number(each) for each in context.segments.list_partitions()}
    for found in storage.list_objects():
        if (name := found.document) is not None:
            partition = name.topic_id_partition
            given[partition] = max(given.get(partition, 0), name.fencing_number)
    return {partition: above_all(partition, number) for partition, number in given.items()}
