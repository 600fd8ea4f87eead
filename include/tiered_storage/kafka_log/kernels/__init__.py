"""The loops that numba compiles: checksums, the scan of batches, the decoding of records.

`machine_code` keeps the compiled code from one process to the next. Kernels take addresses and numbers only, and
check no bounds.
"""

__all__ = ["checksum", "constants", "machine_code"]
