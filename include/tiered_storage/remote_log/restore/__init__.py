"""Restore topics from the store: into a log directory for a broker, or into a running cluster.

`request` is the request, and `plan` what would be done. `directory` writes a log directory, `cluster` sends committed
records and keeps an `offset_map`, and `validation` checks the store before, and the result after.
"""

__all__ = [
    "cluster",
    "committed",
    "directory",
    "offset_map",
    "plan",
    "request",
    "target_cluster",
    "target_directory",
    "validation",
]
