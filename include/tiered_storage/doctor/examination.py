"""Check whether a remote log can work here: settings, directories, stores, metadata and the machine, each on its own.

It changes nothing, except that it writes and deletes one object in the store and one in the work area. It neither
creates what is missing nor migrates metadata of an earlier version.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path

from tiered_storage.clock import Clock
from tiered_storage.doctor.check import Check, Status, alone, note, ok
from tiered_storage.doctor.encryption import check_encryption
from tiered_storage.doctor.log_directories import check_log_directories
from tiered_storage.doctor.machine import check_machine
from tiered_storage.doctor.metadata_store import check_metadata
from tiered_storage.doctor.object_stores import check_folder, check_objects, check_storage
from tiered_storage.doctor.rights import check_read_rights, check_rights
from tiered_storage.doctor.source_cluster import check_cluster
from tiered_storage.errors import TieredStorageError
from tiered_storage.redaction import hide_secrets
from tiered_storage.remote_log.context import open_storage, store_options
from tiered_storage.remote_log.model import TopicIdPartition
from tiered_storage.remote_log.storage.clients.options import ObjectStoreOptions
from tiered_storage.remote_log.storage.listable_storage import as_listable
from tiered_storage.settings.settings import Settings, load_settings

__all__ = ["Check", "Status", "examine"]


def examine(config: Path | None, clock: Clock, environ: Mapping[str, str]) -> Iterator[Check]:
    """Check everything that the settings in `config` (or where load_settings finds them) name; raise nothing."""
    found: list[tuple[Settings, ObjectStoreOptions]] = []

    def read() -> Iterator[Check]:
        settings = load_settings(config, environ=environ)
        yield from check_settings(settings)
        found.append((settings, store_options(settings, environ)))

    yield from alone("settings", read)
    for settings, options in found:
        yield from _examine(settings, options, clock)
    yield from check_machine(environ)


def _examine(settings: Settings, options: ObjectStoreOptions, clock: Clock) -> Iterator[Check]:
    yield from check_log_directories(settings, _namer(settings, options))
    yield from alone("cluster", lambda: check_cluster(settings))
    yield from alone("state.directory", lambda: check_folder("state.directory", settings.state_directory))
    yield from alone("rights", lambda: check_rights(settings))
    yield from alone("store", lambda: check_storage(settings, options, clock))
    yield from alone("encryption", lambda: check_encryption(settings, options))
    yield from alone("work area", lambda: check_objects("work area", settings.work_url, options, clock))
    yield from alone("metadata", lambda: check_metadata(settings, clock, options))
    yield from alone("read service", lambda: check_read_rights(settings))


def _namer(settings: Settings, options: ObjectStoreOptions) -> Callable[[TopicIdPartition], str | None]:
    """Return a function that returns why the store can never hold a partition; it does not access the store."""
    try:
        with closing(open_storage(settings, options)) as storage:
            if (listable := as_listable(storage)) is not None:
                return listable.why_no_name
    except TieredStorageError:
        # The check of the store reports why it cannot be opened.
        pass
    return lambda _: None


def check_settings(settings: Settings) -> Iterator[Check]:
    """Yield the settings file, every value that is set with its origin, and the settings' notices."""
    if settings.config_path is None:
        yield note(
            "settings",
            "no settings file was read: everything that the environment does not set has its default",
            "write include/tiered_storage.yaml, or name a file by --config or TIERED_STORAGE_CONFIG",
        )
    else:
        yield ok("settings", f"read from {settings.config_path}")
    for notice in settings.notices:
        yield note("settings", notice)
    for path, where in settings.origins.items():
        if len(path) == 1:
            yield ok("settings", f"{path[0]} is {_shown(settings, path[0])} ({where})")
    for prefix, values in (("rsm.config.", settings.rsm_config), ("rlmm.config.", settings.rlmm_config)):
        if values:
            yield ok("settings", f"your own class gets the options {', '.join(sorted(values))} ({prefix})")
    if settings.scheduled_deletion_enable:
        yield ok("settings", "scheduled deletion is on: runs that a schedule or an asset event starts delete")
    else:
        yield ok(
            "settings",
            "scheduled deletion is off: runs that a schedule or an asset event starts only plan, until "
            "scheduled.deletion.enable is true",
        )
    if settings.topics:
        yield ok("settings", f"topics with initial properties: {', '.join(sorted(settings.topics))}")


def _shown(settings: Settings, name: str) -> str:
    value = getattr(settings, name.replace(".", "_"))
    if isinstance(value, bool):
        return str(value).lower()
    return hide_secrets(", ".join(map(str, value)) if isinstance(value, tuple) else str(value))
