"""The end markers of transactions among the batches of a window."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tiered_storage.kafka_log.kernels.batch_layout import CONTROL_BIT
from tiered_storage.kafka_log.records.batch_header import NO_PRODUCER_ID
from tiered_storage.kafka_log.records.batch_table import BatchTable
from tiered_storage.kafka_log.records.control_record import EndTransactionMarker, read_end_marker


def marker_rows(batches: BatchTable) -> NDArray[np.int64]:
    """Return the rows of the control batches that may hold an end marker.

    Compaction leaves a control batch without its record where nothing is left of the transaction either.
    """
    is_control = (batches.attributes & CONTROL_BIT) != 0
    return np.flatnonzero((batches.producer_id > NO_PRODUCER_ID) & is_control & (batches.record_count > 0))


def marker_at(path: Path, window: memoryview, batches: BatchTable, row: int) -> EndTransactionMarker | None:
    """Return the end marker in one of `batches` of the log `path`, whose bytes are `window`; None: it has another one.

    Raises CorruptRecordError where its control record cannot be read.
    """
    position = int(batches.position[row])
    start = position - int(batches.position[0])
    batch = window[start : start + int(batches.size[row])]
    return read_end_marker(batch, source=str(path), source_position=position)


def abort_markers(path: Path, window: memoryview, batches: BatchTable) -> list[tuple[int, int]]:
    """Return producer id and offset of each abort marker in `batches` of the log `path`, whose bytes are `window`.

    Raises CorruptRecordError where a control record cannot be read.
    """
    return [
        (int(batches.producer_id[row]), int(batches.base_offset[row]))
        for row in marker_rows(batches).tolist()
        if (marker := marker_at(path, window, batches, row)) is not None and marker.is_abort
    ]
