"""The three indexes of a segment: offset, time and transaction index.

Each has a reader, a builder and a check against the segment's batches; `aborted_batches` looks up batches in what
transaction indexes hold. Rebuilding them from a log is in `log/`.
"""

__all__ = ["aborted_batches", "index_builder", "index_check", "offset_index", "time_index", "transaction_index"]
