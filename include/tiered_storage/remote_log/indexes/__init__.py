"""The remote log index trio: which chunk of a remote segment holds an offset or a timestamp.

`remote_log_index` is the format of the first of the three. `remote_index_builder` builds them, `remote_index_lookup`
reads them, `remote_index_check` checks them against the batches.
"""

__all__ = ["batch_epochs", "remote_index_builder", "remote_index_check", "remote_index_lookup", "remote_log_index"]
