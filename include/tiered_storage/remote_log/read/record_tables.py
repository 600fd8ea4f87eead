"""Batches as Arrow record batches, the columns that are wanted."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from functools import partial

import numpy as np
import pyarrow as pa

from tiered_storage.kafka_log.columnar.decoder import Checks, ColumnDecoder, RecordRange
from tiered_storage.remote_log.read.read_values import FetchedBatches, aborted_rows
from tiered_storage.remote_log.read.reader_pools import ReaderPool, outcome_of

_CHECKED_ALREADY = Checks(crc=False)


async def decoded(
    batches: AsyncGenerator[FetchedBatches, None],
    columns: Sequence[str] | None,
    within: RecordRange,
    pool: ReaderPool,
) -> AsyncGenerator[pa.RecordBatch, None]:
    """Yield the records of `batches` that lie `within` a range too, without those of aborted transactions.

    `columns` are those of record_columns.py, None: all. Decoding is done on the threads of `pool`, one record batch at
    a time. A record batch is one piece of memory: who keeps one of its columns keeps all.
    """
    async with aclosing(batches):
        async for fetched in batches:
            step = partial(next, _decode(fetched, columns, within), None)
            while (found := await outcome_of(pool.submit(step))) is not None:
                yield found


def _decode(fetched: FetchedBatches, columns: Sequence[str] | None, within: RecordRange) -> Iterator[pa.RecordBatch]:
    table = fetched.table
    skipped = aborted_rows(table, fetched.aborted)
    window, origin = memoryview(fetched.content), fetched.source_position
    if skipped.any():
        rows = np.flatnonzero(~skipped)
        if not rows.size:
            return
        table = type(table)(*(column[rows] for column in table.columns()))
        window = window[int(table.position[0]) - origin :]
    firsts = [each for each in (within.first_offset, fetched.start_offset) if each is not None]
    ends = [each for each in (within.end_offset, fetched.end_offset) if each is not None]
    inside = RecordRange(
        max(firsts), min(ends), within.first_timestamp, within.end_timestamp, with_control=within.with_control
    )
    for found in ColumnDecoder(fetched.source, columns, inside, _CHECKED_ALREADY).decode(window, table):
        if found.num_rows:
            yield found
