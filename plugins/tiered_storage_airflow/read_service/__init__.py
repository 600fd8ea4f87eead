"""The read service: offsets, segments and records over HTTP, for those who have rights on a topic.

`service` opens the remote log once a process and bounds the work on it; `login`, `access` and `rights_file` decide who
may see what, and log it. `tiers` reads both tiers of a partition, `record_stream` and `streaming` send what is read.
The routes are in `routes`.
"""

__all__ = ["access", "login", "partitions", "problem", "record_forms", "record_stream", "service", "streaming", "tiers"]
