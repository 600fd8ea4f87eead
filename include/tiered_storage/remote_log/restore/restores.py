"""What brings topics back from the store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tiered_storage.errors import ConfigurationError
from tiered_storage.remote_log.context import RemoteLogContext, overlaps
from tiered_storage.remote_log.progress import OnMoved, untold
from tiered_storage.remote_log.restore.directory import DirectoryTarget, RestoredDirectory, restore_to_directory
from tiered_storage.remote_log.restore.plan import plan_restore
from tiered_storage.remote_log.restore.request import RestorePlan, RestoreRequest
from tiered_storage.remote_log.restore.validation import Validation

if TYPE_CHECKING:
    from tiered_storage.remote_log.restore.cluster import ClusterReport, ClusterTarget


@dataclass(frozen=True, slots=True)
class RemoteLogRestores:
    """Plans and carries out restores over an open `context`; what each does is said where it is implemented."""

    context: RemoteLogContext

    def plan(self, request: RestoreRequest) -> RestorePlan:
        """Return what a restore would bring back; see plan_restore."""
        return plan_restore(self.context.segments, self.context.storage, request)

    def to_directory(
        self,
        plan: RestorePlan,
        target: DirectoryTarget,
        *,
        validation: Validation = Validation.SIZES,
        allow_gaps: bool = False,
        workers: int = 2,
        on_moved: OnMoved = untold,
    ) -> list[RestoredDirectory]:
        """Bring back what `plan` names as files of a broker; see restore_to_directory.

        Raises ConfigurationError for a directory inside the store or another place of ours, or around one.
        """
        if found := overlaps(self.context.settings, target.root, str(target.root)):
            raise ConfigurationError("; ".join(found))
        return restore_to_directory(
            plan,
            self.context.storage,
            target,
            validation=validation,
            allow_gaps=allow_gaps,
            workers=workers,
            on_moved=on_moved,
        )

    def to_cluster(
        self,
        plan: RestorePlan,
        target: ClusterTarget,
        *,
        validation: Validation = Validation.SIZES,
        allow_gaps: bool = False,
        on_moved: OnMoved = untold,
    ) -> ClusterReport:
        """Bring back what `plan` names as records in a running cluster; see restore_to_cluster."""
        from tiered_storage.remote_log.restore.cluster import restore_to_cluster  # noqa: PLC0415 -- a Kafka client

        return restore_to_cluster(
            plan, self.context.storage, target, validation=validation, allow_gaps=allow_gaps, on_moved=on_moved
        )
