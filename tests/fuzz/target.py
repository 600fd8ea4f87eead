"""What a fuzzer is pointed at: a decoder, and bytes to begin from.

A target takes any bytes and says nothing where the decoder kept its promise: a value, or one of our errors that names
the file and a position in it. Whatever else it raises is a finding, and so is a crash, a hang, or memory without bound.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from tiered_storage.errors import CorruptLogError, LaterVersionError, RemoteObjectCorruptError

_Value = TypeVar("_Value")

SOURCE = "orders-0/00000000000000000000.log"


@dataclass(frozen=True, slots=True)
class Target:
    """A decoder by the name of what it reads; `seeds` are inputs that it takes, or nearly."""

    name: str
    run: Callable[[bytes], None]
    seeds: Callable[[], Iterable[bytes]]
    has_kernels: bool = False
    """Whether compiled code reads the input: then it is also run as interpreted code, which coverage can guide."""


def value_or_error(
    read: Callable[[], _Value], source: str | Path = SOURCE, size: int | None = None
) -> _Value | CorruptLogError | RemoteObjectCorruptError | LaterVersionError:
    """Return what `read` returns, or the error that it raises, which names `source` and a position up to `size`."""
    try:
        return read()
    except CorruptLogError as error:
        assert str(source) in error.path, f"an error of another file: {error}"
        assert error.position >= 0 and (size is None or error.position <= size), f"an error past the end: {error}"
        assert error.reason
        return error
    except (RemoteObjectCorruptError, LaterVersionError) as error:
        assert str(source) in str(error), f"an error of another object: {error}"
        return error


class MemoryFile:
    """A file without a name, for decoders that take a path: writing it costs no disk."""

    def __init__(self) -> None:
        self._descriptor = -1
        self._owner = -1

    def filled(self, content: bytes) -> Path:
        """Return the path of the file, which now has this content."""
        if self._owner != os.getpid():
            # A process that was forked would share the file with the one that it comes from.
            self._descriptor, self._owner = os.memfd_create("fuzzed"), os.getpid()
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, content, 0)
        return Path(f"/proc/self/fd/{self._descriptor}")
