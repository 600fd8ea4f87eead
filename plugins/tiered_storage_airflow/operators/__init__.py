"""Operators for the remote log, for the DAGs of this project and for your own.

`remote_storage` copies segments with Spark, and `remote_log_metadata` plans and commits. Each other kind of work has a
file. `remote_log_operator` and `spark_groups` have what they share. The library does the work: an operator only reads
its arguments, calls the library, and reports.
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
