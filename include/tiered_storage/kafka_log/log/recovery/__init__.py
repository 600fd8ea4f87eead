"""What opening a log does, after a crash or a clean shutdown; nothing here appends to a log.

`log_loader` recovers a log, one segment at a time with `segment_recovery`; `index_rebuild` builds indexes from batches,
and `leader_epoch_recovery` finds epochs. `log_leftovers` removes what a broker left half done, and `clean_shutdown`
is the clean-shutdown mark.
"""

__all__ = [
    "clean_shutdown",
    "index_rebuild",
    "leader_epoch_recovery",
    "log_leftovers",
    "log_loader",
    "segment_recovery",
]
