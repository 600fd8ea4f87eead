"""Who may read through the read service."""

from __future__ import annotations

from collections.abc import Iterator

from tiered_storage.doctor.check import Check, note, ok
from tiered_storage.settings.read_rights import load_read_rights
from tiered_storage.settings.settings import Settings


def check_read_rights(settings: Settings) -> Iterator[Check]:
    """Yield how many roles and users have rights. Raises ConfigurationError where their file is broken."""
    path = settings.read_service_rights_file
    if path is None:
        yield ok("read service", "nobody sees or reads any topic through it: read.service.rights.file names no file")
        return
    rights = load_read_rights(path)
    if path.stat().st_mode & 0o022:
        yield note("read service", f"others than its owner may write {path}, and so give rights", f"chmod go-w {path}")
    yield ok("read service", f"{path} gives rights to {len(rights.roles)} roles and {len(rights.users)} users")
