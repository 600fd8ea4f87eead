"""The border to safety: the switch that stops deletions, audit results, and failed deletions.

The docstrings are the contract, as for the other borders. Nothing here decides anything: every deletion checks it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from tiered_storage.remote_log.model import RemoteLogSegmentId
from tiered_storage.remote_log.selection import EVERYTHING, Selection

LONGEST_TEXT = 2_000
"""The most characters that are kept of a reason, a message or an error."""
MOST_SKEW_MS = 300_000
"""How far apart, in ms, the clocks of two auditors may be."""


@dataclass(frozen=True, slots=True)
class Stop:
    """A stop of all deletions: who requested it, when (ms) and why."""

    reason: str
    stopped_by: str
    stopped_at: int


@dataclass(frozen=True, slots=True)
class AuditResult:
    """The result of the audit of one topic that began at `audited_at` (ms); topic id "" is the whole store."""

    cluster_id: str
    topic_id: str
    deep: bool
    audited_at: int
    anomalies: int
    message: str = ""


@dataclass(frozen=True, slots=True)
class DeletionFailure:
    """A segment whose objects could not be deleted: how often, since when (ms), and the last error."""

    segment_id: RemoteLogSegmentId
    attempts: int
    first_failed_at: int
    last_failed_at: int
    error: str


class Safety(Protocol):
    """What every deletion checks. All methods raise MetadataUnavailableError and MetadataCorruptError."""

    def stop(self, reason: str, stopped_by: str) -> None:
        """Stop all deletions from now on; a later stop replaces an earlier one."""
        ...

    def lift(self, lifted_by: str, before: int | None = None) -> None:
        """Lift the stop, but none made after `before` (ms), in one step; do nothing if there is none."""
        ...

    def stopped(self) -> Stop | None:
        """Return why nothing may be deleted; None if it may."""
        ...

    def put_audit_result(self, result: AuditResult) -> None:
        """Replace the topic's earlier result of the same depth, unless the recorded one is later.

        A recorded result from the future is replaced: a clock that was ahead produced it.
        """
        ...

    def audit_results(self, cluster_id: str, topic_id: str) -> Sequence[AuditResult]:
        """Return the topic's results, at most one of each depth, the quick one first."""
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


def printable(text: str) -> str:
    """Return `text` shortened, with line breaks and terminal commands replaced by spaces."""
    text = "".join(letter if letter.isprintable() else " " for letter in text)
    return text if len(text) <= LONGEST_TEXT else f"{text[: LONGEST_TEXT - 1]}…"
