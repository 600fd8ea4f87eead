"""A run's folder in the work area, and the workers that read their tasks there.

`groups` divides a job into groups of partitions and runs them in threads, `worker` opens the store for one group,
`progress` follows all of them. `lease_keeper` renews leases meanwhile.
"""

__all__ = [
    "groups",
    "lease_keeper",
    "library_archive",
    "progress",
    "throttle",
    "work_area",
    "worker",
]
