"""The remote log index trio: which chunk of a remote segment holds an offset or a timestamp.

`remote_index_builder` builds it, `remote_index_lookup` reads it, `remote_index_check` checks it against the batches.
"""

__all__ = ["batch_epochs", "remote_index_builder", "remote_index_check", "remote_index_lookup", "remote_log_index"]
