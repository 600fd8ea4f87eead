"""Starts writing a file's bytes to the disk while more of them come, so that the sync at the end has less to wait for.

On Linux that is sync_file_range(2), which Python's os module lacks; elsewhere, and where a file system cannot do it,
nothing happens, and the sync at the end does it all. It promises nothing by itself.
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
    """Has a file that grows at its end written out in pieces of 8 MiB."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._begun = 0

    def grown_to(self, size: int) -> None:
        """Begin to write out what the file, now of `size` bytes, has won since the last time, if that is enough."""
        if size - self._begun >= WRITE_OUT_BYTES:
            self.complete_at(size)

    def complete_at(self, size: int) -> None:
        """Begin to write out all that is left of the file, which will not grow any more."""
        if _sync_file_range is not None and size > self._begun:
            _sync_file_range(self._descriptor, self._begun, size - self._begun, _SYNC_FILE_RANGE_WRITE)
            self._begun = size
