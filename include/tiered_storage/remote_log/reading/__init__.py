"""Reads partitions through both tiers as one log: by offset, by time, as batches, records or Arrow tables.

log_reader.py            RemoteLogReader, what programs use; blocking.py: the same without asyncio
log_stream.py            one range of a partition, batch by batch; record_tables.py: as Arrow
offset_search.py         offsets by name and by time; aborted_transactions.py: what read-committed leaves out
partition_view.py        what there is of a partition at one moment; partition_views.py: kept while it is fresh
remote_chunks.py         chunks and indexes of remote segments, checked, through chunk_cache.py
reader_pools.py          threads for local and for remote reads, quotas; fetch_deadline.py: back-off within a time
"""
