"""What a log knows of its producers: their epochs, last batches and open transactions.

`producer_state` follows a log batch by batch; `producer_snapshot` is its file. `transaction_state` finds the last
stable offset.
"""

__all__ = [
    "producer_entry",
    "producer_history",
    "producer_snapshot",
    "producer_snapshot_files",
    "producer_state",
    "transaction_state",
]
