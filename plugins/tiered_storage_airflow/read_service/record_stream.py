"""The records of a partition from an offset on, in one of their forms, piece by piece."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import TypeVar

import pyarrow as pa

from tiered_storage.remote_log.reading.read_values import FetchedBatches
from tiered_storage_airflow.read_service import record_forms
from tiered_storage_airflow.read_service.access import Access
from tiered_storage_airflow.read_service.record_forms import PIECE_BYTES, Form
from tiered_storage_airflow.read_service.threads import BoundedThreads

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class RecordStream:
    """At most `most_records` records, from about `most_bytes` of `batches`.

    Batches are given whole, so that their number of records does not count.
    """

    batches: AsyncGenerator[FetchedBatches, None]
    most_records: int
    most_bytes: int
    form: Form
    threads: BoundedThreads
    access: Access

    def pieces(self) -> AsyncGenerator[bytes, None]:
        """Return the pieces of an answer."""
        return self._batches() if self.form is Form.BATCHES else self._records()

    async def _batches(self) -> AsyncGenerator[bytes, None]:
        left, is_first = self.most_bytes, True
        async with aclosing(self.batches) as batches:
            async for fetched in batches:
                content, last = record_forms.whole_batches(fetched, left, at_least_one=is_first)
                if content:
                    self.access.took(fetched.start_offset, last, None)
                for position in range(0, len(content), PIECE_BYTES):
                    yield content[position : position + PIECE_BYTES]
                left -= len(content)
                is_first = False
                if len(content) < len(fetched.content) or left <= 0:
                    return

    async def _records(self) -> AsyncGenerator[bytes, None]:
        encode = record_forms.json_lines if self.form is Form.JSON else record_forms.arrow_message
        # It goes out with the first records, so that what is wrong with them can still be answered.
        begin = await self.threads.run(record_forms.arrow_begin) if self.form is Form.ARROW else b""
        left_records, left_bytes = self.most_records, self.most_bytes
        async with aclosing(self.batches) as batches:
            async for fetched in batches:
                decoded = record_forms.decoded(self.form, fetched)
                while left_records and (found := await self.threads.run(_next(decoded, left_records, encode))):
                    piece, first, last, count = found
                    left_records -= count
                    self.access.took(first, last, count)
                    yield begin + piece
                    begin = b""
                left_bytes -= len(fetched.content)
                if not left_records or left_bytes <= 0:
                    break
        if self.form is Form.ARROW:
            yield begin + record_forms.arrow_end()


def _next(
    decoded: Iterator[pa.RecordBatch], most: int, encode: Callable[[pa.RecordBatch], bytes]
) -> Callable[[], tuple[bytes, int, int, int] | None]:
    def work() -> tuple[bytes, int, int, int] | None:
        for found in decoded:
            batch = found.slice(0, most)
            offsets = batch.column(0)
            return encode(batch), offsets[0].as_py(), offsets[-1].as_py(), batch.num_rows
        return None

    return work
