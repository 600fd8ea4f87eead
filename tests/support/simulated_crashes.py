"""Runs in this process that end at any step, as if the process were killed.

A killed process is the real thing (tests/crashes); this is for tests that try thousands of places.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from tiered_storage.remote_log.metadata.sql.leases import SqlLeases
from tiered_storage.remote_log.metadata.sql.segments import SqlRemoteLogMetadataManager
from tiered_storage.remote_log.metadata.topic.cluster.metadata_writer import MetadataWriter
from tiered_storage.remote_log.storage.clients.local_directory import LocalDirectory

_STEPS: dict[type, tuple[str, ...]] = {
    LocalDirectory: ("put", "create", "delete", "delete_many"),
    SqlRemoteLogMetadataManager: (
        "add_remote_log_segments",
        "update_remote_log_segments",
        "advance_log_start_offsets",
        "put_lineages",
        "put_remote_partition_delete_metadata",
    ),
    MetadataWriter: ("write",),
    SqlLeases: ("acquire_many", "heartbeat_many", "release_many"),
}


class Died(BaseException):
    """Stands for a killed process: no `except` of the product may catch this."""


def die(*_: object, **__: object) -> None:
    """Die, in the place of a function of the product."""
    raise Died


@contextmanager
def dies_at(step: int, *, after_it: bool) -> Iterator[None]:
    """Let the block die at the step of that number, from 0, before or `after_it`; the end of the block continues.

    A step is a write to the store or to the metadata. A block with fewer steps lives.
    """
    count = -1

    def dying(real: Callable[..., Any]) -> Callable[..., Any]:
        def one_step(*arguments: Any, **options: Any) -> Any:
            nonlocal count
            # How far a job has come is written every few seconds, by a thread of its own: no step of the run's.
            if threading.current_thread().name.startswith("progress-"):
                return real(*arguments, **options)
            count += 1
            if count > step or (count == step and not after_it):
                raise Died
            result = real(*arguments, **options)
            if count == step:
                raise Died
            return result

        return one_step

    with ExitStack() as patched:
        for owner, names in _STEPS.items():
            for name in names:
                real = getattr(owner, name, None)
                if real is not None:
                    patched.enter_context(mock.patch.object(owner, name, dying(real)))
        try:
            yield
        except Died:
            return


@contextmanager
def dies_at_sync(step: int) -> Iterator[None]:
    """Let the block die when it syncs a file for the `step`th time, from 0. Died leaves the block, which cleans up."""
    count = -1

    def sync(_: int) -> None:
        nonlocal count
        count += 1
        if count >= step:
            raise Died

    with mock.patch.object(os, "fsync", sync):
        yield
