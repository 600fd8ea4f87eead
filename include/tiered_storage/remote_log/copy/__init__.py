"""Copies closed segments to the remote tier.

`plan` chooses segments, `start` takes leases and writes tasks, `copier` copies one segment, and `commit` makes the
copies visible. `job` runs many copies in groups, here or in Spark's workers.
"""

__all__ = ["commit", "forked_log", "job", "plan", "roll_plan", "sent_records", "start", "tasks"]
