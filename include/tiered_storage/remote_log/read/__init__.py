"""Reads partitions through both tiers as one log: by offset, by time, as batches, records or Arrow tables.

`log_reader` is what programs use, `blocking_reader` the same without asyncio. `partition_view` finds what a partition
holds now, `offset_search` finds offsets, `log_stream` reads on from one. Remote bytes come from `chunks`.
"""

__all__ = ["blocking_reader", "log_reader", "partition_view", "read_values"]
