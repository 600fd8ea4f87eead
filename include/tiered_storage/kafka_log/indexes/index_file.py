"""The common format of offset and time index files: fixed-size entries, then perhaps zeros.

A broker preallocates the indexes of its active segment (`segment.index.bytes`, 10 MiB unless set) and cuts the zeros
off when the segment is rolled or the broker stops.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tiered_storage.errors import CorruptIndexError
from tiered_storage.kafka_log.files.small_files import is_zero, open_small_file, read_small_file

MAX_INDEX_BYTES = 128 << 20


def read_entries(path: Path, entry: np.dtype[np.void]) -> NDArray[Any]:
    """Read the index file `path` as an array of `entry`, without the zeros of its preallocation.

    An entry of zeros counts only if another entry follows it, or if it is the whole file: a preallocated file has room
    for more. A time index has such an entry if the first record's timestamp is 0.
    Raises CorruptIndexError if the file is not a regular file, is not a whole number of entries, or has bytes other
    than zeros after 128 MiB.
    """
    most = MAX_INDEX_BYTES - MAX_INDEX_BYTES % entry.itemsize
    with open_small_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most and not size % entry.itemsize and is_zero(file, most, size):
            file.seek(0)
            return parse_entries(file.read(most), path, entry)
    return parse_entries(read_small_file(path, MAX_INDEX_BYTES), path, entry)


def parse_entries(raw: bytes, source: Path | str, entry: np.dtype[np.void]) -> NDArray[Any]:
    """Return the entries in `raw`, the content of an index; raises as `read_entries`, naming `source`."""
    if len(raw) % entry.itemsize:
        raise CorruptIndexError(source, position=len(raw), reason=f"{len(raw)} bytes are not a whole number of entries")
    is_one = len(raw) == entry.itemsize
    used = 1 if is_one else -(-len(raw.rstrip(b"\0")) // entry.itemsize)
    return np.frombuffer(raw, entry, count=used)
