"""How reads get checked chunks of remote segments, within their threads, quotas and deadlines.

`remote_chunks` fetches the chunks of a segment, ahead too, and `checked_chunk` checks each one. `chunk_cache` keeps
them in memory, `chunk_files` on the disk. `reader_pools` has the threads of all reads of a process, and
`fetch_deadline` the time of one request.
"""

__all__ = ["checked_chunk", "chunk_cache", "chunk_files", "fetch_deadline", "reader_pools", "remote_chunks"]
