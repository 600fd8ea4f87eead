from __future__ import annotations

from typing import Any

from tiered_storage.kafka_log import decode_kernels, scan_kernels
from tiered_storage.kafka_log.kernel_compilation import compile_kernels


def test_afterwards_all_kernels_are_compiled() -> None:
    compile_kernels()

    kernels: list[Any] = [scan_kernels.count_batches, scan_kernels.read_headers, scan_kernels.checksum_kernel()]
    assert all(kernel.signatures for kernel in [*kernels, decode_kernels.decode_batches])
