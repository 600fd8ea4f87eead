"""What a log knows of its producers: their epochs, last batches and open transactions.

`producer_state` follows a log batch by batch, `producer_snapshot` is its file. `transaction_state` finds the last
stable offset.
"""
