"""Operators for the remote log, for the DAGs here and in anybody's own.

`remote_storage` copies segments by Spark and `remote_log_metadata` plans and commits; the others are one file for each
kind of work. `remote_log_operator` and `spark_groups` have what they share. They do the work in the library:
an operator only reads its arguments, calls it, and reports.
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
