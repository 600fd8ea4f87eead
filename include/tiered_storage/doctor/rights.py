"""Check who on this machine can use the state directory, the metadata, and the folders that settings name."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tiered_storage.doctor.check import Check, note, ok, wrong
from tiered_storage.private_files import wide
from tiered_storage.remote_log.context import metadata_file
from tiered_storage.settings.read_rights import load_read_rights
from tiered_storage.settings.settings import Settings

_NAME = "rights"
_MOST_NAMED = 5


def check_rights(settings: Settings) -> Iterator[Check]:
    """Yield what others on this machine can read or write of our files. Raises ConfigurationError.

    Everything in a folder that is closed to them is closed to them. A folder outside state.directory may be readable by
    everybody on purpose, but never writable.
    """
    state = settings.state_directory
    found = list(wide(state))
    if found:
        named = ", ".join(f"{path} ({_rights(path)})" for path in reversed(found[-_MOST_NAMED:]))
        more = f" and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
        advice = f"chmod -R go= {state}"
        yield wrong(_NAME, f"anybody on this machine may use {named}{more}", advice)
    elif state.is_dir():
        yield ok(_NAME, f"{state} is closed to others")
    database = metadata_file(settings)
    if database is not None and state not in database.parents and database.parent.is_dir():
        for path in sorted(database.parent.glob(f"{database.name}*")):
            if path.stat().st_mode & (stat.S_IROTH | stat.S_IWOTH):
                message = f"anybody on this machine may use {path} ({_rights(path)})"
                yield wrong(_NAME, message, f"chmod go= {path}")
    for name, url in _folders(settings):
        folder = Path(unquote(urlsplit(url).path))
        if urlsplit(url).scheme == "file" and state not in folder.parents and folder.is_dir():
            yield from _check_shared(name, folder)


def _folders(settings: Settings) -> Iterator[tuple[str, str]]:
    yield "rsm.config.url", settings.rsm_config_url
    yield "work.url", settings.work_url
    yield "export.url", settings.export_url


def _check_shared(name: str, folder: Path) -> Iterator[Check]:
    mode = folder.stat().st_mode
    if mode & stat.S_IWOTH:
        advice = f"chmod o-w {folder}: whoever can write there decides what is copied, read and deleted"
        yield wrong(_NAME, f"{name}: anybody on this machine may write to {folder} ({_rights(folder)})", advice)
    elif mode & (stat.S_IROTH | stat.S_IXOTH):
        message = f"{name}: anybody on this machine may read what lies in {folder} ({_rights(folder)})"
        yield note(_NAME, message, f"if that is not intended: chmod o= {folder}")


def _rights(path: Path) -> str:
    return stat.filemode(path.stat().st_mode)


def check_read_rights(settings: Settings) -> Iterator[Check]:
    """Yield how many roles and users have rights. Raises ConfigurationError if their file is invalid."""
    path = settings.read_service_rights_file
    if path is None:
        yield ok("read service", "grants no topic to anybody: read.service.rights.file is not set")
        return
    rights = load_read_rights(path)
    if path.stat().st_mode & 0o022:
        yield note(
            "read service", f"users other than its owner can write {path}, and so grant rights", f"chmod go-w {path}"
        )
    yield ok("read service", f"{path} grants rights to {len(rights.roles)} roles and {len(rights.users)} users")
