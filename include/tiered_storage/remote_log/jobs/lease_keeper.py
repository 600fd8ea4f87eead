"""Renew leases while another thread or process does the work, until the `with` block ends."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from tiered_storage.errors import LeaseLostError, MetadataUnavailableError
from tiered_storage.remote_log.metadata.remote_log_metadata_manager import Leases
from tiered_storage.remote_log.model import Lease


@contextmanager
def kept_alive(
    leases: Leases, held: Iterable[Lease], duration_ms: int, is_wanted: Callable[[], bool] = lambda: True
) -> Iterator[None]:
    """Renew every lease of `held` to `duration_ms` from now, three times within that time, and once at the end.

    A lease that was taken over is no longer renewed: the commit will refuse its work. If the metadata store is away for
    a while, the next turn tries again. Once `is_wanted` returns False, the block's work has been given up: hanging work
    must not hold a partition for ever.
    """
    alive = set(held)
    stop = threading.Event()

    def prolong_all() -> None:
        for lease in list(alive):
            try:
                leases.heartbeat(lease, duration_ms)
            except LeaseLostError:
                alive.discard(lease)
            except MetadataUnavailableError:
                return

    def run() -> None:
        while not stop.wait(duration_ms / 3000) and is_wanted():
            prolong_all()

    thread = threading.Thread(target=run, name="lease-keeper", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        prolong_all()
