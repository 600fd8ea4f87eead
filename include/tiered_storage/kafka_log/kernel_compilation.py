"""Has the kernels compiled: `python -m tiered_storage.kafka_log.kernel_compilation`, for whoever sets a machine up.

It takes some seconds once. numba keeps the machine code beside the sources, or where NUMBA_CACHE_DIR says, and every
later process on the machine finds it there.
"""

from __future__ import annotations

from tiered_storage.kafka_log.columnar import ColumnDecoder
from tiered_storage.kafka_log.record import Record
from tiered_storage.kafka_log.record_batch import encode_batch
from tiered_storage.kafka_log.segment_scan import SegmentScanner


def compile_kernels() -> None:
    """Scan and decode a batch, whereby all is compiled that is not yet."""
    batch = memoryview(encode_batch([Record(0, 0, b"key", b"value", (("header", b"value"),))]))
    table, consumed = SegmentScanner("a batch", 0).feed(batch)
    for _ in ColumnDecoder("a batch").decode(batch[:consumed], table):
        pass


if __name__ == "__main__":
    compile_kernels()
