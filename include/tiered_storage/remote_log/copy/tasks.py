"""What a copy run writes between its steps: one JSON object a line, so that tasks pass each other only paths.

plan (CopyPlan) -> begun (CopyTask, one a segment) -> copied (CopyOutcome, one a segment) -> committed
"""

from __future__ import annotations

from dataclasses import dataclass

from tiered_storage.kafka_log.files.leader_epoch_checkpoint import EpochEntry
from tiered_storage.remote_log.jobs.messages import CopyFailure
from tiered_storage.remote_log.model import Lease, RemoteLogSegmentMetadata, RemoteLogSegmentMetadataUpdate
from tiered_storage.remote_log.source.segment_source import PlannedLocation
from tiered_storage.remote_log.storage.transforms.encoding import PLAIN, Encoding


@dataclass(frozen=True, slots=True)
class CopyTask:
    """One segment to copy, begun as `metadata` under `lease`. `lineage` holds all epochs up to its end.

    `readable_from` is the first offset (inclusive) of the partition that readers are given once this is committed.
    `after` is the remote segment that it continues, if no other task of the run continues it: the local log must have
    the same batches. `encoding` is what the topic's settings ask for.
    """

    metadata: RemoteLogSegmentMetadata
    lease: Lease
    location: PlannedLocation
    lineage: tuple[EpochEntry, ...]
    readable_from: int = 0
    after: RemoteLogSegmentMetadata | None = None
    encoding: Encoding = PLAIN


@dataclass(frozen=True, slots=True)
class CopyOutcome:
    """How the copy of one task ended: with `finished`, the step that commits it, or with `failure`.

    `damages` name errors beside the segment's bytes (a false index); they do not stop the copy, but the run fails.
    `notices` are worth knowing (an index rebuilt because it was missing). `seconds` of work; `library` is the
    folder that the worker's code came from.
    """

    task: CopyTask
    finished: RemoteLogSegmentMetadataUpdate | None
    failure: CopyFailure | None = None
    record_count: int = 0
    damages: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
    seconds: float = 0.0
    library: str = ""
