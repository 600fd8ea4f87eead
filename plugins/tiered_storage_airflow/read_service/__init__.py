"""The read service: offsets, segments and records over HTTP, for users with rights on a topic.

`service` opens the remote log once per process and limits the work on it; `login` says who asks, and `access` logs
it. `tiers` reads both tiers of a partition, `record_stream` and `streaming` send the results,
and the routes are in `routes`.
"""

__all__ = ["access", "login", "partitions", "problem", "record_forms", "record_stream", "service", "streaming", "tiers"]
