"""The border to what makes deleting safe: the switch that stops it, what audits found, what could not be deleted.

The docstrings are the contract, as for the borders in __init__.py. None of it decides anything: who deletes asks here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from tiered_storage.remote_log.model import RemoteLogSegmentId
from tiered_storage.remote_log.selection import EVERYTHING, Selection

LONGEST_TEXT = 2_000
"""The most characters that are kept of a reason, a message or an error."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Why nothing is deleted: who said so, when (ms) and for what reason."""

    reason: str
    said_by: str
    said_at: int


@dataclass(frozen=True, slots=True)
class AuditVerdict:
    """What the audit of one topic that began at `audited_at` (ms) found; topic id "" stands for the whole store."""

    cluster_id: str
    topic_id: str
    deep: bool
    audited_at: int
    anomalies: int
    message: str = ""


@dataclass(frozen=True, slots=True)
class DeletionFailure:
    """A segment whose objects could not be deleted: how often, since when (ms), and what was said the last time."""

    segment_id: RemoteLogSegmentId
    attempts: int
    first_failed_at: int
    last_failed_at: int
    error: str


class Safety(Protocol):
    """What everybody who deletes has to know. All methods raise MetadataUnavailableError and MetadataCorruptError."""

    def stop(self, reason: str, said_by: str) -> None:
        """Stop all deletions from now on; a later word takes the place of an earlier one."""
        ...

    def lift(self, said_by: str) -> None:
        """Let deletions go on; where they were not stopped, do nothing."""
        ...

    def stopped(self) -> Stop | None:
        """Return why nothing may be deleted; None if it may."""
        ...

    def put_verdict(self, verdict: AuditVerdict) -> None:
        """Keep a verdict in place of the topic's earlier one of the same depth; a later one that is known stays.

        One of later than now does not: a clock that was ahead made it.
        """
        ...

    def verdicts(self, cluster_id: str, topic_id: str) -> Sequence[AuditVerdict]:
        """Return the topic's verdicts, at most one of each depth, the quick one first."""
        ...

    def note_failures(self, errors: Mapping[RemoteLogSegmentId, str], now: int) -> None:
        """Write down that the objects of these segments could not be deleted at `now` (ms), and why."""
        ...

    def forget_failures(self, segment_ids: Iterable[RemoteLogSegmentId]) -> None:
        """Take these off the list; those that are not on it are passed over."""
        ...

    def failures(self, selection: Selection = EVERYTHING) -> Iterator[DeletionFailure]:
        """Stream what is on the list, by partition."""
        ...
