from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def test_machine_code_of_one_process_serves_the_next(tmp_path: Path) -> None:
    program = """
import numpy as np
from support.record_batches import batches_of
from tiered_storage.kafka_log import scan_kernels
from tiered_storage.kafka_log.segment_scan import SegmentScanner

table, _ = SegmentScanner("segment", 0).feed(memoryview(b"".join(batches_of([1, 2, 3]))))
assert table.record_count.tolist() == [1, 2, 3]
kernels = (scan_kernels.count_batches, scan_kernels.read_headers, scan_kernels.checksum_kernel())
print(sum(kernel.stats.cache_hits.total() for kernel in kernels))
"""
    tests = Path(__file__).parents[1]
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(tests)}

    hits = [
        subprocess.run(
            [sys.executable, "-c", program], env=environment, check=True, capture_output=True, text=True
        ).stdout
        for _ in range(2)
    ]

    assert hits == ["0\n", "3\n"]
