"""A read of a partition whose steps a test gives."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass

from tiered_storage.remote_log.read.read_values import FetchedBatches


@dataclass
class GivenStream:
    """A read whose steps are `batches`: in memory already if `are_there`, else fetched when they are waited for."""

    batches: AsyncGenerator[FetchedBatches, None]
    are_there: bool = False

    def fetch(self) -> AsyncGenerator[FetchedBatches, None]:
        return self.batches

    def is_next_there(self) -> bool:
        return self.are_there
