"""A remote log that is bound to its store, of a topic of which everything may be deleted."""

from __future__ import annotations

from pathlib import Path

from support.remote_logs import ENABLED, RemoteLogFiles, a_copied_remote_log

DELETABLE = {**ENABLED, "retention.bytes": 1000, "local.retention.bytes": 0}


def a_bound_site(root: Path) -> RemoteLogFiles:
    """Copy three segments of a topic; store and metadata carry each other's UUID."""
    files = a_copied_remote_log(root, {("orders", 0): 3}, topics={"orders": DELETABLE})
    with files.open() as remote_log:
        remote_log.context.bind_store()
    return files
