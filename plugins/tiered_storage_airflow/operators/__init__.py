"""Operators for the remote log, for the DAGs of this project and for your own; the library does the work.

`remote_storage` copies segments with Spark, `remote_log_metadata` plans and commits, and each other kind of work has a
file. `remote_log_operator` and `spark_groups` have what they share.
"""

__all__ = [
    "audit",
    "deletion",
    "expiry",
    "local_retention",
    "remote_log_metadata",
    "remote_storage",
    "repair",
    "restore",
    "tables",
]
