"""Start writing a file's bytes to disk while more of them arrive, so that the final sync takes less time.

On Linux this is sync_file_range(2), which Python's os module lacks. Elsewhere, and on file systems without it, nothing
happens until the final sync. It guarantees nothing by itself.
"""

from __future__ import annotations

import ctypes
import sys

WRITE_OUT_BYTES = 8 << 20
_SYNC_FILE_RANGE_WRITE = 2

_sync_file_range = getattr(ctypes.CDLL(None), "sync_file_range", None) if sys.platform == "linux" else None
if _sync_file_range is not None:
    _sync_file_range.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)


class EarlyWriteOut:
    """Starts the write-out of a growing file in pieces of 8 MiB."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._begun = 0

    def grown_to(self, size: int) -> None:
        """Start writing the bytes added since the last call, if there are enough; the file now has `size` bytes."""
        if size - self._begun >= WRITE_OUT_BYTES:
            self.complete_at(size)

    def complete_at(self, size: int) -> None:
        """Start writing the rest of the file, which is complete."""
        if _sync_file_range is not None and size > self._begun:
            _sync_file_range(self._descriptor, self._begun, size - self._begun, _SYNC_FILE_RANGE_WRITE)
            self._begun = size
