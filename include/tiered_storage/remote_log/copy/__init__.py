"""Copies closed segments to the remote tier.

`plan` chooses segments, `start` takes leases and writes tasks, `copier` copies one segment, `commit` makes the copies
visible. `job` runs many copies in groups, here or in Spark's workers.
"""
