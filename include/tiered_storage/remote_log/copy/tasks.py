"""What a copy run writes between its steps: one JSON object a line, so that tasks pass each other only paths.

plan (CopyPlan) -> begun (CopyTask, one a segment) -> copied (CopyOutcome, one a segment) -> committed
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.remote_log.jobs.messages import CopyFailure
from tiered_storage.remote_log.model import (
    Lease,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    SegmentCut,
)
from tiered_storage.remote_log.source.partition_log import CutRules, PlannedLocation
from tiered_storage.remote_log.storage.transforms.encoding import PLAIN, Encoding


@dataclass(frozen=True, slots=True)
class CutOrder:
    """How the copy cuts its segment out of a running cluster's log: the next one, from `from_offset` (inclusive) on.

    All segments that a run cuts of a partition share this and the bounds in their metadata. `size` is an estimate.
    `truncated` is the remote segment that reaches past `from_offset`, because a later leader truncated what follows it
    there, after the segment that ends where it begins, if there is one: they show the producers at `from_offset`.
    """

    rules: CutRules
    from_offset: int
    size: int
    truncated: tuple[RemoteLogSegmentMetadata, ...] = ()


@dataclass(frozen=True, slots=True)
class CopyTask:
    """One segment to copy, begun as `metadata` under `lease`. `lineage` holds all epochs up to its end.

    `readable_from` is the first offset (inclusive) of the partition that readers are given once this is committed.
    `after` is the remote segment that it continues, if no other task of the run continues it: the local log must have
    the same batches. `encoding` is what the topic's settings ask for. With `cut`, `metadata` has only bounds.
    """

    metadata: RemoteLogSegmentMetadata
    lease: Lease
    location: PlannedLocation
    lineage: tuple[EpochEntry, ...]
    readable_from: int = 0
    after: RemoteLogSegmentMetadata | None = None
    encoding: Encoding = PLAIN
    cut: CutOrder | None = None

    @property
    def size(self) -> int:
        """The bytes to copy; an estimate if the copy cuts the segment itself."""
        return self.metadata.size if self.cut is None else self.cut.size


@dataclass(frozen=True, slots=True)
class CopyOutcome:
    """How the copy of one task ended: with `finished`, the step that commits it, or with `failure`.

    `damages` name errors beside the segment's bytes (a false index); they do not stop the copy, but the run fails.
    `notices` are worth knowing (an index rebuilt because it was missing). `seconds` of work; `library` is the
    folder that the worker's code came from.

    `cut` is the segment that the copy cut itself, if it got so far. `is_unused`: the log had no further segment to cut,
    and nothing was written.
    """

    task: CopyTask
    finished: RemoteLogSegmentMetadataUpdate | None
    failure: CopyFailure | None = None
    record_count: int = 0
    damages: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
    seconds: float = 0.0
    library: str = ""
    cut: SegmentCut | None = None
    is_unused: bool = False

    @property
    def has_ended(self) -> bool:
        """Whether its worker left a result."""
        return self.finished is not None or self.failure is not None or self.is_unused

    @property
    def metadata(self) -> RemoteLogSegmentMetadata:
        """The metadata that the copy began with, and with what it cut, as far as that is known."""
        begun = self.task.metadata
        if self.cut is None:
            return begun
        return replace(
            begun,
            start_offset=self.cut.start_offset,
            end_offset=self.cut.end_offset,
            size=self.cut.size,
            leader_epochs=self.cut.leader_epochs,
        )
