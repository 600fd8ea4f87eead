"""Checked chunks of remote segments, fetched within threads, quotas and deadlines.

`remote_chunks` fetches and prefetches the chunks of a segment, `chunk_sequence` fetches them in order without a
deadline, for whole tables, and `checked_chunk` checks each one. `chunk_cache` keeps chunks in memory, `chunk_files` on
disk; `reader_pools` has the threads of a reader, and `fetch_deadline` the deadline of one request.
"""

__all__ = [
    "checked_chunk",
    "chunk_cache",
    "chunk_files",
    "chunk_sequence",
    "fetch_deadline",
    "reader_pools",
    "remote_chunks",
]
