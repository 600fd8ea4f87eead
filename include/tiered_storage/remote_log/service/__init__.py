"""RemoteLogService: copies, expires and follows partitions in a process that stays up.

`service` has its pools and metrics, `schedule` says which task is due, `copying` and `expiration` are the tasks, and
`assignments` finds out which partitions it gets. Commands use the copy run of `copying` too.
"""

__all__ = ["assignments", "copying", "service"]
