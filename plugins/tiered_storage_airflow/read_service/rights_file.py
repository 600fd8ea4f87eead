"""The rights in the file that the settings name, read again when the file changes."""

from __future__ import annotations

import logging
from pathlib import Path

from tiered_storage.errors import ConfigurationError
from tiered_storage.settings.read_rights import NO_RIGHTS, ReadRights, load_read_rights

_log = logging.getLogger(__name__)
_Stamp = tuple[int, ...]


class RightsFile:
    """One file of rights; a missing or invalid one grants nothing."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        """The file; None if the settings name none."""
        self._stamp: _Stamp | None = None
        self._rights = NO_RIGHTS
        self.problem: str | None = None
        """Why nobody has any rights, for the service's operators; None if the file is valid."""
        if path is None:
            self._deny("read.service.rights.file names no file")

    def current(self) -> ReadRights:
        """Return the present rights."""
        if self.path is None:
            return NO_RIGHTS
        try:
            found = self.path.stat()
        except OSError as error:
            self._stamp = None
            self._deny(f"{self.path}: the rights cannot be read: {error.strerror}")
            return NO_RIGHTS
        stamp = (found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino)
        if stamp != self._stamp:
            self._stamp = stamp if self._read(self.path) else None
        return self._rights

    def _read(self, path: Path) -> bool:
        """Read the file; return whether it needs no further reading until it changes."""
        try:
            self._rights = load_read_rights(path)
        except ConfigurationError as error:
            self._deny(str(error))
            return not isinstance(error.__cause__, OSError)
        self.problem = None
        return True

    def _deny(self, problem: str) -> None:
        self._rights = NO_RIGHTS
        if problem != self.problem:
            _log.error("nobody may see or read any topic through the read service: %s", problem)
        self.problem = problem
