"""Copies closed segments to the remote tier.

`plan` chooses segments, `start` takes leases and writes tasks, `copier` copies one segment, `commit` makes the copies
visible. `job` and `worker` run many copies in groups.
"""
