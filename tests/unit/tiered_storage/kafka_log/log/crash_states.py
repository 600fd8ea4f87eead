"""The states of a directory that a killed process may leave, collected in this process.

A killed process is the real thing (tests/crashes); this is for tests that try thousands of places."""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from support.files import files_in

Files = dict[str, bytes]
"""The content of files by their names, relative to the directory that they are in."""
_CALLS = ((os, "fsync"), (os, "unlink"), (os, "remove"), (os, "rename"), (os, "replace"), (os, "open"), (io, "open"))


@contextmanager
def crash_states(directory: Path) -> Iterator[list[Files]]:
    """Collect the states of `directory` while the block runs, the first and the last one included."""
    states: list[Files] = []
    looking = False

    def look() -> None:
        nonlocal looking
        if looking:
            return
        looking = True
        state = files_in(directory)
        looking = False
        if not states or states[-1] != state:
            states.append(state)

    def seen(call: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any, **options: Any) -> Any:
            look()
            return call(*arguments, **options)

        return called

    look()
    with ExitStack() as patches:
        for module, name in _CALLS:
            patches.enter_context(patch.object(module, name, seen(getattr(module, name))))
        yield states
    look()


def lay_out(directory: Path, files: Files) -> None:
    """Let `directory` hold `files` and nothing else."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    for name, content in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
