"""Decodes record batches into Arrow.

`decoder` works a chunk at a time, and a chunk fits into the CPU's cache. The compiled loops are in `kernels/`.
"""

__all__ = ["decoder", "record_columns"]
