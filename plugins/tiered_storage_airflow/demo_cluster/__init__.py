"""`make demo-cluster`: a live cluster with its clients, copied by the scheduled DAGs while brokers and jobs are killed.

`run` goes through it step by step, on servers that `brokers`, `postgres` and `s3_server` start. `load` writes and
reads, and `ledger` judges afterwards whether every acknowledged record is in the tiers exactly once.
"""

__all__ = ()
