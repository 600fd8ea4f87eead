"""Reads partitions through both tiers as one log: by offset, by time, as batches, records or Arrow tables.

Programs use `log_reader`, or `blocking_reader` without asyncio. `partition_snapshot` finds the present content of a
partition, `offset_search` finds offsets, and `log_stream` reads from one on; remote bytes come from `chunks`.
"""

__all__ = ["blocking_reader", "log_reader", "partition_snapshot", "read_values"]
