"""What looks at a remote log and changes nothing of it."""

from __future__ import annotations

from dataclasses import dataclass

from tiered_storage.errors import ConfigurationError
from tiered_storage.remote_log.audit import AuditReport, audit_remote_log
from tiered_storage.remote_log.remote_log_parts import RemoteLogParts
from tiered_storage.remote_log.selection import EVERYTHING, Selection
from tiered_storage.remote_log.storage.segment_objects import ObjectRemoteStorageManager


@dataclass(frozen=True, slots=True)
class RemoteLogChecks:
    """Checks over the open `parts`; what each does is said where it is implemented."""

    parts: RemoteLogParts

    def audit(self, selection: Selection = EVERYTHING, *, deep: bool = False) -> AuditReport:
        """Hold the store against the metadata; see audit_remote_log.

        Raises ConfigurationError for a user's own RemoteStorageManager, which cannot list what it holds.
        """
        storage = self.parts.storage
        if not isinstance(storage, ObjectRemoteStorageManager):
            raise ConfigurationError(
                f"{type(storage).__name__} cannot be audited: only the stores of "
                "tiered_storage.remote_log.storage.segment_objects list what they hold"
            )
        return audit_remote_log(
            self.parts.segments,
            storage,
            selection,
            self.parts.clock,
            grace_ms=self.parts.settings.remote_log_orphan_grace_ms,
            deep=deep,
        )
