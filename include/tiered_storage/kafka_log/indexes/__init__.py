"""The three indexes of a segment: offset, time and transaction index.

Each has a reader, a builder and a check against the segment's batches. Rebuilding them from a log is in `log/`.
"""

__all__ = ["index_builder", "index_check", "offset_index", "time_index", "transaction_index"]
