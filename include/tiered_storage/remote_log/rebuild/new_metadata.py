"""Where a rebuild puts the new metadata: built aside, and put in their place when they are whole."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tiered_storage.errors import ConfigurationError
from tiered_storage.kafka_log.files.small_files import sync_directory
from tiered_storage.private_files import make_private_folder
from tiered_storage.remote_log.context import ensure_sql_metadata
from tiered_storage.remote_log.metadata.sql.database.database_kinds import database_kind, local_file
from tiered_storage.remote_log.metadata.sql.database.moving import ensure_no_metadata, fill_database
from tiered_storage.remote_log.metadata.sql.database.sqlite_database import open_existing
from tiered_storage.settings.settings import Settings


@contextmanager
def built_aside(settings: Settings, into: Path | None) -> Iterator[Path]:
    """Yield a path to build a file at; at the end of the block, if that succeeds, its content becomes the metadata.

    Raises ConfigurationError if nothing can be written there, or the metadata were created meanwhile.
    """
    url, busy_timeout_ms = settings.rlmm_config_url.get_secret_value(), settings.metadata_busy_timeout_ms
    path = _new_file(settings, into)
    if path is None:
        with tempfile.TemporaryDirectory(prefix="remote-log-") as directory:
            built = Path(directory, "metadata.db")
            yield built
            with open_existing(built, busy_timeout_ms) as source:
                fill_database(url, source, busy_timeout_ms, is_own_place=True)
        return
    with ExitStack() as ending:
        try:
            make_private_folder(path.parent)
            directory = ending.enter_context(tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent))
        except OSError as error:
            raise ConfigurationError(
                f"{path}: cannot create the metadata there ({error.strerror}): name another file with --into"
            ) from error
        built = Path(directory, path.name)
        yield built
        try:
            path.hardlink_to(built)
        except FileExistsError:
            raise _is_there(path) from None
        sync_directory(path.parent)


def new_metadata_place(settings: Settings, into: Path | None = None) -> str:
    """Return the file that a rebuild would create, or the database that it would fill, for messages.

    Raises ConfigurationError if it or its log exists, for one inside a log directory, and for a database of the user's
    own class.
    """
    if into is None:
        ensure_sql_metadata(settings)
    url = settings.rlmm_config_url.get_secret_value()
    path = _new_file(settings, into)
    if path is None:
        ensure_no_metadata(url)
        return database_kind(url).where(url)
    for log_dir in settings.log_dirs:
        if path.resolve().is_relative_to(log_dir.resolve()):
            raise ConfigurationError(f"{path} is inside {log_dir} of log.dirs: name a file outside of it")
    # SQLite would add the content of an old log to the new file.
    for suffix in ("", "-wal", "-journal"):
        found = path.with_name(path.name + suffix)
        if found.exists():
            raise _is_there(found)
    return str(path)


def _new_file(settings: Settings, into: Path | None) -> Path | None:
    return into.expanduser().absolute() if into else local_file(settings.rlmm_config_url.get_secret_value())


def _is_there(path: Path) -> ConfigurationError:
    return ConfigurationError(
        f"{path} exists: a rebuild creates a new file and never changes one; move this one away, with the files "
        "beside it whose names begin with its name, or name another with --into"
    )
