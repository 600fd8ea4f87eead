"""RemoteLogService: copies, expires and follows partitions in a process that stays up.

`service` has its pools, `schedule` says which task is due, `copying` and `expiration` are the tasks, and `assignments`
finds out which partitions it gets. `local_copy` is a copy run in this process, which commands use too.
"""

__all__ = ["assignments", "local_copy", "metrics", "service"]
