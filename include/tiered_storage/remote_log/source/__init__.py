"""Local logs: which segments exist, how far they are stable, and what is in them.

`segment_source` is the border, with SegmentSource, OpenSegment and LocalTrim, and `partition_log` what it gives;
`opening` knows every kind of source. `log_directory_source`, `log_directory_segment` and `log_directory_trim` implement
the border for a directory that stands alone; `fetch_source`, `fetched_log`, `rolled_segment` and `cluster_trim` do so
for brokers asked by Kafka's protocol, with `leader_files` and `leader_log` also beside their disks.
"""

__all__ = [
    "cluster_trim",
    "fetch_source",
    "fetched_log",
    "leader_files",
    "leader_log",
    "log_directory_source",
    "opening",
    "partition_log",
    "segment_source",
]
