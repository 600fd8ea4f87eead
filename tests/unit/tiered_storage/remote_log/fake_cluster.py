"""A cluster that serves batches of one partition to whoever fetches them, without a connection."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tiered_storage.kafka_wire.fetch import FetchAnswer, FetchBuffer, FetchedPartition, FetchLimits, FetchPosition
from tiered_storage.remote_log.source.partition_log import FETCHED_SCHEME, LocalSegment


@dataclass
class FakeCluster:
    """Serves `batches`, from the one that holds an offset on; answers end in the middle of a batch."""

    batches: Sequence[bytes]
    ends: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.ends = [base_of(batch) + delta_of(batch) + 1 for batch in self.batches]

    def fetch(
        self, positions: Sequence[FetchPosition], buffer: FetchBuffer, limits: FetchLimits | None = None
    ) -> FetchAnswer:
        [asked] = positions
        first = bisect_right(self.ends, asked.offset)
        served = b"".join(self.batches[first : first + 40])
        size = max((limits or FetchLimits()).max_bytes, len(self.batches[first])) if served else 0
        room = buffer.room(len(served[:size]))
        room[:] = served[:size]
        found = FetchedPartition("orders", 0, 0, self.ends[-1], self.ends[-1], 0, (), -1, room)
        return FetchAnswer(0.0, (found,))


def path_of(fetched: LocalSegment) -> Path:
    """Return the file of a segment that was fetched."""
    scheme, _, path = fetched.location.partition("://")
    assert scheme == FETCHED_SCHEME
    return Path(path)


def base_of(batch: bytes) -> int:
    return int.from_bytes(batch[:8], "big")


def delta_of(batch: bytes) -> int:
    return int.from_bytes(batch[23:27], "big")
