"""The records of a partition from an offset on, in one of the formats, piece by piece."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import TypeVar

import pyarrow as pa

from tiered_storage.errors import CorruptRecordError
from tiered_storage.remote_log.read.read_values import FetchedBatches
from tiered_storage_airflow.read_service import record_forms
from tiered_storage_airflow.read_service.access import Access
from tiered_storage_airflow.read_service.record_forms import Form
from tiered_storage_airflow.read_service.service import OpenService

Piece = TypeVar("Piece")


@dataclass(frozen=True, slots=True)
class RecordStream:
    """At most `most_records` records, from about `most_bytes` of `batches`.

    Raw batches are returned whole, and only `most_bytes` limits them.
    """

    batches: AsyncGenerator[FetchedBatches, None]
    most_records: int
    most_bytes: int
    form: Form
    service: OpenService
    access: Access

    def pieces(self) -> AsyncGenerator[bytes, None]:
        """Return the pieces of a response."""
        return self._batches() if self.form is Form.BATCHES else self._records()

    async def _batches(self) -> AsyncGenerator[bytes, None]:
        async with aclosing(self._parts()) as parts:
            async for part in parts:
                self.access.took(part.start_offset, part.end_offset - 1, None)
                yield record_forms.whole_batches(part)

    async def _records(self) -> AsyncGenerator[bytes, None]:
        is_arrow = self.form is Form.ARROW
        # Sent with the first records, so that an error in them can still become an error response.
        begin = await self.service.threads.moving.run(record_forms.arrow_begin) if is_arrow else b""
        encode = record_forms.arrow_message if is_arrow else record_forms.json_lines
        async with aclosing(self.encoded(encode)) as pieces:
            async for piece in pieces:
                yield begin + piece
                begin = b""
        if is_arrow:
            yield begin + record_forms.arrow_end()

    async def encoded(self, encode: Callable[[pa.RecordBatch], Piece]) -> AsyncGenerator[Piece, None]:
        """Yield the records encoded by `encode`, some at a time, on a thread."""
        left = self.most_records
        async with aclosing(self._parts()) as parts:
            async for part in parts:
                async with aclosing(self._of_part(part, left, encode)) as pieces:
                    async for piece, count in pieces:
                        left -= count
                        yield piece
                if left <= 0:
                    return

    async def _parts(self) -> AsyncGenerator[FetchedBatches, None]:
        """Yield whole batches with about `most_bytes` in all."""
        left, has_any = self.most_bytes, False
        async with aclosing(self.batches) as batches:
            async for fetched in batches:
                part, size = record_forms.fitting(fetched, left, at_least_one=not has_any)
                left, has_any = left - size, has_any or size > 0
                if size:
                    yield part
                if left <= 0 or len(part.table) < len(fetched.table):
                    return

    async def _of_part(
        self, fetched: FetchedBatches, most: int, encode: Callable[[pa.RecordBatch], Piece]
    ) -> AsyncGenerator[tuple[Piece, int], None]:
        """Yield pieces with at most `most` records of `fetched` in all, and how many each one has."""
        reached = fetched.start_offset
        usual = record_forms.decoded(self.form, fetched, reached, record_forms.USUAL_BYTES)
        try:
            async for piece, last, count in self._decoded(usual, most, encode):
                reached, most = last + 1, most - count
                yield piece, count
        except CorruptRecordError:
            # Too large, or really corrupt: decoding it again with a higher limit shows which.
            async with self.service.places.for_a_large_batch():
                large = record_forms.decoded(self.form, fetched, reached, record_forms.MOST_BYTES)
                async for piece, _, count in self._decoded(large, most, encode):
                    yield piece, count

    async def _decoded(
        self, decoding: Iterator[pa.RecordBatch], most: int, encode: Callable[[pa.RecordBatch], Piece]
    ) -> AsyncGenerator[tuple[Piece, int, int], None]:
        while most and (found := await self.service.threads.moving.run(_next(decoding, most, encode))):
            piece, first, last, count = found
            most -= count
            self.access.took(first, last, count)
            yield piece, last, count


def _next(
    decoded: Iterator[pa.RecordBatch], most: int, encode: Callable[[pa.RecordBatch], Piece]
) -> Callable[[], tuple[Piece, int, int, int] | None]:
    def work() -> tuple[Piece, int, int, int] | None:
        for found in decoded:
            batch = found.slice(0, most)
            offsets = batch.column(0)
            return encode(batch), offsets[0].as_py(), offsets[-1].as_py(), batch.num_rows
        return None

    return work
